"""Asks a test's token server for a secret: as a command, and as the callable that Kafka's client is
given. It imports little, because it starts often.

    python -IS ask_secret.py 127.0.0.1:1234 postgres
"""

from __future__ import annotations

import socket
import sys


def ask(address: str, name: str) -> tuple[str, float]:
    """Return a secret, and when it expires."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(f"GET /{name} HTTP/1.0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    secret, expires = answer.partition(b"\r\n\r\n")[2].decode().split()
    return secret, float(expires)


def give(address: str) -> tuple[str, float]:
    return ask(address, "kafka")


if __name__ == "__main__":
    print(ask(*sys.argv[1:])[0])
