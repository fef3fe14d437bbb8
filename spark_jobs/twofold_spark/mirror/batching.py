"""Chooses the size of a batch, reports a batch, and schedules maintenance. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from twofold_common.printable import counted
from twofold_spark.sinks.cuts import Cut

_SHARES = 10
"""In so many batches all tables that are due are maintained."""
_HEAVY_ROW_BYTES = 5_000.0
"""Assumed size of a row before the first batch, which is therefore a small one."""


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
        """Take the next share."""
        share, self._due = self._due[: self._share], self._due[self._share :]
        return share


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
    """Whether readers see the cut: not that of a member that joins its source group."""
    behind: int = 0
    """Offsets of the commit records behind it, when they were last read."""

    def as_published(self, cut: Cut, took_s: float, own_s: float, *, is_shown: bool) -> AppliedBatch:
        """Return the batch as published in this cut. That took so long; `own_s` is its share."""
        return replace(
            self,
            cut=cut,
            seconds=self.seconds + took_s,
            lag_seconds=self.lag_seconds + took_s,
            stages={**self.stages, "publish": own_s},
            is_shown=is_shown,
        )

    def __str__(self) -> str:
        return (
            f"mirror: {counted(self.changes, 'change')} of {counted(self.transactions, 'transaction')} "
            f"in {counted(self.tables, 'table')}, "
            f"{self.seconds:.2f} s, lag {self.lag_seconds:.1f} s, cut {self.cut.sequence}"
        )
