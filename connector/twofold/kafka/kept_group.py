"""`KeptGroup`: the rows of a small group until its commit, in case that its forecast is wrong.

After kill -9 PostgreSQL sends them again.
"""

from __future__ import annotations

from twofold.kafka.batch import RowBatch

RECORDS_MAX = 1_000
BYTES_MAX = 1 << 20
"""The rows of a larger group are not kept. To wait for their offsets costs it little."""


class KeptGroup:
    """The rows of one group after the other."""

    def __init__(self) -> None:
        self._batches: list[RowBatch] = []
        self._records = self._bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the group are here."""
        return self._records <= RECORDS_MAX and self._bytes <= BYTES_MAX

    def keep(self, batch: RowBatch) -> None:
        """Add rows, which nobody changes any more."""
        self._records += batch.records
        self._bytes += batch.bytes
        if self.is_whole:
            self._batches.append(batch)
        else:
            self._batches.clear()

    def take_batches(self) -> list[RowBatch]:
        """Return the rows, and begin the next group."""
        batches = self._batches
        self._batches, self._records, self._bytes = [], 0, 0
        return batches
