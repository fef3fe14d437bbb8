"""`verify` waits for a mirror that moves, and says how far one is that does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from twofold_spark.verify import verification
from twofold_spark.verify.verification import Verification


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
