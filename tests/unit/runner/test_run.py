"""What the pipeline's loop makes of errors, where no server is needed to see it."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import MagicMock

import pytest

from twofold.bridge import Event, events
from twofold.config import TurnConfig
from twofold.errors import MalformedMessage
from twofold.positions import Lsn
from twofold.runner.observer import Silent
from twofold.runner.run import Run
from twofold.runner.waiting import Collected
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


@pytest.mark.parametrize(
    ("committing", "rows", "size", "full"),
    [
        (False, 99, 0, False),
        (False, 100, 0, True),
        (True, 100, 0, False),
        (True, 399, 0, False),
        (True, 400, 0, True),
        (True, 99, 1000, True),
    ],
)
def test_while_kafka_commits_more_rows_are_gathered_but_not_more_bytes(
    monkeypatch: pytest.MonkeyPatch, committing: bool, rows: int, size: int, full: bool
) -> None:
    names = "session collector worker loading timers doubts"
    state = MagicMock(in_flight=("one",) if committing else ())
    carrier = MagicMock(group_records=rows, group_bytes=size)
    parts: Any = {name: MagicMock() for name in names.split()}
    run = Run(
        **parts,
        state=state,
        carrier=carrier,
        limits=TurnConfig.model_validate({"rows": 100, "bytes": 1000}),
        stop=threading.Event(),
    )
    taken: list[Event] = []
    monkeypatch.setattr(run, "_take", taken.append)
    run._end_turn_if_full()
    assert taken == ([events.TurnFull()] if full else [])


@pytest.mark.parametrize(
    ("sent_us", "gathered", "drained"),
    [
        (3_100_000, True, False),
        (3_100_000, False, True),
        (2_100_000, True, True),
        (0, True, True),
    ],
    ids=["behind", "nothing to commit", "up to date", "a keepalive"],
)
def test_an_empty_socket_ends_a_group_unless_the_server_works_through_a_backlog(
    monkeypatch: pytest.MonkeyPatch, sent_us: int, gathered: bool, drained: bool
) -> None:
    """What was read last was committed at 2 s, by the server's clock."""
    names = "collector carrier loading timers doubts"
    session, worker = MagicMock(sent_us=sent_us), MagicMock(busy=False)
    session.read.return_value = []
    worker.answers.return_value = []
    state = MagicMock(group="one" if gathered else None, in_flight=())
    parts: Any = {name: MagicMock() for name in names.split()}
    parts["carrier"].group_records = parts["carrier"].group_bytes = 1
    parts["timers"].wait_s.return_value = 0.1
    run = Run(
        **parts,
        state=state,
        session=session,
        worker=worker,
        limits=TurnConfig.model_validate({}),
        stop=threading.Event(),
    )
    taken: list[Event] = []
    monkeypatch.setattr(run, "_take", lambda event, at_us=0: taken.append(event))
    run._take_collected(Collected(events.PlainRead(1, 1, Lsn(7)), at_us=2_000_000))
    taken.clear()
    assert run._read(0.0, drained=False) is drained
    assert [type(event) for event in taken] == [events.Drained] * drained
