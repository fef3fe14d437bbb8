"""Many questions go over few connections to a registry, and a lost connection loses none."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from helpers.security.guards import Handler, served
from twofold_common.registry_http import RegistryAway, RegistryHttp, RegistryRefusal


@dataclass
class Server:
    """Answers each question with its path, and counts the connections."""

    connections: int = 0
    asked: list[str] = field(default_factory=list)
    closes_after: int = 0
    """It closes each connection silently behind so many answers; 0: never."""
    status: int = 200
    together: threading.Barrier | None = None

    @contextmanager
    def listen(self) -> Iterator[str]:
        server = self

        class Answers(Handler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.answered = 0
                server.connections += 1

            def do_GET(self) -> None:
                if server.together is not None:
                    server.together.wait(20)
                server.asked.append(self.path)
                content = json.dumps({"path": self.path, "error_code": 40401, "message": "none"})
                self.answer(content.encode(), server.status)
                self.answered += 1
                self.close_connection = self.answered == server.closes_after

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

        with served(Answers) as port:
            yield f"http://127.0.0.1:{port}/api"


def client(url: str) -> RegistryHttp:
    return RegistryHttp(url, request_timeout_s=5, patience_s=1)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_one_connection_serves_questions_of_all_kinds() -> None:
    server = Server()
    with server.listen() as url:
        http = client(url)
        assert http.ask("/subjects")["path"] == "/api/subjects"
        assert http.ask("/subjects/a", b"{}")["path"] == "/api/subjects/a"
        server.status = 404
        with pytest.raises(RegistryRefusal) as refused:
            http.ask("/subjects/b")
        assert refused.value.is_absent
        server.status = 200
        http.ask("/subjects")
    assert server.connections == 1


def test_questions_side_by_side_have_a_connection_each() -> None:
    server = Server(together=threading.Barrier(3))
    with server.listen() as url, ThreadPoolExecutor(3) as pool:
        http = client(url)
        for _ in range(4):
            assert len(list(pool.map(http.ask, ("/a", "/b", "/c")))) == 3
    assert server.connections == 3
    assert sorted(server.asked) == sorted(["/api/a", "/api/b", "/api/c"] * 4)


def test_a_question_over_a_connection_that_was_closed_is_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waited"))
    server = Server(closes_after=2)
    with server.listen() as url:
        http = client(url)
        assert [http.ask(f"/{n}")["path"] for n in range(5)] == [f"/api/{n}" for n in range(5)]
    assert server.connections == 3
    assert len(server.asked) == 5


def test_a_server_that_is_gone_is_away() -> None:
    with Server(closes_after=1).listen() as url:
        http = client(url)
        http.ask("/a")
    with pytest.raises(RegistryAway, match="Connection refused"):
        http.ask("/a")


def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    with server.listen() as url:
        http = client(url)
        http.ask("/a")
        later = time.monotonic() + 6
        monkeypatch.setattr("time.monotonic", lambda: later)
        http.ask("/b")
    assert server.connections == 2


def test_a_proxy_is_asked_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, server = Server(), Server()
    with proxy.listen() as url, server.listen() as direct:
        monkeypatch.setenv("http_proxy", url.removesuffix("/api"))
        assert client("http://registry.invalid:8081").ask("/a")["path"] == "http://registry.invalid:8081/a"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        http = client(direct)
        http.ask("/a")
        http.ask("/b")
    assert proxy.asked == ["http://registry.invalid:8081/a"]
    assert (server.asked, server.connections) == (["/api/a", "/api/b"], 1)
