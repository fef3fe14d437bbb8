"""Reads what a read_committed consumer gets, as fast as one client can: offsets of the rows, never their bytes; and the commit records.

One consumer for all partitions: librdkafka fetches and unpacks on threads of its own, and what is left for Python is bound by its one lock, so several consumers gave nothing
(docs/inside/kafka.md). It takes few records at a time: they stay in a core's cache, and memory is bounded by the consumer's queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from twofold.errors import Unreachable
from twofold.sink.client import MOVING, PARTITION_EOF, KafkaSettings, kafka_error_of, sort_error, sorted_errors
from twofold.sink.progress import Decoder
from twofold_avro.records import Commit

_RECORDS = 1000
"""Taken at once."""
_OPTIONS = {
    "queued.max.messages.kbytes": 16_384,  # fetched ahead; more is no faster, and is memory
    "auto.offset.reset": "earliest",  # retention may take what was to be read: who reads looks at the bounds again
}
_WAIT_S = 0.1
_PAUSE_S = 0.05


class PartitionId(NamedTuple):
    """A partition."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a partition, at one moment."""

    low: int
    """The first offset that is kept."""
    stable: int
    """The last stable offset: up to here (exclusive) a read_committed reader gets everything that it will ever get."""
    high: int
    """The high watermark. Beyond `stable` something belongs to a transaction that is open."""


class VisibleReader:
    """Used by one thread; `close` it."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._timeout_s = settings.call_timeout_s
        with sorted_errors("making the admin client"):
            self._admin = AdminClient(settings.admin())

    def places_under(self, head: str) -> list[PartitionId]:
        """All partitions of the topics whose names begin so."""
        with sorted_errors("reading the topics"):
            there = self._admin.list_topics(timeout=self._timeout_s).topics
        return [
            PartitionId(t, p)
            for t, found in sorted(there.items())
            if t.startswith(head)
            for p in sorted(found.partitions)
        ]

    def bounds(self, places: Iterable[PartitionId]) -> dict[PartitionId, Bounds]:
        """Of all of them, asked together. `stable` is asked first: what is committed below it was so before the others were looked at."""
        wanted = list(places)
        latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        stable = self._offsets(wanted, latest, IsolationLevel.READ_COMMITTED)
        high = self._offsets(wanted, latest, IsolationLevel.READ_UNCOMMITTED)
        low = self._offsets(wanted, earliest, IsolationLevel.READ_UNCOMMITTED)
        return {place: Bounds(low[place], stable[place], high[place]) for place in wanted}

    def since(self, places: Iterable[PartitionId], time_ms: int) -> dict[PartitionId, int]:
        """The first offset of each that was written at that time or later; the end, if none was."""
        wanted = list(places)
        found = self._offsets(wanted, OffsetSpec.for_timestamp(time_ms), IsolationLevel.READ_UNCOMMITTED)
        none = [place for place, offset in found.items() if offset < 0]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return found | self._offsets(none, latest, IsolationLevel.READ_UNCOMMITTED)

    def _offsets(
        self, places: list[PartitionId], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[PartitionId, int]:
        found: dict[PartitionId, int] = {}
        deadline = time.monotonic() + self._timeout_s
        with sorted_errors("reading the partitions' offsets"):
            while left := [place for place in places if place not in found]:
                asked = {TopicPartition(*place): spec for place in left}
                answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=self._timeout_s)
                for tp, answer in answers.items():
                    try:
                        found[PartitionId(tp.topic, tp.partition)] = answer.result().offset
                    except KafkaException as error:
                        reason = kafka_error_of(error)
                        if reason is None or reason.code() not in MOVING or time.monotonic() > deadline:
                            raise
                if len(found) < len(places):
                    time.sleep(_PAUSE_S)
        return found

    def runs(self, stretches: Mapping[PartitionId, tuple[int, int]]) -> Iterator[tuple[PartitionId, int, int]]:
        """Visible records of each stretch (an offset, and one to stop before), as runs of neighbouring offsets: in order within a partition, partitions mixed."""
        for place, records in self._batches(stretches):
            for first, last in _neighbours(list(map(Message.offset, records))):  # type: ignore[arg-type]
                yield place, first, last

    def commits(self, topic: str, start: int, end: int, decoder: Decoder) -> Iterator[Commit]:
        """The commit records from an offset to before another, in order."""
        for _, records in self._batches({PartitionId(topic, 0): (start, end)}):
            for message in records:
                if (message.offset() or 0) < end:
                    yield decoder.decode(Commit, message.value() or b"")

    def _batches(self, stretches: Mapping[PartitionId, tuple[int, int]]) -> Iterator[tuple[PartitionId, list[Message]]]:
        """Records of one partition at a time, until each was read to its end; the last ones may lie behind it."""
        left = {place: end for place, (start, end) in stretches.items() if start < end}
        if not left:
            return
        with sorted_errors("reading what is visible"):
            consumer = Consumer({**self._settings.consumer(), **_OPTIONS})
            try:
                consumer.assign([TopicPartition(*place, stretches[place][0]) for place in left])
                deadline = time.monotonic() + self._timeout_s
                while left:
                    batch = consumer.consume(_RECORDS, _WAIT_S)
                    if not batch and time.monotonic() > deadline:
                        raise _stuck(left, self._timeout_s)
                    ended: list[PartitionId] = []
                    for place, records, position in _by_partition(batch):
                        if place in left:
                            yield place, records
                            if position >= left[place]:
                                del left[place]
                                ended.append(place)
                    if batch:
                        deadline = time.monotonic() + self._timeout_s
                    if ended:
                        consumer.pause([TopicPartition(*place) for place in ended])
            finally:
                consumer.close()


def _by_partition(batch: list[Message]) -> Iterator[tuple[PartitionId, list[Message], int]]:
    """Neighbours of the same partition, and how far it was read with them. The end of a partition comes as a message of its own, without records."""
    errors = any(map(Message.error, batch))
    at = 0
    for key, same in groupby(zip(map(Message.topic, batch), map(Message.partition, batch), strict=True)):
        many = sum(1 for _ in same)
        records, at = batch[at : at + many], at + many
        place, position = PartitionId(*key), (records[-1].offset() or 0) + 1  # type: ignore[arg-type]
        if errors:
            for message in records:
                error = message.error()
                if error is not None and error.code() != PARTITION_EOF:
                    raise sort_error(error, f"reading {place.topic}")
                position = (message.offset() or 0) + (error is None)
            records = [message for message in records if message.error() is None]
        yield place, records, position


def _neighbours(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Offsets of one partition, in order, as runs without a gap. Mostly it is one."""
    begin = 0
    if offsets and offsets[-1] - offsets[0] != len(offsets) - 1:
        for at in range(1, len(offsets)):
            if offsets[at] != offsets[at - 1] + 1:
                yield offsets[begin], offsets[at - 1]
                begin = at
    if offsets:
        yield offsets[begin], offsets[-1]


def _stuck(left: Mapping[PartitionId, int], timeout_s: float) -> Unreachable:
    topic, partition = next(iter(left))
    return Unreachable(
        f"Kafka gives nothing more of {topic} [{partition}] for {timeout_s:.0f} s: brokers are away, or a transaction is open there"
        f" (kafka-transactions.sh --bootstrap-server ... find-hanging --topic {topic} --partition {partition})"
    )
