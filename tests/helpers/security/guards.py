"""Servers of a few lines that stand before real ones, and let through what the test expects of a
client, or what it leaves of a connection.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from helpers.security.certificates import Authority


class Handler(BaseHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *_: object) -> None: ...

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def basic(user: str, password: str) -> str:
    """The Authorization that a user and a password make."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def guarded(url: str, authorization: str | Callable[[str], bool], authority: Authority) -> Iterator[str]:
    """Passes requests with the right Authorization on to a registry, over TLS; answers 401 to all
    others.

    What is right may change: a callable then judges each request.
    """
    target = urlsplit(url)
    is_right = authorization if callable(authorization) else authorization.__eq__

    class Guard(Handler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = 401, b'{"error_code": 401, "message": "who are you?"}'
            if is_right(self.headers.get("Authorization", "")):
                inner = http.client.HTTPConnection(target.hostname or "", target.port, timeout=10)
                inner.request(self.command, target.path + self.path, body, {"Content-Type": "application/json"})
                response = inner.getresponse()
                status, answer = response.status, response.read()
                inner.close()
            self.answer(answer, status)

        do_POST = do_PUT = do_GET  # noqa: N815

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("registry"))
    with served(Guard, context) as port:
        yield f"https://localhost:{port}"


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port on which a thread answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Door:
    """Passes connections on to the real registry while it is open; shut, it refuses them, as the
    port of a server that was killed does.

    `to_lose`: so many of the next answers are lost on the way, with their connections. `requests`:
    the first line of each request that was passed on.
    """

    def __init__(self, url: str) -> None:
        self.to_lose = 0
        self.requests: list[bytes] = []
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
                if not data.startswith(b"HTTP/"):
                    self.requests.append(data.partition(b"\r\n")[0])
                if self.to_lose and data.startswith(b"HTTP/"):
                    self.to_lose -= 1
                    break
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
