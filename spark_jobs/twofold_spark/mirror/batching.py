"""What the user chooses of a mirror; the size of a batch, its report, and its maintenance. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from twofold_common.printable import counted
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sources.decoding import UnreadableChoice

_SHARES = 10
"""In so many batches all tables that are due are maintained."""
_HEAVY_ROW_BYTES = 5_000.0
"""Assumed size of a row before the first batch, which is therefore a small one."""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """What the user chooses of a mirror's batches and its maintenance."""

    batch_rows: int = 500_000
    batch_bytes: int = 512 << 20
    tables_at_once: int = 3
    unreadable: UnreadableChoice = "stop"
    on_table_error: Literal["stop", "go-on"] = "stop"
    maintain_every: int = 100
    maintain_at_once: bool = True
    keep_cuts: dt.timedelta = dt.timedelta(hours=1)
    unique_keys: bool = False
    """Whether no two members may have a row of one key in a sharded table."""


class BatchSizer:
    """Chooses the rows of the next batch: as many as asked for, or as its bytes allow.

    The size of a row is judged by the batch before.
    """

    def __init__(self, rows: int, bytes_: int) -> None:
        self._rows = rows
        self._bytes = bytes_
        self._mean_row_bytes = _HEAVY_ROW_BYTES

    def next_rows(self) -> int:
        return max(1, min(self._rows, int(self._bytes / self._mean_row_bytes)))

    def record_batch(self, rows: int, bytes_: int) -> None:
        if rows and bytes_:
            self._mean_row_bytes = bytes_ / rows


class MaintenanceSchedule:
    """Decides when tables are maintained: after so many batches.

    A job that is started for a few batches at a time never counts that far. So the first
    maintenance of a process is due when the sequence numbers pass a multiple of the interval,
    however many numbers a batch has.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._batches = 0
        self._is_first = True

    def is_due(self, before: int, after: int) -> bool:
        """Whether maintenance is due after a batch from one sequence number to another."""
        self._batches += 1
        due = self._batches >= self._every or (self._is_first and before // self._every != after // self._every)
        if due:
            self._batches, self._is_first = 0, False
        return due


class MaintenanceQueue:
    """The tables that are due, handed out in shares: each batch then waits for a few of them.

    A job that ends with what is there has no later batch: it takes them all at once.
    """

    def __init__(self, *, at_once: bool) -> None:
        self._shares = 1 if at_once else _SHARES
        self._due: list[str] = []
        self._share = 0

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, tables: Iterable[str]) -> None:
        self._due += [table for table in tables if table not in self._due]
        self._share = -(-len(self._due) // self._shares)

    def take_share(self) -> list[str]:
        share, self._due = self._due[: self._share], self._due[self._share :]
        return share


class TableMaintenance:
    """The tables that changed since they became due, and those that are due."""

    def __init__(self, settings: MirrorSettings) -> None:
        self._schedule = MaintenanceSchedule(settings.maintain_every)
        self.due = MaintenanceQueue(at_once=settings.maintain_at_once)
        self.changed: set[str] = set()

    def note_batch(self, before: int, after: int) -> None:
        """Note the end of a batch from one sequence number to another."""
        if self._schedule.is_due(before, after):
            self.due.add(sorted(self.changed))
            self.changed.clear()


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """One batch of a source that was applied, and then published."""

    cut: Cut
    transactions: int
    changes: int
    """Merged changes: records without tombstones, and without those that the tables had."""
    tables: int
    seconds: float
    lag_seconds: float
    """From the source's commit to now; meaningful if both clocks agree."""
    stages: Mapping[str, float]
    """Seconds of each stage; fold and merge are sums over tables that run at once."""
    is_shown: bool = True
    """Whether readers see the cut: not one that is not whole, nor that of a member that joins its
    source group.
    """
    behind: int = 0
    """Offsets of the commit records behind it, when they were last read."""

    def __str__(self) -> str:
        return (
            f"mirror: {counted(self.changes, 'change')} of {counted(self.transactions, 'transaction')} "
            f"in {counted(self.tables, 'table')}, "
            f"{self.seconds:.2f} s, lag {self.lag_seconds:.1f} s, cut {self.cut.sequence}"
        )
