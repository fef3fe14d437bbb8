"""The commits that were given to Kafka and are not yet answered, and how late their rows were."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from twofold.watch.activity_view import LATENCY_BOUNDS_S, Kind, Totals


@dataclass(frozen=True, slots=True)
class _Flight:
    kind: Kind
    transactions: int
    rows: int
    oldest_us: int
    given_at: float


class CommitFlights:
    """The unanswered commits of one run, in the order in which they were given out."""

    def __init__(self) -> None:
        self._flights: deque[_Flight] = deque()
        self._oldest_us = 0
        self.latency_max_s = 0.0

    def clear(self) -> None:
        """Forget those of an ended run."""
        self._flights.clear()
        self._oldest_us = 0

    @property
    def transactions(self) -> int:
        return sum(flight.transactions for flight in self._flights)

    @property
    def unanswered_since(self) -> float | None:
        """When the oldest was given out."""
        return self._flights[0].given_at if self._flights else None

    def gather(self, at_us: int) -> None:
        """Note rows for the group that were committed at the source then."""
        self._oldest_us = self._oldest_us or at_us

    def give_group(self, transactions: int, rows: int, now: float) -> None:
        self._flights.append(_Flight("main" if rows else "progress", transactions, rows, self._oldest_us, now))
        self._oldest_us = 0

    def give_chunk(self, now: float) -> None:
        self._flights.append(_Flight("backfill", 0, 0, 0, now))

    def give_prepared(self, rows: int, at_us: int, now: float) -> None:
        self._flights.append(_Flight("prepared", 1, rows, at_us, now))

    def answer(self, totals: Totals, now: float) -> None:
        """Count the oldest as committed: answers come in the order of the commits."""
        flight = self._flights.popleft()
        totals.commits[flight.kind] += 1
        totals.transactions += flight.transactions
        totals.rows += flight.rows
        if flight.oldest_us:
            late_s = max(0.0, now - flight.oldest_us / 1e6)
            totals.latencies[bisect_left(LATENCY_BOUNDS_S, late_s)] += 1
            totals.latency_s += late_s
            self.latency_max_s = max(self.latency_max_s, late_s)
