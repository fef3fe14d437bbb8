"""When a prepared transaction is to be opened, and when nothing more is to be said of it."""

from __future__ import annotations

import pytest

from twofold.bridge.events import IdleDue, OpenDue, ParkDue
from twofold.run.run import OPEN_AFTER_S, Timers
from twofold_common.positions import PreparedIdentity

A, B, C = PreparedIdentity(1, "a"), PreparedIdentity(2, "b"), PreparedIdentity(3, "c")
IN_POOL, MORE = 2, 3
"""Numbers of transactions in doubt."""


@pytest.fixture
def timers() -> Timers:
    return Timers(open_within_s=0.2, hold_s=30, idle_s=1000, pool=2, now=100)


def test_one_is_opened_after_a_short_time_when_nothing_waits_to_be_read(timers: Timers) -> None:
    timers.staged(A, 100, IN_POOL)
    timers.staged(B, 100.005, IN_POOL)
    assert timers.wait_s(100, IN_POOL) == pytest.approx(OPEN_AFTER_S)
    assert timers.due(100.009, drained=True, in_doubt=IN_POOL) == []
    assert timers.due(100.011, drained=True, in_doubt=IN_POOL) == [OpenDue(A)]
    assert timers.due(100.02, drained=True, in_doubt=IN_POOL) == [OpenDue(B)]


def test_with_more_to_read_it_is_opened_at_the_latest_after_open_within(timers: Timers) -> None:
    timers.staged(A, 100, IN_POOL)
    assert timers.due(100.1, drained=False, in_doubt=IN_POOL) == []
    assert timers.due(100.2, drained=False, in_doubt=IN_POOL) == [OpenDue(A)]


def test_one_that_ripens_while_the_socket_is_busy_is_opened_when_it_is_empty(timers: Timers) -> None:
    timers.staged(A, 100, IN_POOL)
    assert timers.due(100.05, drained=False, in_doubt=IN_POOL) == []
    assert timers.wait_s(100.06, IN_POOL) == 0
    assert timers.due(100.06, drained=True, in_doubt=IN_POOL) == [OpenDue(A)]


def test_those_that_are_more_than_the_pool_has_producers_wait_ten_times_as_long(timers: Timers) -> None:
    """A few hundred a second can be opened and committed; the batch takes thousands."""
    for in_doubt, each in enumerate((A, B, C), 1):
        timers.staged(each, 100, in_doubt)
    assert timers.due(100.02, drained=True, in_doubt=MORE) == [OpenDue(A), OpenDue(B)]
    assert timers.due(101.99, drained=True, in_doubt=MORE) == []
    assert timers.wait_s(101.99, MORE) == pytest.approx(0.01)
    assert OpenDue(C) in timers.due(102, drained=True, in_doubt=MORE)


def test_one_is_opened_after_open_within_as_soon_as_the_pool_has_producers_for_all(timers: Timers) -> None:
    for in_doubt, each in enumerate((A, B, C), 1):
        timers.staged(each, 100, in_doubt)
    assert OpenDue(C) not in timers.due(100.3, drained=False, in_doubt=MORE)
    timers.ended(A)
    assert timers.wait_s(100.3, IN_POOL) == 0
    assert OpenDue(C) in timers.due(100.3, drained=False, in_doubt=IN_POOL)
    timers.ended(B)
    timers.staged(A, 101, IN_POOL)
    assert timers.due(101.02, drained=True, in_doubt=IN_POOL) == [OpenDue(A)]


def test_open_within_may_be_shorter() -> None:
    timers = Timers(open_within_s=0, hold_s=30, idle_s=1000, pool=2, now=100)
    timers.staged(A, 100, IN_POOL)
    assert timers.due(100, drained=False, in_doubt=IN_POOL) == [OpenDue(A)]


def test_of_one_that_has_ended_nothing_more_is_said(timers: Timers) -> None:
    timers.staged(A, 100, IN_POOL)
    timers.staged(B, 100, IN_POOL)
    timers.opened(B, 100)
    timers.ended(A)
    assert timers.due(200, drained=True, in_doubt=IN_POOL) == [
        OpenDue(B),
        OpenDue(B),
        ParkDue(B, "open for 30 s (prepared.hold)"),
    ]


def test_an_idle_position_is_brought_up_to_date(timers: Timers) -> None:
    assert timers.wait_s(600, IN_POOL) == 500
    assert timers.due(1100, drained=True, in_doubt=IN_POOL) == [IdleDue()]
    assert timers.wait_s(1100, IN_POOL) == 1000
