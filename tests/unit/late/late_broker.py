"""A broker's place for tests of the proxy: it answers every transactional request with success, and
remembers what came in which order.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def end_txn(correlation: int, commit: bool, transactional_id: str = "x.main") -> bytes:
    """Version 1, epoch 3."""
    head = struct.pack(">hhi", 26, 1, correlation) + text("client")
    return head + text(transactional_id) + struct.pack(">qhb", 7, 3, commit)


def add_partitions(correlation: int, topic: str = "rows", transactional_id: str = "x.main") -> bytes:
    """Version 0, epoch 3, partition 0."""
    head = struct.pack(">hhi", 24, 0, correlation) + text("client")
    return head + text(transactional_id) + struct.pack(">qhi", 7, 3, 1) + text(topic) + struct.pack(">ii", 1, 0)


def receive(connection: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = connection.recv(size - len(got))
            if not piece:
                raise EOFError
            got += piece
        return got

    return exactly(int.from_bytes(exactly(4), "big"))


def send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(len(body).to_bytes(4, "big") + body)


class Broker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.seen: list[tuple[int, int]] = []
        """Connection and correlation id, in order."""

    def run(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                number += 1
                threading.Thread(target=self._answer, args=(connection, number), daemon=True).start()

    def _answer(self, connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            while True:
                api, _, correlation = struct.unpack_from(">hhi", receive(connection))
                self.seen.append((number, correlation))
                answer = struct.pack(">ii", correlation, 0)
                if api == 24:
                    answer += struct.pack(">i", 1) + text("rows") + struct.pack(">iih", 1, 0, 0)
                elif api == 26:
                    answer += struct.pack(">h", 0)
                send(connection, answer)
