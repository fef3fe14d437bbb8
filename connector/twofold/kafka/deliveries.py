"""Collects what one Kafka transaction wrote, from its delivery reports.

Promise: ranges are exact. They have the offsets of each partition's first and last record, from the
delivery reports, and the count of records handed over. No offset is computed.

Pure: librdkafka calls `delivered`, on the thread that uses the producer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from confluent_kafka import KafkaError, Message

from twofold.errors import RunEnded
from twofold.kafka.record_sizes import largest_record, largest_value
from twofold.kafka.row_batch import Record
from twofold_avro.records import Range

_LARGE = 1 << 14
"""The size of a large value. Brokers take values up to this size, unless somebody has set a very
low limit.
"""
DeliveryCallback = Callable[[KafkaError | None, Message], None]


@dataclass(slots=True)
class _Writes:
    """One transaction's writes into one partition.

    Offsets are -1 until their delivery reports are in.
    """

    count: int = 0
    first: int = -1
    last: int = -1
    largest: int = 0
    """The size of the largest value."""
    largest_record: Record | None = None
    """The record with the largest value, if that is large: to find the record costs more than to
    find the size.
    """


class Deliveries:
    """The deliveries of one transaction."""

    def __init__(self) -> None:
        self.failed: KafkaError | None = None
        """The first report of an undelivered record."""
        self.failed_topic: str | None = None
        self._written: dict[tuple[str, int], _Writes] = {}
        self._acknowledged = 0

    def begins(self, topic: str, partition: int) -> bool:
        """Note that records go to this partition; return whether they are its first."""
        if (topic, partition) in self._written:
            return False
        self._written[topic, partition] = _Writes()
        return True

    def handed_over(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Count records that librdkafka has taken."""
        written = self._written[topic, partition]
        written.count += len(records)
        if (size := largest_value(records)) > written.largest:
            written.largest = size
            written.largest_record = largest_record(records) if size >= _LARGE else None

    def largest(self) -> tuple[str, int, int, Record | None]:
        """Return topic, partition and size of the largest record, and the record if it is large.

        If a delivery report says which topic refused a record, the answer is about that topic.
        """
        written = [(place, w) for place, w in self._written.items() if self.failed_topic in {None, place[0]}]
        place, largest = max(written, key=lambda each: each[1].largest)
        return *place, largest.largest, largest.largest_record

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Note a record's delivery report."""
        if error is not None:
            if self.failed is None:
                self.failed, self.failed_topic = error, message.topic()
            return
        self._acknowledged += 1
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        written = self._written[topic, partition]
        written.last = max(written.last, offset)
        written.first = offset if written.first < 0 else min(written.first, offset)

    def ranges(self) -> tuple[Range, ...]:
        """Return the ranges by topic and partition; after a flush."""
        for (topic, partition), w in self._written.items():
            if w.first < 0 or w.last - w.first + 1 < w.count:
                raise RunEnded(
                    f"Kafka: the delivery reports of {topic} [{partition}] give offsets {w.first} to {w.last} for {w.count} records"
                )
        return tuple(
            Range(*place, w.first, w.last, w.count) for place, w in sorted(self._written.items(), key=itemgetter(0))
        )

    def counts(self) -> tuple[tuple[str, int, int], ...]:
        """Return the records handed over so far: topic, partition, number."""
        return tuple(sorted((*place, w.count) for place, w in self._written.items()))

    def wrote_to(self, topic: str, partition: int) -> bool:
        """Return whether records went to that partition."""
        return (topic, partition) in self._written

    def began_before(self, other: Range) -> bool:
        """Return whether our records in that partition begin before the others, which are
        acknowledged.

        Records of ours that are still on their way were sent later.
        """
        mine = self._written.get((other.topic, other.partition))
        return mine is not None and 0 <= mine.first < other.first

    @property
    def all_acknowledged(self) -> bool:
        """Return whether every record was reported as delivered, where each asked for a report."""
        return self._acknowledged == sum(w.count for w in self._written.values())
