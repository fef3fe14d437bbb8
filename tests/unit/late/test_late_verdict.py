"""The laboratory's judge finds what a late end leaves, each planted into a history without
damage.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chaos.ends import Ended
from chaos.reading import Record
from late.clients import Outcomes
from late.verdict import judge

TESTS = Path(__file__).parents[2]
ROWS, COMMITS = "p.public.a", "p.commits"


@dataclass
class History:
    """Three transactions of two rows; the last one was rolled back and is not there."""

    rows: list[Record] = field(default_factory=list)
    commits: list[Record] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)

    def row(self, name: str, n: int, offset: int) -> None:
        value = {"after": {"tx": name, "n": n}}
        self.rows.append(Record(ROWS, 0, offset, None, value))

    def commit(self, first: int, count: int) -> None:
        where = {"topic": ROWS, "partition": 0, "first": first, "last": first + count - 1, "count": count}
        value = {"sequence": len(self.commits) + 1, "ranges": [where]}
        self.commits.append(Record(COMMITS, 0, len(self.commits), None, value))
        self.end(ROWS, COMMITS)

    def end(self, *topics: str) -> None:
        self.ends.append(Ended("p.main", 1, 1, len(self.ends), frozenset((topic, 0) for topic in topics)))

    def found(self) -> dict[str, int]:
        outcomes = Outcomes({"one": 2, "two": 2}, {"three": 2})
        counts = judge("p", outcomes, self.rows, self.commits, self.ends).counts()
        return {name: count for name, count in counts.items() if count}


@pytest.fixture
def history() -> History:
    made = History()
    for offset, (name, n) in enumerate([("one", 0), ("one", 1), ("two", 0), ("two", 1)]):
        made.row(name, n, offset)
    made.commit(0, 2)
    made.commit(2, 2)
    return made


def test_nothing_is_found_where_nothing_is_wrong(history: History) -> None:
    assert history.found() == {}


def test_a_late_abort_takes_rows_away_from_their_commit_record(history: History) -> None:
    del history.rows[2:]
    assert history.found() == {"lost": 1, "ranges": 1}


def test_a_late_abort_may_take_one_half(history: History) -> None:
    del history.rows[3]
    assert history.found() == {"lost": 1, "torn": 1, "ranges": 1}


def test_a_late_commit_shows_what_is_rolled_back(history: History) -> None:
    history.row("three", 0, 4)
    history.row("three", 1, 5)
    history.end(ROWS)
    assert history.found() == {"dirty": 1, "split": 1, "ranges": 1}


def test_a_late_commit_amid_rows_doubles_them(history: History) -> None:
    history.row("two", 0, 4)
    history.row("two", 1, 5)
    history.end(ROWS)
    assert history.found() == {"doubled": 1, "split": 1, "ranges": 1}


def test_a_late_commit_between_rows_and_commit_record_splits_them(history: History) -> None:
    history.ends[1:] = []
    history.end(ROWS)
    history.end(COMMITS)
    assert history.found() == {"split": 1}


def test_numbers_of_commit_records_are_dense(history: History) -> None:
    value: dict[str, Any] = {**history.commits[1].value, "sequence": 3}
    history.commits[1] = Record(COMMITS, 0, 1, None, value)
    assert history.found() == {"ranges": 1}


def test_the_judge_knows_nothing_of_the_product() -> None:
    """Not through another module either: it is loaded where the product cannot be imported."""
    program = "import sys; sys.modules.update(twofold=None, twofold_avro=None, twofold_spark=None); import late.verdict"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(TESTS)})
