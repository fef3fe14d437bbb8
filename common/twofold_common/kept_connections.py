"""Connections to one HTTP server that are used again: a start asks a registry thousands of short
questions, and a new connection, with its handshake, costs more than a question does.

A connection that another party has closed meanwhile is noticed at its next use. The question is
then sent again over a new connection, so it must be one that may be sent twice.
"""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.request
import weakref
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_IDLE_S: Final = 5.0
"""After this time a connection is closed and not used: what lies between may have forgotten it, and
then nobody would answer."""


class Answer(NamedTuple):
    status: int
    reason: str
    content: bytes


class KeptConnections:
    """Several threads may use it; each question has a connection for itself."""

    def __init__(self, url: str, *, timeout_s: float, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._server = parts.netloc
        self._path = parts.path
        self._timeout_s = timeout_s
        self._context = context
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        weakref.finalize(self, _close_all, self._idle)

    def ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Return the server's answer, whatever its status is; nothing is redirected."""
        if (kept := self._take_idle()) is not None:
            try:
                return self._exchange(kept, method, path, body, headers)
            except OSError as error:
                _close_all(self._idle)  # what happened to this connection has happened to the others
                if not isinstance(error, ConnectionError):
                    raise
        return self._exchange(self._connect(), method, path, body, headers)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        try:
            connection.request(method, self._path + path, body, dict(headers))
            response = connection.getresponse()
            answer = Answer(response.status, response.reason, response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append((time.monotonic(), connection))
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._server, timeout=self._timeout_s)
        return http.client.HTTPSConnection(self._server, timeout=self._timeout_s, context=self._context)

    def _take_idle(self) -> http.client.HTTPConnection | None:
        """Take the connection that was used last; None if no young one is idle."""
        try:
            used_at, connection = self._idle.pop()
        except IndexError:
            return None
        if time.monotonic() - used_at < _IDLE_S:
            return connection
        connection.close()
        _close_all(self._idle)  # they are older
        return None


def is_direct(url: str) -> bool:
    """Whether this machine reaches a URL without a proxy."""
    parts = urlsplit(url)
    return parts.scheme not in urllib.request.getproxies() or bool(urllib.request.proxy_bypass(parts.netloc))


def _close_all(idle: list[tuple[float, http.client.HTTPConnection]]) -> None:
    while idle:
        try:
            _, connection = idle.pop()
        except IndexError:  # another thread has taken the last one
            return
        connection.close()
