"""The registry goes away while rows are written: what needs no new schema goes on, what does waits, nothing is lost, and all is there when it is back. Answers get lost: nobody waits for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from connector_topics import Reader, Seen
from fix_connector import Maker
from twofold.errors import Unreachable
from twofold.sink.registry import Registry, RegistrySettings


class Door:
    """Passes connections on to the real registry while it is open; shut, it refuses them, as the port of a server that was killed does.

    `to_lose`: so many of the next answers are lost on the way.
    """

    def __init__(self, url: str) -> None:
        self.to_lose = 0
        self._target = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.url = self._target._replace(netloc=f"127.0.0.1:{self._port}").geturl()
        self._open: list[socket.socket] = []
        self._serve()

    def _serve(self) -> None:
        listener = self._listener

        def accept() -> None:
            with suppress(OSError):  # shut
                while True:
                    inside, _ = listener.accept()
                    outside = socket.create_connection((self._target.hostname or "", self._target.port or 80))
                    self._open += [inside, outside]
                    for pair in ((inside, outside), (outside, inside)):
                        threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def shut(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):  # closed by the other side before
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open.clear()

    def reopen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._serve()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.to_lose and data.startswith(b"HTTP/"):
                    self.to_lose -= 1
                else:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def door(registry: Any) -> Iterator[Door]:
    made = Door(registry.url)
    yield made
    made.shut()


def test_a_lost_answer_is_asked_for_again_and_not_for_ever(door: Door, registry: Any, prefix: str) -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}'
    client = Registry(RegistrySettings(door.url, 2.0))
    door.to_lose = 1
    known = client.register(f"{prefix}-value", schema)
    assert door.to_lose == 0
    door.to_lose = 100
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer: "):
        client.versions(f"{prefix}-value")
    assert time.monotonic() - begun < 4
    door.to_lose = 0
    assert client.known_id(f"{prefix}-value", schema) == known


def has(key: int) -> Callable[[Seen], bool]:
    return lambda s: bool(s.value and s.value["after"]["id"] == key)


def test_publishing_resumes_where_it_stopped(connector: Maker, door: Door, registry: Any) -> None:
    here = connector(registry_server=door, registry={"timeout": 1.0})
    here.reader = Reader(here.reader.bootstrap, registry.url)  # the test's own eyes stay open
    run = here.start()
    here.sql("INSERT INTO account VALUES (1, 1, 'x')")
    tail = here.tail("account")
    assert tail.wait_for(has(1))

    door.shut()
    here.sql("INSERT INTO account VALUES (2, 1, 'a known schema')")
    assert tail.wait_for(has(2))
    here.prepare("known", "INSERT INTO account VALUES (3, 1, 'a known schema')")
    here.sql("COMMIT PREPARED 'known'")
    assert tail.wait_for(has(3))
    assert "does not answer" not in run.said()

    here.prepare("new", "ALTER TABLE account ADD more int", "INSERT INTO account VALUES (4, 1, 'a new schema', 4)")
    here.sql("COMMIT PREPARED 'new'", "INSERT INTO account VALUES (5, 1, 'behind it', 5)")
    run.wait_for("does not answer: ")
    tail.to_end()
    assert not [s for s in tail.seen if has(4)(s) or has(5)(s)]

    door.reopen()
    assert tail.wait_for(has(5), within_s=40)
    assert not run.dead
    here.check()
