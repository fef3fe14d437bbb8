"""When a frontier is asked for, in which order, and that one waits for the one before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from twofold.bridge import events, initial
from twofold.runner.frontier_asks import FrontierAsks, is_needed
from twofold.sink.member_commits import MemberView
from twofold_common.positions import Lsn, PreparedIdentity

START = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=7, pool=2)


def test_it_is_needed_at_the_beginning_and_behind_every_branch() -> None:
    views = {"east": MemberView(sequence=9, branch=4), "west": MemberView(sequence=5, branch=0)}
    assert is_needed(views, None)
    assert not is_needed(views, {"east": 4, "west": 0})
    assert is_needed(views, {"east": 3, "west": 5})


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
        view.sequence = view.branch = view.branch + 1
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


def test_one_waits_for_the_one_before_it(servers: tuple[Servers, FrontierAsks]) -> None:
    said, asks = servers
    for _ in range(5):
        assert said.looked.acquire(timeout=20)
    assert said.said[:3] == ["follow", "prepared", "end"]
    assert asks.take_due(START._replace(asked=events.FrontierAsked((), frozenset(), Lsn(1)))) == []
    (first,) = asks.take_due(START)
    assert first == events.FrontierAsked((("west", 1),), frozenset({PreparedIdentity(3, "g")}), Lsn(200))
