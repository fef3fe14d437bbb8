"""The commits that were given to Kafka and are not yet answered, and how late their rows were."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from twofold.watch.activity_view import LATENCY_BOUNDS_S, Kind, Totals


@dataclass(frozen=True, slots=True)
class _UnansweredCommit:
    kind: Kind
    transactions: int
    rows: int
    oldest_us: int
    given_at: float


class UnansweredCommits:
    """The unanswered commits of one run, in the order in which they were given out."""

    def __init__(self) -> None:
        self._commits: deque[_UnansweredCommit] = deque()
        self._oldest_us = 0
        self.latency_max_s = 0.0

    def clear(self) -> None:
        """Forget those of an ended run."""
        self._commits.clear()
        self._oldest_us = 0

    @property
    def transactions(self) -> int:
        return sum(commit.transactions for commit in self._commits)

    @property
    def unanswered_since(self) -> float | None:
        """When the oldest was given out."""
        return self._commits[0].given_at if self._commits else None

    def gather(self, at_us: int) -> None:
        """Note rows for the batch that were committed at the source then."""
        self._oldest_us = self._oldest_us or at_us

    def give_batch(self, transactions: int, rows: int, now: float) -> None:
        self._commits.append(
            _UnansweredCommit("main" if rows else "progress", transactions, rows, self._oldest_us, now)
        )
        self._oldest_us = 0

    def give_chunk(self, now: float) -> None:
        self._commits.append(_UnansweredCommit("backfill", 0, 0, 0, now))

    def give_prepared(self, rows: int, at_us: int, now: float) -> None:
        self._commits.append(_UnansweredCommit("prepared", 1, rows, at_us, now))

    def answer(self, totals: Totals, now: float) -> None:
        """Count the oldest as committed: answers come in the order of the commits."""
        commit = self._commits.popleft()
        totals.commits[commit.kind] += 1
        totals.transactions += commit.transactions
        totals.rows += commit.rows
        if commit.oldest_us:
            late_s = max(0.0, now - commit.oldest_us / 1e6)
            totals.latencies[bisect_left(LATENCY_BOUNDS_S, late_s)] += 1
            totals.latency_s += late_s
            self.latency_max_s = max(self.latency_max_s, late_s)
