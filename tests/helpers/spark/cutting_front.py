"""A front of a PostgreSQL that cuts a connection off at a COMMIT: before the server has it, or
before the client has its answer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

from psycopg import conninfo

Lost = Literal["the COMMIT", "its answer"]


class CuttingFront:
    """Passes everything on until a connection has sent `mark`: its next request is the COMMIT."""

    def __init__(self, target: str, mark: bytes, lost: Lost) -> None:
        parts = conninfo.conninfo_to_dict(target)
        self._behind = str(parts["host"]), int(parts["port"] or 0)
        self._mark = mark
        self._lost = lost
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self.conninfo = conninfo.make_conninfo(target, port=self._listener.getsockname()[1])
        self.has_cut = False

    def __enter__(self) -> CuttingFront:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            _end(each)
        for thread in self._threads:
            thread.join(10)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._behind)
                self._sockets += client, server
                committing = threading.Event()
                self._start(partial(self._take_requests, client, server, committing))
                self._start(partial(self._take_answers, client, server, committing))

    def _take_requests(self, client: socket.socket, server: socket.socket, committing: threading.Event) -> None:
        is_marked = False
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if is_marked and not self.has_cut:
                    if self._lost == "the COMMIT":
                        self.has_cut = True
                        break
                    committing.set()
                is_marked = self._mark in data
                server.sendall(data)
        _end(client)
        _end(server)

    def _take_answers(self, client: socket.socket, server: socket.socket, committing: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if committing.is_set():
                    self.has_cut = True
                    break
                client.sendall(data)
        _end(client)
        _end(server)


def _end(each: socket.socket) -> None:
    """Close it, and wake whoever waits for it."""
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
