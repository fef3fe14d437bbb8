"""Servers of a few lines that stand before real ones: what they let through is what the test expects of a client."""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from certificates import Authority


def basic(user: str, password: str) -> str:
    """The Authorization that a user and a password make."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def guarded(url: str, authorization: str, authority: Authority) -> Iterator[str]:
    """Passes requests with the right Authorization on to a registry, over TLS; answers 401 to all others."""
    target = urlsplit(url)

    class Gate(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = 401, b'{"error_code": 401, "message": "who are you?"}'
            if self.headers.get("Authorization") == authorization:
                inner = http.client.HTTPConnection(target.hostname or "", target.port, timeout=10)
                inner.request(self.command, target.path + self.path, body, {"Content-Type": "application/json"})
                response = inner.getresponse()
                status, answer = response.status, response.read()
                inner.close()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("registry"))
    with served(Gate, context) as port:
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
