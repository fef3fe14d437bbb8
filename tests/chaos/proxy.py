"""A TCP proxy on loopback, a process of its own: between the clients and each server stands a
front that can cut, freeze, delay or forget their connections.

    python -m chaos.proxy 10001:5432 10002:9092:kafka ... [--events FILE]

stdin has one JSON object a line, and each is answered by a line; the process ends when stdin
closes.

    {"front": 10001, "mode": "pass" | "cut" | "freeze" | "halfopen" | "delay" | "heal",
     "seconds": 0.1, "target": 5433}

    cut       connections are reset, new ones too
    freeze    nothing passes, in either direction; what waited passes afterwards
    halfopen  present and new connections never transfer a byte again; neither side is told
    delay     each piece takes that much longer
    heal      all passes, and whoever holds a half-open connection is told: brokers that replicate
              through a front would find out one by one, each at the next use of its connection

A front that ends in `:kafka` knows Kafka's frames. There a chosen request is withheld, its client's
connection is closed or not, and the broker receives it later, on the old connection: each request
at most once, in order, as a network or a slow broker may deliver it (`late.rules`). All such fronts
share what they know of a transactional id.

    {"rules": [...]}     withhold by these rules from now on
    {"release": "name"}  deliver what the rule of that name withholds
    {"counts": true}     what was withheld, delivered and answered (`late.withheld`)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from chaos.link import Link, Side, reset
from late.link import KafkaLink
from late.rules import Rule
from late.withheld import Withheld


class Front:
    """One port, and the server behind it."""

    def __init__(self, port: int, target: int, withheld: Withheld | None) -> None:
        self.port = port
        self.target = target
        self.mode = "pass"
        self.seconds = 0.0
        self._changed = asyncio.Event()
        self._links: set[Link] = set()
        self._withheld = withheld

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
        client, server = Side(reader, writer), Side(there, back)
        link = Link(self, client, server) if self._withheld is None else KafkaLink(self, client, server, self._withheld)
        self._links.add(link)
        if self.mode == "halfopen":
            link.forget()
        try:
            with contextlib.suppress(
                asyncio.CancelledError
            ):  # the process ends; asyncio would report a cancelled handler
                await link.run()
        finally:
            link.close()
            self._links.discard(link)


class Proxied:
    """All fronts of a process, and what is withheld at any of them."""

    def __init__(self, pairs: list[str], events: str | None) -> None:
        # The file stays open as long as the process runs.
        self.withheld = Withheld(Path(events).open("a", buffering=1) if events else None)  # noqa: SIM115
        self.fronts: dict[int, Front] = {}
        for pair in pairs:
            port, target, *kafka = pair.split(":")
            self.fronts[int(port)] = Front(int(port), int(target), self.withheld if kafka else None)

    async def obey(self, wanted: dict[str, Any]) -> Any:
        """The answer to a line of stdin."""
        if "rules" in wanted:
            return self.withheld.replace_rules([Rule.of(each) for each in wanted["rules"]])
        if "release" in wanted:
            return await self.withheld.release(wanted["release"])
        if "counts" in wanted:
            return {"counts": self.withheld.counts(), "waiting": self.withheld.waiting, "reaped": self.withheld.reaped}
        return self.fronts[wanted["front"]].change(wanted["mode"], wanted.get("seconds", 0.0), wanted.get("target"))


async def main(pairs: list[str], events: str | None) -> None:
    proxied = Proxied(pairs, events)
    listening = [await front.listen() for front in proxied.fronts.values()]
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        print(json.dumps(await proxied.obey(json.loads(line))), flush=True)
    for server in listening:
        server.close()


class Proxy:
    """The process, for whoever starts it.

    Fronts in `kafka` have a broker behind them and know its frames.
    """

    def __init__(self, fronts: Mapping[int, int], kafka: Collection[int] = (), events: Path | None = None) -> None:
        pairs = [f"{front}:{target}" + ":kafka" * (front in kafka) for front, target in fronts.items()]
        command = [sys.executable, "-m", "chaos.proxy", *pairs]
        if events is not None:
            command += ["--events", str(events)]
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._lock = threading.Lock()

    def set(self, front: int, mode: str, *, seconds: float = 0.0, target: int | None = None) -> None:
        """Return when it is so."""
        self._ask({"front": front, "mode": mode, "seconds": seconds, "target": target})

    def withhold(self, *rules: Rule) -> None:
        """From now on, by these rules alone.

        What is withheld already is delivered as its own rule says.
        """
        self._ask({"rules": [rule.plain() for rule in rules]})

    def release(self, name: str) -> int:
        """Deliver what the rule of that name withholds; return how many, when the broker has
        answered.
        """
        count: int = self._ask({"release": name})
        return count

    def counts(self) -> dict[str, dict[str, int]]:
        """By the names of rules; `late.withheld` says what is counted."""
        counts: dict[str, dict[str, int]] = self._ask({"counts": True})["counts"]
        return counts

    def waiting(self) -> int:
        """How many requests are withheld now."""
        count: int = self._ask({"counts": True})["waiting"]
        return count

    def reaped(self) -> int:
        """How many connections brokers have closed."""
        count: int = self._ask({"counts": True})["reaped"]
        return count

    def _ask(self, wanted: Mapping[str, object]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(wanted) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            assert line, "the proxy has ended"
            return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m chaos.proxy")
    parser.add_argument("fronts", nargs="+")
    parser.add_argument("--events")
    options = parser.parse_args()
    asyncio.run(main(options.fronts, options.events))
