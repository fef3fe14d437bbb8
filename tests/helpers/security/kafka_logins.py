"""Stands before a broker, passes everything on, and reads which tokens the broker accepts."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SASL_AUTHENTICATE = 36
_TOKEN = re.compile(rb"auth=Bearer ([^\x01]+)")


@contextmanager
def watched(port: int, note: Callable[[str, bool], None]) -> Iterator[int]:
    """Yield the port to connect to; `note` gets each token, and whether it was accepted."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_join, args=(client, port, note), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def _join(client: socket.socket, port: int, note: Callable[[str, bool], None]) -> None:
    with client, suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
        logins: dict[int, str] = {}

        def look_at_request(frame: bytes) -> None:
            key, _, correlation = struct.unpack(">hhi", frame[:8])
            if key == _SASL_AUTHENTICATE and (found := _TOKEN.search(frame)):
                logins[correlation] = found[1].decode()

        def look_at_answer(frame: bytes) -> None:
            correlation, error = struct.unpack(">ih", frame[:6])
            if (token := logins.pop(correlation, None)) is not None:
                # A denial comes as JSON in an answer without an error; only the next one has it.
                note(token, error == 0 and b'"status"' not in frame)

        answers = threading.Thread(target=_pass_on, args=(server, client, look_at_answer), daemon=True)
        answers.start()
        _pass_on(client, server, look_at_request)
        answers.join()


def _pass_on(source: socket.socket, target: socket.socket, look: Callable[[bytes], None]) -> None:
    """Frame by frame; when one side ends, both do."""
    with suppress(OSError):
        while size := _exactly(source, 4):
            frame = _exactly(source, int.from_bytes(size, "big"))
            look(frame)
            target.sendall(size + frame)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


def _exactly(source: socket.socket, size: int) -> bytes:
    """All of it, or nothing if the side has ended."""
    data = b""
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return data
