"""What changes for the next run after a run ended."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from twofold.errors import QuickAgain, RunEnded, UncertainEnd
from twofold.kafka.late_ends import RETRY_FACTOR_MAX, SLOW_AGAIN_S
from twofold.run.next_run import NextRun


def test_the_bound_of_ends_follows_slow_brokers_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("twofold.kafka.late_ends.time.monotonic", lambda: now)
    next_run = NextRun(MagicMock())
    factors = []
    for _ in range(7):
        next_run = next_run.after(UncertainEnd("slow"), recovered=True)
        next_run = next_run.after(RunEnded("another cause"), recovered=True)
        factors.append(next_run.ends.retry_factor)
        now += 10
    assert factors == [1, 2, 4, 8, RETRY_FACTOR_MAX, RETRY_FACTOR_MAX, RETRY_FACTOR_MAX]
    next_run = next_run.after(QuickAgain("quick"), recovered=True)
    assert next_run.ends.retry_factor == 1


def test_connections_that_are_lost_now_and_then_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("twofold.kafka.late_ends.time.monotonic", lambda: now)
    next_run = NextRun(MagicMock())
    for _ in range(5):
        next_run = next_run.after(UncertainEnd("lost"), recovered=True)
        now += SLOW_AGAIN_S + 1
    assert next_run.ends.retry_factor == 1
