"""A TCP proxy on loopback, a process of its own: between the clients and each server stands a front that can cut, freeze, delay or forget their connections.

    python -m chaos.proxy 10001:5432 10002:9092 ...

stdin has one JSON object a line: {"front": 10001, "mode": "pass" | "cut" | "freeze" | "halfopen" | "delay" | "heal", "seconds": 0.1, "target": 5433}; each is answered by a line. It ends when stdin closes.

    cut       connections are reset, new ones too
    freeze    nothing passes, in either direction; what waited passes afterwards
    halfopen  connections that are there, or come meanwhile, never carry a byte again, and neither side is told
    delay     each piece takes that much longer
    heal      all passes, and who still holds a half-open connection is told: brokers that replicate through a front would find out one by one, each when its connection is used again
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Final

FORGOTTEN_S: Final = 20.0
"""A half-open connection is reset after this time, as a system's own timeout for unacknowledged data would."""


class Front:
    """One port, and the server behind it."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self.mode = "pass"
        self.seconds = 0.0
        self._changed = asyncio.Event()
        self._links: set[Link] = set()

    async def listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def change(self, mode: str, seconds: float, target: int | None) -> None:
        self.mode, self.seconds = mode, seconds
        if target is not None and target != self.target:
            self.target = target
            self._reset_all()
        if mode == "cut":
            self._reset_all()
        if mode == "halfopen":
            for link in self._links:
                link.forget()
        if mode == "heal":
            for link in list(self._links):
                if link.forgotten:
                    link.reset()
        self._changed.set()
        self._changed = asyncio.Event()

    def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()

    async def wait_to_pass(self) -> None:
        while self.mode == "freeze":
            await self._changed.wait()
        if self.mode == "delay":
            await asyncio.sleep(self.seconds)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.mode == "cut":
                raise ConnectionRefusedError
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            reset(writer)
            return
        link = Link(self, writer, back)
        self._links.add(link)
        if self.mode == "halfopen":
            link.forget()
        try:
            pumps = [asyncio.ensure_future(link.pump(reader, back)), asyncio.ensure_future(link.pump(there, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        finally:
            link.close()
            self._links.discard(link)


class Link:
    """One connection through a front."""

    def __init__(self, front: Front, *sides: asyncio.StreamWriter) -> None:
        self._front = front
        self._sides = sides
        self.forgotten = False

    def forget(self) -> None:
        self.forgotten = True

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._front.wait_to_pass()
                if self.forgotten:
                    break
                writer.write(data)
                await writer.drain()
        if self.forgotten:
            await asyncio.sleep(FORGOTTEN_S)

    def close(self) -> None:
        """What was written still goes out."""
        for side in self._sides:
            side.close()

    def reset(self) -> None:
        for side in self._sides:
            reset(side)


def reset(side: asyncio.StreamWriter) -> None:
    """At once, and the peer is told so: without lingering, an abort is a RST."""
    connection = side.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.transport.abort()


async def main(pairs: list[str]) -> None:
    fronts = {port: Front(port, target) for port, target in (map(int, pair.split(":")) for pair in pairs)}
    listening = [await front.listen() for front in fronts.values()]
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        wanted = json.loads(line)
        fronts[wanted["front"]].change(wanted["mode"], wanted.get("seconds", 0.0), wanted.get("target"))
        print("done", flush=True)
    for server in listening:
        server.close()


class Proxy:
    """The process, for whoever starts it."""

    def __init__(self, fronts: Mapping[int, int]) -> None:
        command = [sys.executable, "-m", "chaos.proxy", *(f"{front}:{target}" for front, target in fronts.items())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lock = threading.Lock()

    def set(self, front: int, mode: str, *, seconds: float = 0.0, target: int | None = None) -> None:
        """Returns when it is so."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            wanted = {"front": front, "mode": mode, "seconds": seconds, "target": target}
            self._process.stdin.write(json.dumps(wanted) + "\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "done\n", "the proxy has ended"

    def close(self) -> None:
        self._process.communicate()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
