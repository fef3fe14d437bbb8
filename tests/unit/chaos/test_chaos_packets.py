"""What vanishes on its way arrives when the way is there again, though its sender has closed the
connection: tried in a network namespace, on the kernel that runs the suite.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import packets

TESTS = Path(__file__).parents[2]
PROGRAM = """
import os, socket, subprocess, threading
from chaos import packets

assert not packets.moved()
packets.move_into_namespace()
assert packets.moved()
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
client = socket.create_connection(("127.0.0.1", port))
server = listening.accept()[0]
client.sendall(b"before")
assert server.recv(100) == b"before"
assert not packets.lose([os.getpid()], [], 0, 0.1), "no such connection"
assert not packets.lose([os.getpid()], [port], 0, 0.5), "nothing was sent"
client.sendall(b"busy again")
assert server.recv(100) == b"busy again"

def write_and_leave():
    while b"blackhole" not in subprocess.run(["ip", "rule"], capture_output=True, check=True).stdout:
        pass
    client.sendall(b"late")
    client.close()

threading.Thread(target=write_and_leave, daemon=True).start()
assert packets.lose([os.getpid()], [port], 0, 3.0)
server.settimeout(20)
assert server.recv(100) == b"late"
assert server.recv(100) == b""
print("as it should be")
"""


@pytest.mark.skipif(not packets.can_be_lost(), reason="no network namespaces for this user")
def test_what_a_closed_connection_had_sent_arrives_late() -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    assert done.stdout == "as it should be\n", done.stderr


SS = "ESTAB 0 6 127.0.0.1:35186 127.0.0.1:9092 users:((\"python\",pid=4701,fd=8),(\"python\",pid=4644,fd=8)) cubic wscale:10,10 rto:816 {}lastsnd:236 lastrcv:12"  # fmt: skip


@pytest.mark.parametrize(("more", "resent"), [("", False), ("backoff:2 ", True)])
def test_a_line_of_ss_is_read(more: str, resent: bool) -> None:
    assert packets.parse(SS.format(more), [9092]) == packets.Flow(frozenset({4644, 4701}), 35186, 236, resent)
    assert packets.parse(SS.format(more), [9093]) is None
