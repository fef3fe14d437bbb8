"""The HTTP server of a running connector: the page, /api/status, /api/wait, /metrics, /healthz,
/readyz. It answers GET and changes nothing.

It is bound to loopback unless configured otherwise; then all but the page and the two probes ask
for the token. Bound to loopback it answers only names of this machine: a web site must not read it
by pointing a name of its own here.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from twofold.config import is_loopback
from twofold.errors import TwofoldError, Unreachable
from twofold.watch.activity_view import ActivityView, Phase
from twofold.watch.visibility import BadQuestion
from twofold_common.http_server import REQUEST_S, LimitedHttpServer
from twofold_common.printable import printable, printable_values
from twofold_common.secret_sources import SecretSource

_log = logging.getLogger(__name__)

_MESSAGES = frozenset({"why", "text", "error"})
"""The names of the status's messages: a refusal has three lines."""
_WORDS: dict[Phase, str] = {
    "starting": "starting",
    "recovering": "recovering",
    "standby": "standing by",
    "running": "running, the slot is held",
    "waiting": "waiting before the next recovery",
    "refused": "refused",
    "failed": "failed",
    "stopped": "stopped",
}


@dataclass(frozen=True, slots=True)
class Health:
    """`healthy`: a restart would not help. `ready`: the connector publishes changes now."""

    healthy: bool
    ready: bool
    why: str


def judge_health(view: ActivityView, *, turn_bound_s: float) -> Health:
    """An idle loop comes round twice a second; a call to Kafka may take it `turn_bound_s`."""
    late_s = view.last_turn_s
    if late_s is not None and late_s > turn_bound_s:
        most = f"{turn_bound_s:.0f} s is the most it may take"
        return Health(healthy=False, ready=False, why=f"stalled: the loop came round {late_s:.0f} s ago, and {most}")
    healthy = view.phase not in {"refused", "failed"}
    return Health(healthy, view.phase == "running", _WORDS[view.phase] + (f": {view.detail}" if view.detail else ""))


AWAITED_S = 3.0
_POLLED_S = 5.0
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
}


@dataclass(frozen=True, slots=True)
class StatusSources:
    """The sources of the server's answers."""

    status: Callable[[float], dict[str, Any]]
    """The argument: samples after this time."""
    metrics: Callable[[], bytes]
    health: Callable[[], Health]
    wait: Callable[[str], dict[str, Any]] = lambda _: {}
    """The argument: the question of /api/wait."""


class StatusServer:
    """Use as a context manager. Raises OSError when the address cannot be had."""

    def __init__(self, host: str, port: int, sources: StatusSources, token: SecretSource | None = None) -> None:
        self.sources = sources
        self.token = token
        self.only_here = is_loopback(host)
        self._polled_at = 0.0
        self._last_from = math.inf  # an answer asked for since then has the last state
        self._has_last = threading.Event()
        self._http = _Http((host, port), self)
        self._thread = threading.Thread(target=self._http.serve_forever, name="status-http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def note_poll(self, asked_at: float) -> None:
        """Note that a page has its answer: as the last one, if it was made after the last state."""
        self._polled_at = time.monotonic()
        if asked_at >= self._last_from:
            self._has_last.set()

    def await_poll(self) -> None:
        """Let a page that is open somewhere see the last state before the process ends."""
        self._last_from = time.monotonic()
        if self._last_from - self._polled_at < _POLLED_S:
            self._has_last.wait(AWAITED_S)

    def __enter__(self) -> StatusServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Http(LimitedHttpServer):
    def __init__(self, address: tuple[str, int], owner: StatusServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = REQUEST_S
    protocol_version = "HTTP/1.1"
    server_version = "twofold"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.note_silent(self.connection)  # the answer has a time of its own
        url, owner = urlsplit(self.path), self.server.owner
        if owner.only_here and not _is_here(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page is for this machine alone: ask for localhost\n")
            return
        match url.path:
            case "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", page())
            case "/healthz" | "/readyz":
                health = owner.sources.health()
                good = health.healthy if url.path == "/healthz" else health.ready
                # These two ask for no token, and the reason of a refusal names tables: it is left
                # out.
                why = health.why if owner.token is None else health.why.partition(":")[0]
                self._send(
                    HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE,
                    "text/plain; charset=utf-8",
                    f"{printable(why, lines=True)}\n".encode(),
                )
            case "/metrics" | "/api/status" | "/api/wait" if not self._may():
                self._send(
                    HTTPStatus.UNAUTHORIZED,
                    "text/plain",
                    b"the token is missing or wrong (status.token_file): Authorization: Bearer <token>\n",
                )
            case "/metrics":
                self._send(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", owner.sources.metrics())
            case "/api/status":
                asked_at = time.monotonic()
                self._send(
                    HTTPStatus.OK,
                    "application/json",
                    json.dumps(printable_values(owner.sources.status(_after(url.query)), _MESSAGES)).encode(),
                )
                owner.note_poll(asked_at)
            case "/api/wait":
                self._answer_wait(url.query)
            case _:
                self._send(
                    HTTPStatus.NOT_FOUND,
                    "text/plain",
                    b"there is /, /api/status, /api/wait, /metrics, /healthz and /readyz\n",
                )

    def _answer_wait(self, question: str) -> None:
        try:
            answer = self.server.owner.sources.wait(question)
        except BadQuestion as error:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())
        except TwofoldError as error:
            self._send(
                HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{printable(str(error))}\n".encode()
            )
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(answer).encode())

    def _may(self) -> bool:
        token = self.server.owner.token
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            return token is None or hmac.compare_digest(given.encode(), token.ask().encode())
        except Unreachable as error:
            _log.warning("nobody may see the status page: %s", error)
            return False

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.server.note_silent(self.connection)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class names it)
        # A query may have what its sender takes for a token.
        _log.debug("%s", re.sub(r"\?\S*", "", format % args))


@cache
def page() -> bytes:
    """The page as one file: page.html with the style and the scripts that lie beside it."""
    text = _part("page.html")
    for name in ("page.css", "page.js", "page_tables.js", "page_in_doubt.js", "page_plots.js"):
        text = text.replace(f"/* {name} */", _part(name))
    return text.encode()


def _part(name: str) -> str:
    return (files("twofold.watch") / name).read_text(encoding="utf-8")


def _is_here(host: str) -> bool:
    return is_loopback((urlsplit(f"//{host}").hostname or "").strip())


def _after(query: str) -> float:
    try:
        return float(parse_qs(query).get("after", ["0"])[0])
    except ValueError:
        return 0.0
