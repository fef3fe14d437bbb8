"""A connection through a front of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Final, Protocol

FORGOTTEN_S: Final = 20.0
"""A half-open connection is reset after this time, as a system's own timeout for unacknowledged
data would.
"""


class Passage(Protocol):
    """The front, as its connections know it."""

    async def wait_to_pass(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Side:
    """One of a connection's two ends."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Link:
    """One connection through a front."""

    def __init__(self, front: Passage, client: Side, server: Side) -> None:
        self.front = front
        self.client = client
        self.server = server
        self.forgotten = False

    def forget(self) -> None:
        self.forgotten = True

    async def run(self) -> None:
        """Return when one side has ended."""
        pumps = [
            asyncio.ensure_future(self._pump(self.client.reader, self.server.writer)),
            asyncio.ensure_future(self._pump(self.server.reader, self.client.writer)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self.front.wait_to_pass()
                if self.forgotten:
                    break
                writer.write(data)
                await writer.drain()
        if self.forgotten:
            await asyncio.sleep(FORGOTTEN_S)

    def close(self) -> None:
        """What was written still goes out."""
        for side in (self.client, self.server):
            side.writer.close()

    def reset(self) -> None:
        for side in (self.client, self.server):
            reset(side.writer)


def reset(side: asyncio.StreamWriter) -> None:
    """At once, and the peer is told so: without lingering, an abort is a RST."""
    connection = side.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.transport.abort()
