"""When a frontier is asked for, in which order, and that one waits for the one before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from twofold.bridge import events, initial
from twofold.bridge.frontier import is_needed
from twofold.group import frontier_asks
from twofold.group.frontier_asks import FrontierAsks
from twofold.group.member_commits import MemberView
from twofold_common.positions import Lsn, PreparedIdentity

START = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=7, pool=2)


def test_it_is_needed_at_the_beginning_and_behind_every_branch() -> None:
    last = {"east": 4, "west": 0}
    assert is_needed(last, None, (), ())
    assert not is_needed(last, {"east": 4, "west": 0}, (), ())
    assert is_needed(last, {"east": 3, "west": 5}, (), ())


def test_it_is_needed_when_what_the_last_one_names_is_prepared_no_more() -> None:
    last, (one, two) = {"east": 4}, (PreparedIdentity(1, "one"), PreparedIdentity(2, "two"))
    assert not is_needed(last, last, {one}, {one, two})
    assert is_needed(last, last, {one, two}, {one})


class Servers:
    """Kafka and PostgreSQL, as far as frontiers ask them; every look finds one more branch."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.looked = threading.Semaphore(0)
        self.views = {"east": MemberView(), "west": MemberView()}

    def begin(self) -> None:
        pass

    def follow(self, wait_s: float) -> None:
        self.said.append("follow")
        view = self.views["west"]
        view.sequence = view.needed = view.needed + 1
        self.looked.release()

    def prepared(self) -> frozenset[PreparedIdentity]:
        self.said.append("prepared")
        return frozenset({PreparedIdentity(3, "g")})

    def end(self) -> Lsn:
        self.said.append("end")
        return Lsn(200)

    def close(self) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[tuple[Servers, FrontierAsks]]:
    servers: Any = Servers()
    asks = FrontierAsks("east", lambda: servers, servers)
    yield servers, asks
    asks.close()


class IdleServers(Servers):
    """No branch comes: the other member has plain transactions alone, one for each look that is
    allowed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allowed = threading.Semaphore(1)
        self.waits = list[float]()

    def follow(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        if self.allowed.acquire(timeout=0.01):
            self.views["west"].sequence += 1
            self.looked.release()


@pytest.mark.parametrize(("leisure_s", "more"), [(3600.0, False), (0.0, True)])
def test_behind_plain_transactions_one_is_asked_for_at_leisure(
    monkeypatch: pytest.MonkeyPatch, leisure_s: float, more: bool
) -> None:
    """A member that is added waits for a frontier that knows what the others show."""
    monkeypatch.setattr(frontier_asks, "LEISURE_S", leisure_s)
    monkeypatch.setattr(frontier_asks, "INTERVAL_S", 0.0)
    servers: Any = IdleServers()
    asks = FrontierAsks("east", lambda: servers, servers)
    taken: list[events.FrontierAsked] = []
    for _ in range(20):
        assert servers.looked.acquire(timeout=20)
        taken += asks.take_due(START)
        servers.allowed.release()
    asks.close()
    numbers = [each.seen[0].sequence for each in taken]
    assert numbers[:1] == [1]
    assert (len(numbers) > 1) == more, numbers
    assert numbers == sorted(set(numbers)), "each knows more"


def test_what_comes_early_waits_until_one_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no longer: readers wait for the last frontier of many members."""
    monkeypatch.setattr(frontier_asks, "INTERVAL_S", interval_s := 60.0)
    servers: Any = IdleServers()
    asks = FrontierAsks("east", lambda: servers, servers)
    for _ in range(2):
        assert servers.looked.acquire(timeout=20)
        servers.allowed.release()
    asks.close()
    first, *later = servers.waits
    assert first == interval_s / 2
    assert later
    assert all(interval_s / 2 < each <= interval_s for each in later), later


def test_one_waits_for_the_one_before_it(servers: tuple[Servers, FrontierAsks]) -> None:
    said, asks = servers
    for _ in range(5):
        assert said.looked.acquire(timeout=20)
    assert said.said[:3] == ["follow", "prepared", "end"]
    assert asks.take_due(START._replace(asked=events.FrontierAsked((), frozenset(), Lsn(1)))) == []
    (first,) = asks.take_due(START)
    assert first == events.FrontierAsked(
        (events.MemberSeen("west", 1, ""),), frozenset({PreparedIdentity(3, "g")}), Lsn(200)
    )
