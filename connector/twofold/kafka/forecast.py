"""`Forecast`: where the rows of a Kafka transaction will lie, before Kafka has said so.

The connector is the only writer of its topics, so it knows where each partition ends: behind the
last record that was acknowledged, and one marker further for each end of a Kafka transaction that
had written there. With that a commit record can travel with its rows.

A forecast is never trusted. The publisher compares it with the delivery reports before it ends the
transaction, and calls `missed` if they differ. Causes are another writer, an abort that Kafka did
by itself, a topic that was recreated, or a marker that was not written yet. Then nothing is
foretold for a while, longer after each further miss.

Pure; a forecast knows nothing when a run begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from twofold.errors import RunEnded
from twofold.kafka.row_batch import RowBatch
from twofold_avro.records import Range

PAUSE_FIRST = 16
"""Number of transactions that are not foretold after the first miss."""
PAUSE_MAX = 4096

Partition = tuple[str, int]


class Forecast:
    """The ends of one run's partitions."""

    def __init__(self) -> None:
        self._next: dict[Partition, int] = {}
        self._acknowledged: dict[Partition, int] = {}
        """The last record of each partition that Kafka has acknowledged; a miss changes nothing of
        it."""
        self._ended: dict[Partition, int] = {}
        self._ends = 0
        self._pause = PAUSE_FIRST
        self._paused = 0

    def foretell(self, counts: Iterable[tuple[str, int, int]]) -> tuple[Range, ...] | None:
        """Return the ranges that this many records per topic and partition will have.

        None after a miss, and if the end of a partition is not known.
        """
        if self._paused:
            self._paused -= 1
            return None
        ranges = []
        for topic, partition, count in counts:
            first = self._next.get((topic, partition))
            if first is None:
                return None
            ranges.append(Range(topic, partition, first, first + count - 1, count))
        return tuple(ranges)

    def wrote(self, ranges: Iterable[Range]) -> None:
        """Learn from records that Kafka has acknowledged; their transaction is still open.

        A marker that was counted and does not lie before these records comes behind them.
        RunEnded: a partition has started over, so the next start must look at its topic.
        """
        for written in ranges:
            place = written.topic, written.partition
            if written.first <= (before := self._acknowledged.get(place, -1)):
                raise RunEnded(
                    f"Kafka has put records of {written.topic}-{written.partition} at {written.first}, and earlier ones at {before}:"
                    " the topic was deleted and made again, or its brokers have lost records"
                )
            self._acknowledged[place] = written.last
            self._next[place] = max(written.last + 1, self._next.get(place, 0) + written.count)

    def ended(self, counts: Iterable[tuple[str, int, int]]) -> None:
        """Count the marker of a transaction that has ended in each partition where it wrote."""
        self._ends += 1
        for topic, partition, _ in counts:
            if (topic, partition) in self._next:
                self._next[topic, partition] += 1
                self._ended[topic, partition] = self._ends

    def ended_last(self, ranges: Iterable[Range]) -> Range:
        """Return the range in whose partition a transaction ended last."""
        return max(ranges, key=lambda r: self._ended.get((r.topic, r.partition), 0))

    def end_behind(self, other: Range, topic: str) -> int | None:
        """Return where a topic with one partition ends.

        None: the topic's end is unknown, because the last transaction that ended in the topic ended
        before the last one in `other`'s partition.
        """
        ended = self._ended.get((topic, 0), 0)
        if not ended or ended < self._ended.get((other.topic, other.partition), 0):
            return None
        return self._next[topic, 0]

    def was_right(self) -> None:
        """Note that a forecast was right: after the next miss the pause is short again."""
        self._pause = max(PAUSE_FIRST, self._pause - 1)

    def missed(self) -> None:
        """Forget everything: the partitions end elsewhere than assumed."""
        self._next.clear()
        self._ended.clear()
        self._paused, self._pause = self._pause, min(self._pause * 4, PAUSE_MAX)


RECORDS_MAX = 1_000
BYTES_MAX = 1 << 20
"""The most bytes of a batch whose rows are kept; a larger one can wait for offsets."""


class KeptBatch:
    """Keeps the rows of one batch after the other."""

    def __init__(self) -> None:
        self._batches: list[RowBatch] = []
        self._records = self._bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the batch are here."""
        return self._records <= RECORDS_MAX and self._bytes <= BYTES_MAX

    def keep(self, batch: RowBatch) -> None:
        """Add rows. Nobody may change them any more."""
        self._records += batch.records
        self._bytes += batch.bytes
        if self.is_whole:
            self._batches.append(batch)
        else:
            self._batches.clear()

    def take_batches(self) -> list[RowBatch]:
        """Return the rows, and begin the next batch."""
        batches = self._batches
        self._batches, self._records, self._bytes = [], 0, 0
        return batches
