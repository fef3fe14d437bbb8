"""One system through the whole of it: the first rows, a calm time, faults, rest, a load, and the
rows at the end.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from compare import bank, faults, usage, verdict
from compare.bank import CLIENTS, DATABASES, Client, Journal
from compare.faults import Part
from compare.ground import Ground, PostgresCopy, System
from compare.looks import Copy, Rows, Watch, read_rows
from compare.verdict import Healed
from twofold.stack import temporary_folder

_START_S: Final = 300.0
_LOAD_S: Final = 300.0
_STILL_S: Final = 60.0
"""A copy that has not changed for so long will not change any more."""
_ROWS_OF_ONE: Final = 1_000
"""Of a transaction of the load."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long a trial's parts are."""

    warm_s: float
    """Under load, before anything counts: programs of Java are slow when they have just started."""
    calm_s: float
    faults_s: float
    rest_s: float
    """At most, until the copy equals the source."""
    rows: int
    """Of the load."""


SHORT: Final = Lengths(warm_s=10, calm_s=10, faults_s=50, rest_s=240, rows=20_000)
FULL: Final = Lengths(warm_s=60, calm_s=30, faults_s=120, rest_s=300, rows=200_000)


class Trial:
    """Made for one system and one seed; `run` once."""

    def __init__(self, system: System, seed: int, lengths: Lengths, say: Callable[[str], None]) -> None:
        self._system = system
        self._seed = seed
        self._lengths = lengths
        self._say = say
        self._ground = Ground(temporary_folder())
        self._journal = Journal()
        self._healed: list[Healed] = []

    def run(self) -> dict[str, Any]:
        """All figures. The servers' folder stays if something failed."""
        used_before, memory = usage.cpu_seconds(), usage.Memory()
        with ExitStack() as ending:
            ending.enter_context(self._ground.started(kafka=self._system.kafka))
            ending.callback(self._system.stop)
            copy = self._system.start(self._ground)
            self._until("the accounts are there", lambda: self._equal(copy), _START_S)
            watch = Watch(copy)
            for thread in (memory, watch):
                ending.callback(thread.close)
                thread.start()
            calm = self._under_load()
            rested_s = self._rest(copy)
            rate = self._load(watch)
            self._rest(copy)
            watch.close()
            rows_of_both = self._read_source(), self._read(copy)
        found = verdict.judge(self._journal, watch.sightings, *rows_of_both)
        fresh = verdict.freshness(self._journal, watch.sightings, *calm)
        recovered = verdict.recoveries(self._journal, watch.sightings, self._healed)
        each = sorted(seconds for times in recovered.values() for seconds in times)
        shutil.rmtree(self._ground.folder, ignore_errors=True)
        return {
            "system": self._system.name,
            "seed": self._seed,
            **found,
            "fresh_p50_s": verdict.percentile(fresh, 0.5),
            "fresh_p99_s": verdict.percentile(fresh, 0.99),
            "rows_per_s": rate,
            "recovery_p50_s": verdict.percentile(each, 0.5),
            "recovery_max_s": max(each, default=None),
            "rested_s": rested_s,
            "cpu_s": round(usage.cpu_seconds() - used_before, 1),
            "memory_mb": round(memory.peak_mb),
            "look_p50_s": verdict.percentile(sorted(watch.look_s), 0.5),
            "faults": len(self._healed),
            "recoveries": recovered,
            "documentation": dict(self._system.documentation),
        }

    def _under_load(self) -> tuple[float, float]:
        """Return when the calm began, and when it ended."""
        over = threading.Event()
        clients = [Client(self._ground.dsns, self._journal, f"{self._seed} {n}", over) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            self._pause(self._lengths.warm_s)
            calm_from = time.monotonic()
            self._pause(self._lengths.calm_s)
            calm_until = time.monotonic()
            self._befall(calm_until + self._lengths.faults_s)
        finally:
            over.set()
            for client in clients:
                client.join()
        for client in clients:
            if client.failure is not None:
                raise client.failure
        bank.roll_back_the_rest(self._ground.dsns)
        return calm_from, calm_until

    def _befall(self, until: float) -> None:
        parts = self._parts()
        for fault in faults.plan(self._seed, parts):
            if time.monotonic() + fault.gap_s > until:
                break
            self._pause(fault.gap_s)
            self._healed.append(Healed(str(fault), faults.befall(fault, parts[fault.part])))
            self._say(f"{fault} ({fault.seconds:.0f} s)")
        self._pause(max(0.0, until - time.monotonic()))

    def _parts(self) -> dict[str, Part]:
        ground = self._ground
        servers: dict[str, Part] = {"source": ground.source, "destination": ground.destination}
        if self._system.kafka:
            servers |= {"broker": ground.broker, "registry": ground.registry}
        return {**servers, **self._system.parts}

    def _load(self, watch: Watch) -> int | None:
        """Rows a second from the first COMMIT until the last row is visible."""
        client, begun = Client(self._ground.dsns, self._journal, "load", threading.Event()), time.monotonic()
        numbers = [
            number
            for database in DATABASES
            for number in client.load(database, self._lengths.rows // len(DATABASES), _ROWS_OF_ONE)
        ]
        whole = watch.sightings.first_whole
        self._until("the load is there", lambda: all(number in whole for number in numbers), _LOAD_S, fails=False)
        if not all(number in whole for number in numbers):
            return None
        return round(len(numbers) * _ROWS_OF_ONE / (max(whole[number] for number in numbers) - begun))

    def _rest(self, copy: Copy) -> float | None:
        """Wait until the copy equals the source; None if it does not in time, or does not change
        any more.
        """
        source, last, begun, changed = self._read_source(), Rows(), time.monotonic(), time.monotonic()
        while (now := time.monotonic()) < min(begun + self._lengths.rest_s, changed + _STILL_S):
            rows = self._read_if_there(copy)
            if rows == source:
                return round(now - begun, 1)
            if rows is None or rows != last:
                last, changed = rows or last, now
            self._pause(1.0)
        self._say("the copy does not equal the source")
        return None

    def _equal(self, copy: Copy) -> bool:
        return self._read_if_there(copy) == self._read_source()

    def _read_if_there(self, copy: Copy) -> Rows | None:
        try:
            return self._read(copy)
        except copy.away:
            return None

    @staticmethod
    def _read(copy: Copy) -> Rows:
        with copy.snapshot() as ask:
            return read_rows(ask, copy.names)

    def _read_source(self) -> Rows:
        rows = Rows()
        for database, dsn in self._ground.dsns.items():
            with PostgresCopy(dsn).snapshot() as ask:
                rows |= read_rows(ask, {database: PostgresCopy(dsn).names[database]})
        return rows

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._system.tend()
            time.sleep(min(0.2, left_s))

    def _until(self, what: str, holds: Callable[[], bool], within_s: float, *, fails: bool = True) -> bool:
        deadline = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline:
                self._say(f"not within {within_s:.0f} s: {what}")
                if fails:
                    raise TimeoutError(what)
                return False
            self._pause(1.0)
        return True
