"""Divides commit records into batches, reports a batch, and schedules maintenance. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from twofold_spark.sinks.cuts import Cut
from twofold_spark.sources.commit_records import CommitRecord

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


def split_into_batches(
    records: Iterable[CommitRecord], *, rows: Callable[[], int], ranges: int
) -> Iterator[list[CommitRecord]]:
    """Divide ordered commit records into batches of at most `rows()` rows and `ranges` ranges.

    A single commit record may have more; none is divided. A batch ends before a gap in the sequence
    numbers. At most one record beyond the yielded batch is taken from `records`. So a caller that
    releases each batch holds only one.
    """
    batch: list[CommitRecord] = []
    batch_rows = batch_ranges = 0
    for record in records:
        batch_rows += record.rows
        batch_ranges += len(record.ranges)
        dense = not batch or record.sequence == batch[-1].sequence + 1
        if batch and not (dense and batch_rows <= rows() and batch_ranges <= ranges):
            yield batch
            batch, batch_rows, batch_ranges = [], record.rows, len(record.ranges)
        batch.append(record)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """One batch that was applied and published."""

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

    def __str__(self) -> str:
        return (
            f"mirror: {self.changes} changes of {self.transactions} transactions in {self.tables} tables, "
            f"{self.seconds:.2f} s, lag {self.lag_seconds:.1f} s, cut {self.cut.sequence}"
        )
