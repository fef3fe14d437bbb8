"""One catalog's trial: a bank is mirrored, the driver is killed, and programs read both tables.

A read is made again if the first table was not the same before and after it. Every transfer changes
both tables. So where a cut moves both in one commit, a read that counts has both of one cut.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fixtures.spark import Lake
from helpers.spark import interpreted
from helpers.spark import process as spark_process
from helpers.spark.bank import MONEY, Bank, opened
from readers.catalogs import CatalogOfTables
from readers.programs import TABLES, TotalReader
from readers.tally import Outcome, Tally, TornTimes

_LOOK_S = 0.003
_PAUSE_S = 0.5
"""Between reads while no driver publishes: the next one starts sooner."""
_BATCH_S = 3.0
"""About as long as a batch takes: the driver is killed at any instant of one."""
_STARTS_S = 12.0
"""About as long as a driver takes to its first batch."""
_SHARE = 10
"""Each program has at least this part of the reads."""
_SETTINGS = ("--trigger", "continuous", "--maintain-every", "20", "--keep-cuts", "0.02")
"""So that metadata stays small for as long as the trial lasts."""


class Transfers(Protocol):
    """Who moves money between the two tables meanwhile."""

    def stop(self) -> None: ...
    def last_sequence(self) -> int:
        """Return the number of the last commit record, after the stop."""
        ...


class WriterTransfers:
    """A bank that the tests' writer plays: topics without a source."""

    def __init__(self, lake: Lake) -> None:
        self._writer = lake.writer
        self._bank: Bank = opened(lake.writer)

    def stop(self) -> None:
        self._bank.stop()

    def last_sequence(self) -> int:
        return self._writer.sequence


