"""What a run's end teaches the next run."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from twofold.errors import QuickAgain, RunEnded, UncertainEnd
from twofold.kafka.late_ends import RETRY_FACTOR_MAX, SLOW_AGAIN_S
from twofold.run.supervisor import _Lessons


def test_the_bound_of_ends_follows_slow_brokers_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("twofold.kafka.late_ends.time.monotonic", lambda: now)
    lessons = _Lessons(MagicMock())
    factors = []
    for _ in range(7):
        lessons = lessons.after(UncertainEnd("slow"), recovered=True)
        lessons = lessons.after(RunEnded("another cause"), recovered=True)
        factors.append(lessons.ends.retry_factor)
        now += 10
    assert factors == [1, 2, 4, 8, RETRY_FACTOR_MAX, RETRY_FACTOR_MAX, RETRY_FACTOR_MAX]
    lessons = lessons.after(QuickAgain("quick"), recovered=True)
    assert lessons.ends.retry_factor == 1


def test_connections_that_are_lost_now_and_then_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("twofold.kafka.late_ends.time.monotonic", lambda: now)
    lessons = _Lessons(MagicMock())
    for _ in range(5):
        lessons = lessons.after(UncertainEnd("lost"), recovered=True)
        now += SLOW_AGAIN_S + 1
    assert lessons.ends.retry_factor == 1
