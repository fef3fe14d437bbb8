"""An HTTP server that keeps its process's descriptors: few connections, each for a limited time.

Whoever reaches its port may connect as often, and send as slowly, as he likes. Each connection
takes a descriptor and a thread, and the process needs its own.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_log = logging.getLogger(__name__)

REQUEST_S = 10.0
"""The time that a connection may take for its next request, and then for its answer."""
CONNECTIONS_MAX = 64


class LimitedHttpServer(ThreadingHTTPServer):
    """Serves few connections, each for a limited time without a request.

    Of too many the one is ended that has been silent the longest: a probe is always let in.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._silent_since: dict[socket.socket, float] = {}
        """The connections, in the order of their last answers."""
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.note_silent(request)
        super().process_request(request, client_address)

    def note_silent(self, connection: socket.socket) -> None:
        """Note that a connection has begun, or has its answer."""
        with self._lock:
            self._silent_since.pop(connection, None)
            while len(self._silent_since) >= CONNECTIONS_MAX:
                self._end(next(iter(self._silent_since)))
            self._silent_since[connection] = time.monotonic()

    def service_actions(self) -> None:
        """End who is too slow. The base class calls this twice a second."""
        overdue = time.monotonic() - REQUEST_S
        with self._lock:
            for connection in [each for each, since in self._silent_since.items() if since < overdue]:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """End a connection; its thread then closes it."""
        del self._silent_since[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._silent_since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  (the base class names it)
        _log.debug("a reader went away", exc_info=True)
