"""Who connects slowly, or often, keeps nobody from the page: a probe is answered, and the product
keeps its descriptors.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from fixtures.connector import wait_until
from twofold.errors import Unreachable
from twofold.source.connection import connect_error
from twofold.watch.server import Health, StatusServer, StatusSources
from twofold_common import http_server

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def served() -> Iterator[StatusServer]:
    sources = StatusSources(lambda _: {}, lambda: b"", lambda: Health(True, True, "up"))
    with StatusServer("127.0.0.1", 0, sources) as server:
        yield server


def healthy(server: StatusServer) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=5) as answer:
        return bool(answer.status == 200)


def test_many_slow_connections_keep_no_probe_away(served: StatusServer) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    with ExitStack() as opened:
        connections = [
            opened.enter_context(socket.create_connection(("127.0.0.1", served.port), 5)) for _ in range(200)
        ]
        for each in connections:
            each.sendall(HALF)
        assert healthy(served)
        assert healthy(served)
        most = before + len(connections) + http_server.CONNECTIONS_MAX + 3
        wait_until(lambda: len([*Path("/proc/self/fd").iterdir()]) <= most, within_s=5)


def test_a_request_has_a_time(served: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte of it comes."""
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)
    with socket.create_connection(("127.0.0.1", served.port), 5) as slow:
        slow.sendall(HALF)
        slow.settimeout(0.1)
        begun = time.monotonic()
        while time.monotonic() < begun + 10:
            try:
                slow.sendall(b"X")
                if not slow.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() < begun + 5


def test_a_page_that_asks_again_keeps_its_connection(served: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 1.0)
    with socket.create_connection(("127.0.0.1", served.port), 5) as kept:
        begun = time.monotonic()
        while time.monotonic() < begun + 2:
            kept.sendall(HALF + b"\r\n")
            got = b""
            while not got.endswith(b"up\n"):
                part = kept.recv(4096)
                assert part, "it was ended"
                got += part
            time.sleep(0.2)


def test_the_log_has_no_secret_of_a_query(served: StatusServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        urllib.request.urlopen(f"http://127.0.0.1:{served.port}/?token=hunter2", timeout=5).close()
        wait_until(lambda: "GET /" in caplog.text)
    assert "hunter2" not in caplog.text


def test_a_process_without_descriptors_says_so() -> None:
    error = psycopg.OperationalError("connection failed: could not create socket: Too many open files")
    told = connect_error("host=db dbname=bank", error)
    assert isinstance(told, Unreachable)
    assert "has no file descriptor left" in str(told)
    assert "LimitNOFILE" in str(told)
    assert "start PostgreSQL" not in str(told)


def test_the_last_state_is_seen_before_the_page_goes() -> None:
    """Also where an answer with the state before is still on its way."""
    asked, may_answer, ended = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def status(_: float) -> dict[str, str]:
        asked.release()
        assert may_answer.acquire(timeout=10)
        return {}

    sources = StatusSources(status, lambda: b"", lambda: Health(True, True, "up"))
    with StatusServer("127.0.0.1", 0, sources) as server, ThreadPoolExecutor(3) as together:

        def poll() -> bytes:
            return bytes(urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/status", timeout=10).read())

        def end() -> None:
            server.await_poll()
            ended.set()

        server.note_poll(0)
        before = together.submit(poll)
        assert asked.acquire(timeout=10)
        going = together.submit(end)
        wait_until(lambda: server._last_from < math.inf)
        may_answer.release()
        before.result()
        assert not ended.wait(0.3)
        last = together.submit(poll)
        may_answer.release()
        going.result()
        assert last.result() == b"{}"
