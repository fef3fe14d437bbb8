"""A client's connection to a broker, frame by frame: some requests are withheld, and reach the
broker when their client has long gone on by another connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

from chaos.link import FORGOTTEN_S, Link, Passage, Side, reset
from late.frames import Request, correlation_of, read_errors, read_request
from late.rules import Cut, Rule
from late.withheld import Held, Withheld


class KafkaLink(Link):
    """One connection through a front that has a broker behind it."""

    def __init__(self, front: Passage, client: Side, server: Side, withheld: Withheld) -> None:
        super().__init__(front, client, server)
        self._withheld = withheld
        self._pending: dict[int, Request] = {}
        """Requests whose answers are looked at, by their correlation ids."""
        self._held: Held | None = None
        self._losing: tuple[Rule, Request] | None = None
        """Whose answer will be lost."""
        self._deaf = False
        """The client has gone: what the broker still answers is nobody's."""
        self._broker_left = False

    async def run(self) -> None:
        """Return when one side has ended, and what is withheld has been delivered."""
        answers = asyncio.ensure_future(self._answers())
        requests = asyncio.ensure_future(self._requests())
        await asyncio.wait([answers, requests], return_when=asyncio.FIRST_COMPLETED)
        self._withheld.reaped += answers.done() and not requests.done() and self._losing is None
        if self._held is not None and not self._broker_left:
            over = asyncio.ensure_future(self._held.over.wait())
            await asyncio.wait([answers, over], return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
        for pump in (answers, requests):
            pump.cancel()
        if self._held is not None:
            self._broker_left = True
            if not self._held.answer.done():
                self._held.answer.set_result(None)

    async def _requests(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                body = await self._read(self.client.reader)
                request = read_request(body)
                rule = await self._withheld.requested(request) if request is not None else None
                if request is None or rule is None:
                    await self._send(body, request)
                elif rule.cut is Cut.LOST:
                    self._losing = rule, request
                    await self._send(body, request)
                elif not await self._withhold(rule, body, request):
                    return

    async def _withhold(self, rule: Rule, body: bytes, request: Request) -> bool:
        """False: the client's connection is closed. What the client sends behind it waits, as in
        TCP.
        """

        def send() -> bool:
            if self._broker_left:
                return False
            self._pending[request.correlation] = request
            _write(self.server.writer, body)
            return True

        self._held = self._withheld.hold(rule, request, send)
        if rule.cut is not Cut.HOLD:
            self._deaf = True
            if rule.cut is Cut.RST:
                reset(self.client.writer)
            else:
                self.client.writer.close()
            return False
        await self._held.over.wait()
        self._held = None
        return True

    async def _send(self, body: bytes, request: Request | None) -> None:
        if request is not None:
            self._pending[request.correlation] = request
        _write(self.server.writer, body)
        await self.server.writer.drain()

    async def _answers(self) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                while True:
                    body = await self._read(self.server.reader)
                    request = self._pending.pop(correlation_of(body), None)
                    if request is not None:
                        await self._look(request, body)
                    if self._losing is not None and request is self._losing[1]:
                        self._withheld.lost(*self._losing)
                        reset(self.client.writer)
                        return
                    if not self._deaf:
                        _write(self.client.writer, body)
                        await self.client.writer.drain()
        finally:
            self._broker_left = True

    async def _look(self, request: Request, body: bytes) -> None:
        errors = read_errors(request, body)
        if self._held is not None and request is self._held.request:
            if not self._held.answer.done():  # it may have come too late even for the proxy
                self._held.answer.set_result(errors)
        else:
            await self._withheld.answered(request, errors)

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """One frame, when the front lets it pass."""
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        body = await reader.readexactly(size)
        await self.front.wait_to_pass()
        if self.forgotten:
            await asyncio.sleep(FORGOTTEN_S)
            raise EOFError
        return body


def _write(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(len(body).to_bytes(4, "big") + body)
