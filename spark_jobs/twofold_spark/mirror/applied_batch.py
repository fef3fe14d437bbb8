"""The report of one batch, for the terminal and for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twofold_spark.sinks.cuts import Cut


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

    def __str__(self) -> str:
        return (
            f"mirror: {self.changes} changes of {self.transactions} transactions in {self.tables} tables, "
            f"{self.seconds:.2f} s, lag {self.lag_seconds:.1f} s, cut {self.cut.sequence}"
        )
