"""What the pipeline's loop makes of errors, where no server is needed to see it."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import MagicMock

import pytest

from twofold.errors import MalformedMessage
from twofold.runner.observer import Silent
from twofold.runner.run import Run
from twofold_avro.errors import MalformedRow


@pytest.mark.parametrize(("where", "call"), [("loading", "turn"), ("collector", "collect")])
def test_a_row_that_makes_no_sense_has_its_own_status_wherever_it_was_met(where: str, call: str) -> None:
    """It would come again, so the supervisor does not try again: by a backfill's reader, and in the stream."""
    names = "state session collector carrier worker loading timers doubts limits"
    parts: Any = {name: MagicMock() for name in names.split()}
    parts["state"].must_wait = False
    parts["loading"].due.return_value = None
    getattr(parts[where], call).side_effect = MalformedRow("no boolean", table="public.t", column="c", offset=17)
    with pytest.raises(MalformedMessage) as ended:
        Run(**parts, stop=threading.Event()).go(Silent())
    assert (str(ended.value), ended.value.exit_status) == ("column c of public.t: no boolean at byte 17", 7)
