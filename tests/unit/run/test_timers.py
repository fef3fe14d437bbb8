"""When a prepared transaction is to be opened, and when nothing more is to be said of it."""

from __future__ import annotations

import pytest

from twofold.bridge.events import IdleDue, OpenDue, ParkDue
from twofold.run.timers import YOUNG_S, Timers
from twofold_common.positions import PreparedIdentity

A, B = PreparedIdentity(1, "a"), PreparedIdentity(2, "b")


@pytest.fixture
def timers() -> Timers:
    return Timers(open_within_s=0.2, hold_s=30, idle_s=1000, pool=2, now=100)


def test_one_is_opened_when_it_is_young_no_more_and_nothing_waits_to_be_read(timers: Timers) -> None:
    timers.staged(A, 100)
    timers.staged(B, 100.005)
    assert timers.wait_s(100) == pytest.approx(YOUNG_S)
    assert timers.due(100.009, drained=True) == []
    assert timers.due(100.011, drained=True) == [OpenDue(A)]
    assert timers.due(100.02, drained=True) == [OpenDue(B)]


def test_with_more_to_read_it_is_opened_at_the_latest_after_open_within(timers: Timers) -> None:
    timers.staged(A, 100)
    assert timers.due(100.1, drained=False) == []
    assert timers.due(100.2, drained=False) == [OpenDue(A)]


def test_one_that_ripens_while_the_socket_is_busy_is_opened_when_it_is_empty(timers: Timers) -> None:
    timers.staged(A, 100)
    assert timers.due(100.05, drained=False) == []
    assert timers.wait_s(100.06) == 0
    assert timers.due(100.06, drained=True) == [OpenDue(A)]


def test_those_that_are_more_than_the_pool_has_producers_wait_ten_times_as_long(timers: Timers) -> None:
    """A few hundred a second can be opened and committed; the group takes thousands."""
    c = PreparedIdentity(3, "c")
    for each in (A, B, c):
        timers.staged(each, 100)
    assert timers.due(100.02, drained=True) == [OpenDue(A), OpenDue(B)]
    assert timers.due(101.99, drained=True) == []
    assert timers.wait_s(101.99) == pytest.approx(0.01)
    assert OpenDue(c) in timers.due(102, drained=True)


def test_one_is_opened_after_open_within_as_soon_as_it_is_in_no_crowd_any_more(timers: Timers) -> None:
    c = PreparedIdentity(3, "c")
    for each in (A, B, c):
        timers.staged(each, 100)
    assert OpenDue(c) not in timers.due(100.3, drained=False)
    timers.ended(A)
    assert timers.wait_s(100.3) == 0
    assert OpenDue(c) in timers.due(100.3, drained=False)
    timers.ended(B)
    timers.staged(A, 101)
    assert timers.due(101.02, drained=True) == [OpenDue(A)]


def test_open_within_may_be_shorter() -> None:
    timers = Timers(open_within_s=0, hold_s=30, idle_s=1000, pool=2, now=100)
    timers.staged(A, 100)
    assert timers.due(100, drained=False) == [OpenDue(A)]


def test_of_one_that_has_ended_nothing_more_is_said(timers: Timers) -> None:
    timers.staged(A, 100)
    timers.staged(B, 100)
    timers.opened(B, 100)
    timers.ended(A)
    assert timers.due(200, drained=True) == [OpenDue(B), OpenDue(B), ParkDue(B, "open for 30 s (prepared.hold)")]


def test_an_idle_position_is_brought_up_to_date(timers: Timers) -> None:
    assert timers.wait_s(600) == 500
    assert timers.due(1100, drained=True) == [IdleDue()]
    assert timers.wait_s(1100) == 1000
