"""`verify` waits for a mirror that moves, says how far one is that does not, and is sure of nothing
but equality.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold_spark.verify import verification
from twofold_spark.verify.verification import TableComparison, Verification


class _Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def _verification(monkeypatch: pytest.MonkeyPatch, *positions: int) -> tuple[Verification, _Clock, list[str]]:
    """A mirror whose cut is at these positions, one a second; the marker is at 1000."""
    clock, said = _Clock(), list[str]()
    source = SimpleNamespace(read_value=lambda _: "1000")

    def read_source(*_: Any, **__: Any) -> Any:
        at = positions[min(int(clock.now), len(positions) - 1)]
        return SimpleNamespace(cut=SimpleNamespace(applied_lsn=at))

    monkeypatch.setattr(verification, "time", clock)
    monkeypatch.setattr(verification, "read_source", read_source)
    made = Verification(
        cast("Any", source),
        reader=cast("Any", None),
        prefix="bank",
        patience=5,
        report=said.append,
        progress=said.append,
    )
    return made, clock, said


def test_a_mirror_that_is_behind_and_moves_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock, said = _verification(monkeypatch, *range(100, 1001, 20))
    assert made._await_marker()
    assert clock.now >= 44, "for longer than its patience"
    assert len(said) == 4
    assert "waits: the mirror's cut is at 0/12C, 700 bytes" in said[0]


def test_a_mirror_that_stands_still_is_given_up_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock, said = _verification(monkeypatch, 400, 600)
    assert not made._await_marker()
    assert clock.now == pytest.approx(6.5)
    (line,) = said
    assert line.startswith("verify: the mirror's cut is at 0/258, 400 bytes of the source's log before the marker")
    assert line.endswith("and has not moved for 5 s: does the mirror run?")


_Rows = dict[int, str]


class _Table:
    """A table of two sides that change from one reading to the next; each row has a bucket."""

    unpublished = ()
    buckets = 1024
    key = ()

    def __init__(self, states: Iterable[tuple[_Rows, _Rows]]) -> None:
        self._states = iter(states)

    def sum_source_buckets(self) -> dict[int, tuple[int, int]]:
        return {bucket: (1, hash(row)) for bucket, row in next(self._states)[0].items()}

    def sum_mirror_buckets(self) -> dict[int, tuple[int, int]]:
        return {bucket: (1, hash(row)) for bucket, row in next(self._states)[1].items()}

    def read_source_rows(self, buckets: set[int]) -> dict[str, str]:
        return {f"4:{bucket:04}": row for bucket, row in next(self._states)[0].items() if bucket in buckets}

    def read_mirror_rows(self, buckets: set[int]) -> dict[str, str]:
        return {f"4:{bucket:04}": row for bucket, row in next(self._states)[1].items() if bucket in buckets}

    def count_inexpressible(self) -> dict[str, int]:
        return {}


def _compare(monkeypatch: pytest.MonkeyPatch, *states: tuple[_Rows, _Rows], moves: bool) -> TableComparison:
    """Compare; the mirror passes each marker or none."""
    made, _, _ = _verification(monkeypatch, 1000)
    monkeypatch.setattr(verification, "ComparedTable", lambda *_: _Table(states))
    monkeypatch.setattr(made, "_await_marker", lambda: moves)
    monkeypatch.setattr(made, "_add_skipped", lambda *args: args[-1])
    return made._compare("public.t")


def test_a_row_that_changes_while_the_mirror_stands_still_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    former, later = ({1: "a 1"}, {1: "z 1"}), ({1: "b 1"}, {1: "z 1"})
    found = _compare(monkeypatch, former, former, former, later, later, moves=False)
    assert [each.text for each in found.different] == ["4:0001"]
    assert not found.is_as_known
    assert "it may only be behind" in str(found)


def test_buckets_that_nobody_looked_into_since_the_mirror_stopped_are_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first ones have settled."""
    rows, former = dict.fromkeys(range(100), "a 1"), dict.fromkeys(range(100), "z 1")
    found = _compare(monkeypatch, *[(rows, former)] * 3, *[(rows, rows)] * 2, moves=False)
    assert (found.buckets, found.different) == (36, ())
    assert not found.is_as_known


def test_a_row_that_changes_and_arrives_behind_a_reading_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was right at each moment."""
    late, arrived, changed = ({1: "a 1"}, {1: "z 1"}), ({1: "a 1"}, {1: "a 1"}), ({1: "b 1"}, {1: "b 1"})
    found = _compare(monkeypatch, *[late] * 3, arrived, *[changed] * 4, moves=True)
    assert found.is_as_known
    assert not found.buckets
