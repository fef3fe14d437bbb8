"""Reads what a read_committed consumer gets, as fast as one client can.

Of rows it returns offsets, never bytes; of the commits topic it returns the commit records. One
consumer reads all partitions, because several gave nothing (docs/inside/kafka.md). librdkafka
fetches and unpacks on its own threads, and Python's one lock bounds the rest. The consumer takes
few records at a time: they stay in a core's cache. Its queue bounds the memory.
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
from twofold.kafka.client import MOVING, PARTITION_EOF, KafkaSettings, kafka_error_of, sort_error, sorted_errors
from twofold.kafka.decoding import Decoder, RecordPlace, place_of
from twofold_avro.records import Commit

_RECORDS = 1000
"""The number of records taken at once."""
_OPTIONS = {
    "queued.max.messages.kbytes": 16_384,  # fetched ahead; more costs memory and is no faster
    "auto.offset.reset": "earliest",  # retention may delete records: the caller checks the bounds
}
_WAIT_S = 0.1
_PAUSE_S = 0.05


class PartitionId(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a partition at one moment."""

    low: int
    """The first offset that is kept."""
    stable: int
    """The last stable offset: up to here (exclusive) a read_committed reader has everything that
    it will ever get."""
    high: int
    """The high watermark. Records beyond `stable` belong to an open transaction."""


class VisibleReader:
    """A reader of visible records, used by one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._timeout_s = settings.call_timeout_s
        with sorted_errors("creating the admin client"):
            self._admin = settings.secrets.open(AdminClient, settings.admin())

    def partitions_under(self, head: str) -> list[PartitionId]:
        """Return all partitions of the topics whose names begin with `head`."""
        with sorted_errors("reading the topics"):
            topics = self._admin.list_topics(timeout=self._timeout_s).topics
        return [
            PartitionId(t, p)
            for t, metadata in sorted(topics.items())
            if t.startswith(head)
            for p in sorted(metadata.partitions)
        ]

    def bounds(self, places: Iterable[PartitionId]) -> dict[PartitionId, Bounds]:
        """Return the bounds of all partitions.

        `stable` is read first: everything below it was committed before the other bounds were read.
        """
        wanted = list(places)
        latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        stable = self._offsets(wanted, latest, IsolationLevel.READ_COMMITTED)
        high = self._offsets(wanted, latest, IsolationLevel.READ_UNCOMMITTED)
        low = self._offsets(wanted, earliest, IsolationLevel.READ_UNCOMMITTED)
        return {place: Bounds(low[place], stable[place], high[place]) for place in wanted}

    def offsets_since(self, places: Iterable[PartitionId], time_ms: int) -> dict[PartitionId, int]:
        """Return each partition's first offset at that time or later; its end if there is none."""
        wanted = list(places)
        offsets = self._offsets(wanted, OffsetSpec.for_timestamp(time_ms), IsolationLevel.READ_UNCOMMITTED)
        none = [place for place, offset in offsets.items() if offset < 0]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return offsets | self._offsets(none, latest, IsolationLevel.READ_UNCOMMITTED)

    def _offsets(
        self, places: list[PartitionId], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[PartitionId, int]:
        offsets: dict[PartitionId, int] = {}
        deadline = time.monotonic() + self._timeout_s
        with sorted_errors("reading the partitions' offsets"):
            while left := [place for place in places if place not in offsets]:
                asked = {TopicPartition(*place): spec for place in left}
                answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=self._timeout_s)
                for tp, answer in answers.items():
                    try:
                        offsets[PartitionId(tp.topic, tp.partition)] = answer.result().offset
                    except KafkaException as error:
                        reason = kafka_error_of(error)
                        if reason is None or reason.code() not in MOVING or time.monotonic() > deadline:
                            raise
                if len(offsets) < len(places):
                    time.sleep(_PAUSE_S)
        return offsets

    def runs(self, stretches: Mapping[PartitionId, tuple[int, int]]) -> Iterator[tuple[PartitionId, int, int]]:
        """Yield the visible records of each stretch as runs of neighbouring offsets.

        A stretch is an offset and the offset to stop before. A partition's runs are in order;
        partitions are mixed.
        """
        for place, records in self._batches(stretches):
            for first, last in _neighbours(list(map(Message.offset, records))):  # type: ignore[arg-type]
                yield place, first, last

    def commits(self, topic: str, start: int, end: int, decoder: Decoder) -> Iterator[Commit]:
        """Yield the commit records from `start` to before `end`, in order."""
        for _, records in self._batches({PartitionId(topic, 0): (start, end)}):
            for message in records:
                if (message.offset() or 0) < end:
                    yield decoder.decode(Commit, message.value() or b"", place_of(message))

    def open_records(self, place: PartitionId, bounds: Bounds) -> Iterator[tuple[bytes, bytes, RecordPlace]]:
        """Yield key, value and place of what lies behind the last stable offset: nobody sees it."""
        stretches = {place: (bounds.stable, bounds.high)}
        for _, records in self._batches(stretches, isolation="read_uncommitted"):
            for message in records:
                yield message.key() or b"", message.value() or b"", place_of(message)

    def _batches(
        self, stretches: Mapping[PartitionId, tuple[int, int]], *, isolation: str = "read_committed"
    ) -> Iterator[tuple[PartitionId, list[Message]]]:
        """Yield records of one partition at a time, until each partition was read to its end.

        The last records may lie behind that end.
        """
        left = {place: end for place, (start, end) in stretches.items() if start < end}
        if not left:
            return
        with sorted_errors("reading what is visible"):
            settings = {**self._settings.consumer(), **_OPTIONS, "isolation.level": isolation}
            consumer = self._settings.secrets.open(Consumer, settings)
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
    """Group neighbouring messages of one partition, with the position after them.

    A partition's end is a message of its own, without records.
    """
    errors = any(map(Message.error, batch))
    start = 0
    for key, same in groupby(zip(map(Message.topic, batch), map(Message.partition, batch), strict=True)):
        count = sum(1 for _ in same)
        records, start = batch[start : start + count], start + count
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
    """Split one partition's ordered offsets into runs without a gap. Mostly there is one run."""
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
        f"Kafka delivered nothing more of {topic} [{partition}] for {timeout_s:.0f} s: brokers are away, or a transaction is open there;"
        f" find it with kafka-transactions.sh --bootstrap-server ... find-hanging --topic {topic} --partition {partition}"
    )
