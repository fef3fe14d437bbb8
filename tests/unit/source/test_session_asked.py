"""Which questions of a server a session takes for those of one that shuts down."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from twofold.errors import RunEnded
from twofold.source.session import ReplicationSession

ASKED = b"k" + pack(">QqB", 100, 0, 1)
ROW = b"w" + pack(">QQq", 100, 100, 0) + b"I"


class Asking:
    """In libpq's place: a message that comes at each of these distances, with the clock that goes
    with it.
    """

    def __init__(self, message: bytes, every_s: float) -> None:
        self.now = 0.0
        self.message, self._every_s = message, every_s
        self._there = self._ended = False

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return 0

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        if self._ended:
            return -1, memoryview(b"")
        self._there = not self._there
        if not self._there:
            return 0, memoryview(b"")
        self.now += self._every_s
        return len(self.message), memoryview(self.message)

    def consume_input(self) -> None: ...
    def put_copy_data(self, _: bytes) -> None: ...
    def put_copy_end(self) -> None:
        self._ended = True

    def flush(self) -> int:
        return 0


def opened(monkeypatch: pytest.MonkeyPatch, server: Asking, timeout_s: float) -> ReplicationSession:
    monkeypatch.setattr("twofold.source.session.time", server)
    session = ReplicationSession("", slot="s", publication="p", application_name="a")
    connection: Any = SimpleNamespace(pgconn=server, close=lambda: None)
    session._connection = connection
    session._timeout_s = timeout_s
    return session


def read(session: ReplicationSession, times: int) -> None:
    for _ in range(times):
        session.read(rows_max=1, bytes_max=1 << 20, wait_s=0)


@pytest.mark.parametrize(("every_s", "timeout_s"), [(0.0001, 60.0), (0.05, 60.0), (0.05, 1.0), (0.05, 0.0)])
def test_one_that_asks_as_soon_as_it_is_answered_is_let_go(
    every_s: float, timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Asking(ASKED, every_s)
    session = opened(monkeypatch, server, timeout_s)
    with pytest.raises(RunEnded, match="is shutting down and waits for slot"):
        read(session, 100_000)
    assert 2 < server.now < 6
    with pytest.raises(RunEnded, match="not open"):
        read(session, 1)


@pytest.mark.parametrize("timeout_s", [0.02, 1.0, 60.0])
def test_one_that_asks_by_its_timeout_is_answered_for_ever(timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Asking(ASKED, timeout_s / 2)
    read(opened(monkeypatch, server, timeout_s), 10_000)
    assert server.now > 50


def test_rows_between_the_questions_are_no_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Asking(ASKED, 0.05)
    session = opened(monkeypatch, server, 60.0)
    for _ in range(200):
        server.message = ASKED
        read(session, 50)
        server.message = ROW
        read(session, 1)
    assert server.now > 400