class _Worker(threading.Thread):
    """A thread that repeats one thing until the end, and keeps its error."""

    def __init__(self, name: str, ending: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.ending = ending
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.step()
        except Exception as error:  # the trial asks for it
            self.failure = error

    def step(self) -> None:
        raise NotImplementedError


class _Reading(_Worker):
    """A program that reads."""

    def __init__(
        self,
        reader: TotalReader,
        tables: CatalogOfTables,
        ending: threading.Event,
        publishing: threading.Event,
        rests: float,
    ) -> None:
        super().__init__(reader.name, ending)
        self._reader = reader
        self._tables = tables
        self._publishing = publishing
        self._rests = rests
        self.tally = Tally(MONEY)

    def step(self) -> None:
        began, before = time.monotonic(), self._tables.main(TABLES[0])
        total = self._reader.read_total()
        self.tally.count(total, before=before, after=self._tables.main(TABLES[0]))
        pause = 0.0 if self._publishing.is_set() else _PAUSE_S
        self.ending.wait(pause + self._rests * (time.monotonic() - began))


class _Watching(_Worker):
    """Looks at both tables, as of one moment, every few milliseconds, for half of the time at
    most.
    """

    def __init__(self, tables: CatalogOfTables, ending: threading.Event) -> None:
        super().__init__("watching", ending)
        self._tables = tables
        self.times = TornTimes()

    def step(self) -> None:
        began = time.monotonic()
        sequences = self._tables.look(TABLES)
        at = time.monotonic()
        if sequences is not None:
            self.times.observe(at, torn=len(set(sequences)) > 1)
        self.ending.wait(max(_LOOK_S, at - began))


class _Trial:
    """The driver that is killed, and who reads meanwhile."""

    def __init__(
        self,
        lake: Lake,
        tables: CatalogOfTables,
        readers: Sequence[TotalReader],
        options: Sequence[str],
        rng: random.Random,
        rests: float,
    ) -> None:
        self._lake = lake
        self._options = options
        self._rng = rng
        self._publishing = threading.Event()
        self.ending = threading.Event()
        self.reading = [_Reading(reader, tables, self.ending, self._publishing, rests) for reader in readers]
        self.watching = [_Watching(tables, self.ending)] if tables.watched else []
        self.workers: list[_Worker] = [*self.reading, *self.watching]
        self.cuts = 0

    def kill_one(self) -> None:
        """Start a driver, and kill it while it starts, or cuts later at any instant of a batch."""
        with self._running(environment=interpreted.ENVIRONMENT) as process:
            if self._rng.random() < 0.2:
                time.sleep(self._rng.uniform(0, _STARTS_S))
                os.killpg(process.pid, signal.SIGKILL)
                return
            self._await_cuts(process, 1)
            self._start_workers()
            self._publishing.set()
            if more := self._rng.randrange(3):
                self._await_cuts(process, more)
            time.sleep(self._rng.uniform(0, _BATCH_S))
            os.killpg(process.pid, signal.SIGKILL)
            self._publishing.clear()

    def finish(self, transfers: Transfers, reads: int) -> None:
        """Start the last driver, and end it when all reads were made and all is mirrored."""
        with self._running() as process:
            self._await_cuts(process, 1)
            self._start_workers()
            self._publishing.set()
            while not self._has_read(reads):
                self._await_cuts(process, 1)
            transfers.stop()
            spark_process.cut(process, transfers.last_sequence())
            process.terminate()
            process.communicate(timeout=120)

    def describe(self) -> str:
        """Say how far it is."""
        torn = sum(len(each.tally.torn) for each in self.reading)
        return f"{sum(each.tally.reads for each in self.reading)} reads, {torn} torn"

    def _running(self, **given: Any) -> AbstractContextManager[subprocess.Popen[str]]:
        return spark_process.running(self._lake, *_SETTINGS, *self._options, **given)

    def _await_cuts(self, process: subprocess.Popen[str], many: int) -> None:
        spark_process.cuts(process, many)
        self.cuts += many

    def _start_workers(self) -> None:
        for worker in self.workers:
            if worker.ident is None:
                worker.start()

    def _has_read(self, reads: int) -> bool:
        counts = [each.tally.reads for each in self.reading]
        enough = sum(counts) >= reads and min(counts) >= reads // _SHARE
        return enough or any(worker.failure for worker in self.workers)


def try_catalog(
    lake: Lake,
    tables: CatalogOfTables,
    readers: Sequence[TotalReader],
    *,
    options: Sequence[str],
    reads: int,
    kills: int,
) -> Outcome:
    """Mirror the writer's bank until all kills and reads are done; its end must be in the
    tables.
    """
    transfers = WriterTransfers(lake)
    outcome = try_transfers(
        lake, tables, readers, transfers, options=options, reads=reads, kills=kills, rng=random.Random(5)
    )
    lake.assert_equal()
    return outcome


def try_transfers(
    lake: Lake,
    tables: CatalogOfTables,
    readers: Sequence[TotalReader],
    transfers: Transfers,
    *,
    options: Sequence[str],
    reads: int,
    kills: int,
    rng: random.Random,
    rests: float = 0.0,
) -> Outcome:
    """Mirror transfers until all kills and reads are done, and then to their end.

    Readers rest so long for each second that they read, where they would take what a driver needs.
    """
    began, trial = time.monotonic(), _Trial(lake, tables, readers, options, rng, rests)
    try:
        for number in range(kills):
            trial.kill_one()
            print(f"{tables.kind}: kill {number + 1} of {kills}, {trial.describe()}", flush=True)
        trial.finish(transfers, reads)
    finally:
        trial.ending.set()
        transfers.stop()
        for worker in trial.workers:
            if worker.ident is not None:
                worker.join()
    for worker in trial.workers:
        if worker.failure is not None:
            raise RuntimeError(f"{tables.kind}: {worker.name} failed") from worker.failure
    return Outcome(
        catalog=tables.kind,
        commits_at_once=tables.commits_at_once,
        offers_commit=tables.offers_commit,
        cuts=trial.cuts,
        kills=kills,
        seconds=time.monotonic() - began,
        tallies={each.name: each.tally for each in trial.reading},
        torn_times=trial.watching[0].times if trial.watching else None,
    )
