"""`make ddl` in short: changes of definitions and rows by seeds, topics against tables."""

from __future__ import annotations

import pytest

from ddl.batch import Batch
from fixtures.connector import Maker


@pytest.mark.slow
def test_two_seeds(connector: Maker) -> None:
    counts = Batch(connector(init=False), [1, 2], told=True).run(
        24, processes=False, rounds=("running", "away", "running")
    )
    assert not counts.wrong
    assert counts.changes
