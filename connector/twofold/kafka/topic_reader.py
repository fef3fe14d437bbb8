"""Reads partitions up to an end: the one reader of everything in Kafka that ends.

It asks where partitions begin and end, and reads stretches of them, read_committed or
read_uncommitted. The end is fixed before a read begins, so a topic that grows does not prolong it.
Markers and aborted records take offsets too: a stretch has ended when the reader stands at its end,
whether or not a record lies there. Each step is bounded, not the number of records: a read fails
when nothing comes for `kafka.call_timeout`, and says every ten seconds how far it is.

One new consumer reads all stretches. A consumer that knows its brokers already queries further
topics only once a second, and several consumers were no faster (docs/inside/kafka.md). librdkafka
fetches and unpacks on its own threads, and Python's one lock bounds the rest. The consumer takes
few records at a time: they stay in a core's cache. Its queue bounds the memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Literal, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from twofold.errors import TwofoldError, Unreachable
from twofold.kafka.client import MOVING, NO_GROUP, PARTITION_EOF, KafkaSettings, error_code, sort_error, sorted_errors

_log = logging.getLogger(__name__)

_RECORDS = 1000
"""The number of records taken at once."""
_OPTIONS = {
    # Fetched ahead; more costs memory and is no faster.
    "queued.max.messages.kbytes": 16_384,
    # A full queue is looked at again after a second by default, and it is empty before that.
    "fetch.queue.backoff.ms": 20,
}
_WAIT_S = 0.1
_TOGETHER_S = 0.005
"""How long is waited behind the first record for those of the same answer."""
_PAUSE_S = 0.05
_REPORT_AFTER_S = 10.0
"""The time after which a read says how far it is, and again after as long."""

_ASKED = 500
"""The most partitions in one request for offsets. librdkafka looks for each of them among all: of
12,000 at once that takes four times as long.
"""

_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]


class PartitionId(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} [{self.partition}]"


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


Stretches = Mapping[PartitionId, tuple[int, int]]
"""For each partition an offset, and the offset to stop before."""


class TopicReader:
    """A reader of stretches, used by one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._timeout_s = settings.call_timeout_s
        self._admin = settings.open_admin()

    def partitions_under(self, head: str) -> list[PartitionId]:
        """Return all partitions of the topics whose names begin with `head`."""
        return [each for each in self._partitions() if each.topic.startswith(head)]

    def partitions_of(self, topics: Collection[str]) -> list[PartitionId]:
        """Return the partitions of these topics; a topic that does not exist has none."""
        return [each for each in self._partitions() if each.topic in topics]

    def _partitions(self) -> list[PartitionId]:
        with sorted_errors("reading the topics"):
            topics = self._admin.list_topics(timeout=self._timeout_s).topics
        return [PartitionId(t, p) for t, metadata in sorted(topics.items()) for p in sorted(metadata.partitions)]

    def bounds(self, places: Iterable[PartitionId]) -> dict[PartitionId, Bounds]:
        """Return the bounds of all partitions.

        `stable` is read first: everything below it was committed before the other bounds were read.
        """
        wanted = list(places)
        stable = self._offsets(wanted, _LATEST, IsolationLevel.READ_COMMITTED)
        high = self._offsets(wanted, _LATEST, IsolationLevel.READ_UNCOMMITTED)
        low = self._offsets(wanted, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)
        return {place: Bounds(low[place], stable[place], high[place]) for place in wanted}

    def visible(self, places: Iterable[PartitionId]) -> dict[PartitionId, tuple[int, int]]:
        """Return the stretches that hold everything that is committed now."""
        return {place: (bounds.low, bounds.stable) for place, bounds in self.bounds(places).items()}

    def offsets_since(self, places: Iterable[PartitionId], time_ms: int) -> dict[PartitionId, int]:
        """Return each partition's first offset at that time or later; its end if there is none."""
        wanted = list(places)
        offsets = self._offsets(wanted, OffsetSpec.for_timestamp(time_ms), IsolationLevel.READ_UNCOMMITTED)
        none = [place for place, offset in offsets.items() if offset < 0]
        return offsets | self._offsets(none, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def _offsets(
        self, places: list[PartitionId], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[PartitionId, int]:
        offsets: dict[PartitionId, int] = {}
        deadline = time.monotonic() + self._timeout_s
        with sorted_errors("reading the partitions' offsets"):
            while left := [place for place in places if place not in offsets]:
                answers = [
                    self._admin.list_offsets(
                        {TopicPartition(*place): spec for place in left[start : start + _ASKED]},
                        isolation_level=isolation,
                        request_timeout=self._timeout_s,
                    )
                    for start in range(0, len(left), _ASKED)
                ]
                for tp, answer in chain.from_iterable(each.items() for each in answers):
                    place = PartitionId(tp.topic, tp.partition)
                    try:
                        offset = answer.result().offset
                    except KafkaException as error:
                        if error_code(error) not in MOVING or time.monotonic() > deadline:
                            raise sort_error(error, f"reading the bounds of {place}") from error
                        continue
                    # Every partition has a first offset and an end. A broker that comes back can
                    # answer that it knows none.
                    if offset >= 0 or spec not in {_EARLIEST, _LATEST}:
                        offsets[place] = offset
                    elif time.monotonic() > deadline:
                        raise Unreachable(f"Kafka knows no offsets of {place}: a broker that has it is not ready")
                if len(offsets) < len(places):
                    time.sleep(_PAUSE_S)
        return offsets

    def read(
        self,
        stretches: Stretches,
        *,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        failed: dict[PartitionId, TwofoldError] | None = None,
        may_begin_later: bool = False,
    ) -> Iterator[Message]:
        """Yield the records of each stretch, each partition's in order.

        The error of a partition is raised; with `failed`, the error is noted there, and the other
        partitions are read. A stretch whose first records Kafka no longer has is an error, unless
        the stretch may begin later: retention deletes the oldest rows and commit records.
        """
        reset: Literal["earliest", "error"] = "earliest" if may_begin_later else "error"
        for _, records in self._batches(stretches, isolation, reset, failed):
            yield from records

    def read_runs(self, stretches: Stretches) -> Iterator[tuple[PartitionId, int, int]]:
        """Yield the offsets of each stretch's visible records, as runs of neighbours. The bytes
        are never touched. A stretch may begin later.
        """
        for place, records in self._batches(stretches, reset="earliest"):
            for first, last in _neighbours(list(map(Message.offset, records))):  # type: ignore[arg-type]
                yield place, first, last

    def _batches(
        self,
        stretches: Stretches,
        isolation: str = "read_committed",
        reset: Literal["earliest", "error"] = "error",
        failed: dict[PartitionId, TwofoldError] | None = None,
    ) -> Iterator[tuple[PartitionId, list[Message]]]:
        """Yield records of one partition at a time, until each stretch was read to its end."""
        reading = _Reading(stretches, failed)
        if not reading.positions:
            return
        with sorted_errors(f"reading {reading}"):
            options = {**_OPTIONS, "isolation.level": isolation, "auto.offset.reset": reset}
            consumer = self._settings.open_consumer(options)
            try:
                consumer.assign([TopicPartition(*place, at) for place, at in reading.positions.items()])
                silent_s = 0.0
                while reading.positions:
                    asked_at = time.monotonic()  # the caller may have taken its time with the records before
                    batch = _take_batch(consumer, _WAIT_S)
                    silent_s = 0.0 if batch else silent_s + time.monotonic() - asked_at
                    if silent_s > self._timeout_s:
                        raise reading.silence(self._timeout_s, _known_end(consumer, reading.next_place))
                    yield from reading.accept_batch(batch)
                    if ended := reading.take_ended():
                        consumer.pause([TopicPartition(*place) for place in ended])
                    reading.log_place()
            finally:
                consumer.close()


class _Reading:
    """One read, with the rest of its stretches."""

    def __init__(self, stretches: Stretches, failed: dict[PartitionId, TwofoldError] | None) -> None:
        self.positions = {place: start for place, (start, end) in stretches.items() if start < end}
        """The offset that comes next, of the partitions that have not ended."""
        self._stretches = stretches
        self._failed = failed
        self._ended: list[PartitionId] = []
        self._tell_at = time.monotonic() + _REPORT_AFTER_S

    def accept_batch(self, batch: list[Message]) -> Iterator[tuple[PartitionId, list[Message]]]:
        """Yield the records that lie within the stretches."""
        for place, records, position, error in _by_partition(batch):
            if place in self.positions and position is not None:
                end = self._stretches[place][1]
                within = records if position <= end else [each for each in records if (each.offset() or 0) < end]
                if within:
                    yield place, within
                self.positions[place] = position
                if position >= end:
                    self._end(place)
            if error is not None and error.code() != NO_GROUP:
                self._fail(place, error)

    def take_ended(self) -> list[PartitionId]:
        """Return the partitions that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def next_place(self) -> PartitionId:
        """The first partition that has not ended."""
        return next(iter(self.positions))

    def silence(self, timeout_s: float, known_end: int) -> Unreachable:
        """Return the error that nothing came for too long, although a partition has this end."""
        topic, partition = place = self.next_place
        if 0 <= known_end < self._stretches[place][1]:
            return Unreachable(
                f"Kafka has lost records of {place}: it ended at offset {self._stretches[place][1]} when this read began, and ends at"
                f" {known_end} now: it was deleted and created again, or a broker took over that had less; another read takes what is there now"
            )
        return Unreachable(
            f"Kafka delivered nothing more of {self} for {timeout_s:.0f} s: brokers are away, or a transaction is open there;"
            f" find it with kafka-transactions.sh --bootstrap-server ... find-hanging --topic {topic} --partition {partition}"
        )

    def log_place(self) -> None:
        """Log now and then how far a long read is."""
        if self.positions and (now := time.monotonic()) >= self._tell_at:
            self._tell_at = now + _REPORT_AFTER_S
            _log.info("still reading %s", self)

    def __str__(self) -> str:
        """Name the unread partitions, the first with its offsets."""
        place, position = next(iter(self.positions.items()))
        more = len(self.positions) - 1
        others = f" and {more} more partitions" if more > 1 else " and 1 more partition" if more else ""
        return f"{place} from offset {position} to {self._stretches[place][1]}{others}"

    def _fail(self, place: PartitionId, error: KafkaError) -> None:
        if not self.positions or (place in self._stretches and place not in self.positions):
            return  # it has ended
        position = self.positions.get(place)
        found = sort_error(error, f"reading {self}" if position is None else f"reading {place} at offset {position}")
        if self._failed is None or position is None:
            raise found
        self._failed[place] = found
        self._end(place)

    def _end(self, place: PartitionId) -> None:
        del self.positions[place]
        self._ended.append(place)


class TopicFollower:
    """A follower of partitions from given offsets on, used by one thread.

    Nobody waits for a follower as recovery waits for a topic's end: a busy topic is fetched a few
    times a second, with everything that has come.
    """

    def __init__(self, settings: KafkaSettings, starts: Mapping[PartitionId, int], *, fetch_ms: int) -> None:
        self._topics = ", ".join(sorted({place.topic for place in starts}))
        with sorted_errors(f"following {self._topics}"):
            self._consumer = settings.open_consumer({"fetch.wait.max.ms": fetch_ms, "fetch.min.bytes": 1 << 20})
            self._consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    def read_new(self, wait_s: float) -> Iterator[Message]:
        """Yield the records that have become visible; wait so long for the first of them."""
        with sorted_errors(f"following {self._topics}"):
            for message in _take_batch(self._consumer, wait_s):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() not in {PARTITION_EOF, NO_GROUP} and not error.retriable():
                    raise sort_error(error, f"following {message.topic()} [{message.partition()}]")

    def close(self) -> None:
        self._consumer.close()


def _take_batch(consumer: Consumer, wait_s: float) -> list[Message]:
    """Take what has come; wait so long for the first record.

    The library waits for the whole time, or for as many records as are asked for.
    """
    messages = consumer.consume(1, wait_s)
    return messages + consumer.consume(_RECORDS - 1, min(wait_s, _TOGETHER_S)) if messages else messages


def _known_end(consumer: Consumer, place: PartitionId) -> int:
    """Return the end that the last fetch saw, open transactions included; negative: none did."""
    found = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
    return -1 if found is None else found[1]


def _by_partition(batch: list[Message]) -> Iterator[tuple[PartitionId, list[Message], int | None, KafkaError | None]]:
    """Group neighbouring messages of one partition. Yield each group, the position behind it if
    that is known, and an error behind the group.

    A partition's end is a message of its own, without records.
    """
    errors = any(map(Message.error, batch))
    start = 0
    for key, same in groupby(zip(map(Message.topic, batch), map(Message.partition, batch), strict=True)):
        count = sum(1 for _ in same)
        records, start = batch[start : start + count], start + count
        position: int | None = (records[-1].offset() or 0) + 1
        failure = None
        if errors:
            position = None
            for message in records:
                if (error := message.error()) is None or error.code() == PARTITION_EOF:
                    position = (message.offset() or 0) + (error is None)
                else:
                    failure = error
            records = [message for message in records if message.error() is None]
        yield PartitionId(*key), records, position, failure  # type: ignore[arg-type]


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
