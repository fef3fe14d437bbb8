"""A RADIUS server: PostgreSQL asks it whether a password is right, so that many are at a time."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SHARED = b"between-PostgreSQL-and-this-server"
"""PostgreSQL takes no spaces in it."""
_ACCEPT, _REJECT = 2, 3
_USER_PASSWORD = 2
_BLOCK = 16


@contextmanager
def radius(is_right: Callable[[str], bool]) -> Iterator[str]:
    """Yield the method and its options, as pg_hba.conf has them."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=_serve, args=(server, is_right))
    thread.start()
    port = server.getsockname()[1]
    try:
        yield f'radius radiusservers="127.0.0.1" radiussecrets="{_SHARED.decode()}" radiusports="{port}"'
    finally:
        server.sendto(b"", ("127.0.0.1", port))
        thread.join()
        server.close()


def _serve(server: socket.socket, is_right: Callable[[str], bool]) -> None:
    while True:
        request, asker = server.recvfrom(4096)
        if not request:
            return
        code = _ACCEPT if is_right(_password(request)) else _REJECT
        head = struct.pack(">BBH", code, request[1], 20)
        server.sendto(head + hashlib.md5(head + request[4:20] + _SHARED).digest(), asker)


def _password(request: bytes) -> str:
    place, hidden = 20, b""
    while place < len(request):
        kind, size = request[place], request[place + 1]
        if kind == _USER_PASSWORD:
            hidden = request[place + 2 : place + size]
        place += size
    plain, before = b"", request[4:20]
    for start in range(0, len(hidden), _BLOCK):
        block = hidden[start : start + _BLOCK]
        mask = hashlib.md5(_SHARED + before).digest()
        plain += bytes(a ^ b for a, b in zip(block, mask, strict=True))
        before = block
    return plain.rstrip(b"\0").decode()
