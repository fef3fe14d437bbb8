"""Does to the trial what the plan says, and heals it.

A fault counts when it was done; one whose victim was not there (no standby left, a failpoint that
was not reached) does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from chaos import packets
from chaos.ground import Database, Servers
from chaos.keeper import Keeper
from chaos.lanes import LANES
from chaos.lateness import LateRequests
from chaos.plan import Fault
from helpers.source.standby import ask, promote

REACHED_S = 8.0
"""How long a failpoint is waited for."""
LIFE_S = 45.0
"""How long the next death of a connector waits for a recovery."""
SLOT_S = 20.0
"""How long the standby has for taking over the slot, before it is promoted."""


class _Server(Protocol):
    @property
    def pid(self) -> int: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class Storms:
    """The times in which faults may begin, from now on."""

    def __init__(self, storms: Sequence[tuple[float, float]]) -> None:
        self._storms = storms
        self._begun = time.monotonic()

    def wait_s(self) -> float:
        """How long it is to the next storm; 0 within one."""
        now = time.monotonic() - self._begun
        return next((max(0.0, begin - now) for begin, end in self._storms if now < end), float("inf"))


ALWAYS = Storms([(0.0, float("inf"))])


class Faults:
    """All victims of one round: databases by prefix, of which a group has several."""

    def __init__(
        self,
        *,
        servers: Servers,
        databases: Mapping[str, Database],
        connectors: list[Keeper],
        spark: Keeper | None,
        spool: Path,
        clock: Path,
        coordinator: Keeper | None = None,
        say: Callable[[str], None],
    ) -> None:
        self._servers = servers
        self._databases = databases
        self._connectors = connectors
        self._processes = {
            "connector": connectors,
            "spark": [spark] if spark is not None else [],
            "coordinator": [coordinator] if coordinator is not None else [],
        }
        self._spool = spool
        self._clock = clock
        self.late = LateRequests(servers.proxy, next(iter(databases)), connectors, self._lives)
        self._say = say
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._seen = 0

    def lane(self, plan: Iterator[Fault], until: threading.Event, storms: Storms = ALWAYS) -> None:
        """One after the other, until told."""
        try:
            for fault in plan:
                if until.wait(fault.gap):
                    return
                while calm_s := storms.wait_s():
                    if until.wait(min(calm_s + fault.gap, threading.TIMEOUT_MAX)):
                        return
                if fault.kind in LANES["connector"]:
                    self._wait_for_life(until)
                if self.befall(fault, until):
                    name = f"{fault.kind} {fault.detail}" if fault.detail else fault.kind
                    self.done[name] += 1
                    self._say(f"{name} ({fault.seconds} s)")
        except BaseException as error:  # the trial asks for it: nobody else sees a thread's exception
            self.failure = error
            until.set()

    def befall(self, fault: Fault, until: threading.Event) -> bool:
        """Returns when it is healed."""
        what, _, how = fault.kind.partition("-")
        match what:
            case "connector" | "spark" | "coordinator":
                victims = self._processes[what]
                return bool(victims) and self._process(victims[fault.victim % len(victims)], how, fault)
            case "failpoint":
                return self._failpoint(fault)
            case "broker":
                kafka = self._servers.kafka
                number = fault.victim % len(kafka.nodes)
                return self._server(kafka.nodes[number], how, fault, lambda: kafka.start(number))
            case "registry":
                return self._server(self._servers.registry, how, fault, self._servers.registry.start)
            case "postgres" if how == "promote":
                return self._promote()
            case "postgres":
                server = [each.primary for each in self._databases.values()][fault.victim % len(self._databases)]
                return self._server(server, how, fault, server.start)
            case "net":
                return self._net(how, fault)
            case "lost":
                pids = [connector.pid for connector in self._connectors]
                return packets.moved() and packets.lose(pids, self._servers.broker_fronts, fault.victim, fault.seconds)
            case "late":
                return self.late.befall(fault, until)
            case "disk":
                return self._full_disk(fault)
            case _:
                return self._jump(fault)

    def wait_for_a_connector(self, within_s: float) -> None:
        """Until one has recovered for the first time: before that there is nothing to disturb."""
        deadline = time.monotonic() + within_s
        while not self._lives() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _wait_for_life(self, until: threading.Event) -> None:
        """Who dies again and again before it has recovered tries one thing only: how quick the
        machine is.
        """
        deadline = time.monotonic() + LIFE_S
        while self._lives() == self._seen and time.monotonic() < deadline and not until.wait(0.1):
            pass
        self._seen = self._lives()

    def _lives(self) -> int:
        """How often a connector has recovered."""
        return sum(
            each.log.read_text(errors="replace").count(" recovered: ") for each in self._connectors if each.log.exists()
        )

    @staticmethod
    def _process(victim: Keeper, how: str, fault: Fault) -> bool:
        match how:
            case "kill":
                return victim.send(signal.SIGKILL, away_s=fault.seconds)
            case "stop":
                return victim.stop(fault.seconds)
            case _:  # a pause, short, or so long that its transactions are timed out by the broker
                return victim.pause(fault.seconds)

    def _failpoint(self, fault: Fault) -> bool:
        """One connector lies in wait with the failpoint armed; the other goes, so that it becomes
        the one.
        """
        count = len(self._connectors)
        victim, other = (self._connectors[(fault.victim + n) % count] for n in range(2))
        starts = victim.starts
        said = len(victim.log.read_text(errors="replace"))
        victim.send(signal.SIGKILL, once={"TWOFOLD_FAILPOINT": fault.detail})
        if not victim.wait_for(lambda: victim.starts > starts and victim.pid is not None, 10):
            return False
        pid, starts = victim.pid, victim.starts
        other.send(signal.SIGKILL, away_s=6)
        if fault.detail.endswith("=stop"):
            reached = victim.wait_for(lambda: _asleep(pid), REACHED_S)
            time.sleep(fault.seconds)
            victim.send(signal.SIGCONT)
        elif fault.detail.endswith("=error"):
            text = f"failpoint {fault.detail.partition(':')[0]}"
            reached = victim.wait_for(lambda: text in victim.log.read_text(errors="replace")[said:], REACHED_S)
        else:
            reached = victim.wait_for(lambda: victim.pid != pid, REACHED_S)
        if not reached:
            victim.send(signal.SIGKILL)
        return reached

    def _server(self, server: _Server, how: str, fault: Fault, start: Callable[[], None]) -> bool:
        match how:
            case "pause":
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in _family(server.pid):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, number)
                    time.sleep(fault.seconds if number is signal.SIGSTOP else 0)
            case "stop":
                server.stop()
                time.sleep(fault.seconds)
                start()
            case _:
                server.kill()
                time.sleep(fault.seconds)
                start()
        return True

    def _promote(self) -> bool:
        """Once a round. The standby is the primary only if it has the connector's slot to keep."""
        prefix, database = next(((p, d) for p, d in self._databases.items() if d.standby is not None), ("", None))
        if database is None or database.standby is None:
            return False
        standby = database.standby
        synced = f"SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = '{prefix}'"
        deadline = time.monotonic() + SLOT_S
        while not ask(standby, synced):
            if time.monotonic() > deadline:
                return False
            ask(database.primary, "SELECT pg_log_standby_snapshot()")
            time.sleep(0.3)
        database.primary.kill()
        promote(standby)
        database.take_over()
        return True

    def _net(self, how: str, fault: Fault) -> bool:
        fronts = self._servers.fronts(fault.detail, fault.victim)
        for front in fronts:
            self._servers.proxy.set(front, how, seconds=0.01 * (1 + fault.victim % 20))
        time.sleep(fault.seconds)
        for front in fronts:
            self._servers.proxy.set(front, "pass")
        return True

    def _full_disk(self, fault: Fault) -> bool:
        """The spool's file system has no byte left for a while."""
        if not self._spool.is_mount():
            return False
        filler = self._spool / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        time.sleep(fault.seconds)
        filler.unlink()
        return True

    def _jump(self, fault: Fault) -> bool:
        """The connectors' clocks are off for a while, and then right again."""
        if not self._clock.exists():
            return False
        for offset in (fault.detail, "0"):
            part = self._clock.with_suffix(".part")
            part.write_text(offset)
            part.replace(self._clock)
            time.sleep(fault.seconds)
        return True


def _family(pid: int) -> list[int]:
    """A server and its children: PostgreSQL has a process for each session."""
    try:
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _asleep(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False
