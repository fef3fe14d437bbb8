"""Reads a prefix's topics from Kafka, read_committed, without a consumer group: the commit records
one by one, and the rows of their ranges.

One consumer reads all partitions, each from the first range that a commit record names. What comes
before it is asked for waits here, for each partition within a bound: one that has more is paused
until its rows are taken. So memory is bounded, however large a transaction is. Used by one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from twofold_avro.names import TopicNames
from twofold_avro.records import Range
from twofold_common.errors import SetupError, TwofoldError, Unreachable, UsageError
from twofold_reader.partition_rows import PartitionRows, removed_rows

_log = logging.getLogger("twofold_reader")

_BATCH: Final = 1000
_WAITING_BYTES: Final = 32 << 20
"""So much may wait, of all partitions together."""
_LEAST_BYTES: Final = 1 << 20
"""So much may wait of each partition, however many there are. A paused partition's records that the
library has fetched ahead are fetched again, so pauses must be rare."""
WAIT_S: Final = 0.1
_CALL_S: Final = 30.0
_ASKED_ONE_BY_ONE: Final = 10
"""For the leaders of more topics all are asked for at once."""
_TOLD_S: Final = 30.0
_OPTIONS: Final = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
_DEFAULTS: Final = {
    "group.id": "twofold-reader",  # the library requires one; nothing is stored in it
    # What waits here of a partition that is paused is fetched again, so it is little.
    "queued.max.messages.kbytes": 1024,
    # A full queue is looked at again after a second by default, and it is empty before that.
    "fetch.queue.backoff.ms": 20,
    # Compressed: what one answer brings of a partition must fit into what may wait of it.
    "max.partition.fetch.bytes": 128 << 10,
    "fetch.wait.max.ms": 100,
}
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001  (librdkafka's own codes begin so)
RESET: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001
_DENIED: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION}  # noqa: SLF001
)
_NO_GROUP: Final = KafkaError.GROUP_AUTHORIZATION_FAILED
"""The library asks for its group's coordinator, also where no group is used."""


def passes_by_itself(error: KafkaError) -> bool:
    """Whether the reading may go on."""
    return error.code() == _NO_GROUP or (error.retriable() and not error.fatal())


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


def consumer_settings(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer of confluent_kafka's options, which are checked."""
    if not kafka.get("bootstrap.servers"):
        raise UsageError("no Kafka broker is given: set 'bootstrap.servers' to host:port of one or more brokers")
    for name, value in _OPTIONS.items():
        if kafka.get(name, value) != value:
            raise UsageError(f"the Kafka option {name!r} must be {value!r} here: remove it")
    return {**_DEFAULTS, **kafka, **_OPTIONS}


class Closing:
    """What a `with` closes at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections to Kafka."""


class PrefixTopics:
    """The topics of one prefix."""

    def __init__(self, prefix: str, kafka: Mapping[str, Any]) -> None:
        self.prefix = prefix
        self._settings = consumer_settings(kafka)
        self._commits = Place(TopicNames(prefix).commits, 0)
        self._partitions: dict[Place, PartitionRows[Message]] = {}
        self.is_at_end = False
        with sorted_errors("connecting"):
            self._consumer = Consumer(self._settings)
            self._admin = AdminClient({name: kafka[name] for name in kafka if not name.startswith(_OF_CONSUMERS)})

    def close(self) -> None:
        self._consumer.close()

    # Where to begin

    def commits_bounds(self) -> tuple[int, int]:
        """Return the first offset that the commits topic has, and the end of what is committed."""
        return self.bounds([self._commits])[self._commits]

    def partitions(self, prefix: str) -> list[Place]:
        with sorted_errors("reading the topics"):
            found = self._admin.list_topics(timeout=_CALL_S).topics
        return [
            Place(name, partition)
            for name, metadata in found.items()
            if name.startswith(f"{prefix}.")
            for partition in metadata.partitions
        ]

    def bounds(self, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
        """Return the first offset of each partition, and the end of what is committed."""
        wanted = [TopicPartition(*place) for place in places]
        if not wanted:
            return {}
        ends = []
        with sorted_errors("asking where the topics begin and end"):
            for spec in (_EARLIEST, _LATEST):
                asked = dict.fromkeys(wanted, spec)
                answers = self._admin.list_offsets(asked, isolation_level=_COMMITTED, request_timeout=_CALL_S)
                ends.append({Place(tp.topic, tp.partition): each.result().offset for tp, each in answers.items()})
        return {place: (first, ends[1][place]) for place, first in ends[0].items()}

    def read_commit_at(self, offset: int) -> Message | None:
        """Return the first visible commit record from this offset on; None: there is none."""
        with sorted_errors(f"reading {self._commits.topic}"):
            self._consumer.assign([TopicPartition(*self._commits, offset)])
            while True:
                for message in self._consumer.consume(1, WAIT_S):
                    if (error := message.error()) is None:
                        return message
                    if error.code() == END:
                        return None
                    self._raise(error, message)

    # Reading on

    def begin(self, offset: int) -> None:
        """Begin with the commit record at this offset."""
        self._partitions = {self._commits: PartitionRows(offset)}
        self.is_at_end = False
        with sorted_errors(f"reading {self._commits.topic}"):
            self._consumer.assign([TopicPartition(*self._commits, offset)])

    def read_commits(self, wait_s: float = WAIT_S) -> Sequence[Message]:
        """Return the next commit records that have come; wait a little if there is none.

        Behind the last one `is_at_end` is true.
        """
        commits = self._partitions[self._commits]
        if not commits.size:
            self._read_more(commits, wait_s)
        return commits.take_portion()

    def open(self, ranges: Iterable[Range]) -> None:
        """Begin to read the partitions of these ranges that are not being read."""
        new: dict[Place, int] = {}
        for each in ranges:
            place = Place(each.topic, each.partition)
            if place not in self._partitions:
                new[place] = min(each.first, new.get(place, each.first))
        if not new:
            return
        topics = {place.topic for place in new} - {place.topic for place in self._partitions}
        for place, first in new.items():
            self._partitions[place] = PartitionRows(first)
        with sorted_errors("reading the tables' topics"):
            self._consumer.incremental_assign([TopicPartition(*place, first) for place, first in new.items()])
            # The library by itself looks for the leaders of further topics only once a second.
            if len(topics) > _ASKED_ONE_BY_ONE:
                self._consumer.list_topics(timeout=_CALL_S)
            else:
                for topic in topics:
                    self._consumer.list_topics(topic, timeout=_CALL_S)

    def read_range(self, wanted: Range) -> Iterator[Sequence[Message]]:
        """Yield the records of an opened partition's range, in portions."""
        rows = self._partitions[Place(wanted.topic, wanted.partition)]
        told_at = time.monotonic() + _TOLD_S

        def read_more() -> None:
            nonlocal told_at
            self._read_more(rows)
            if time.monotonic() > told_at:
                told_at = time.monotonic() + _TOLD_S
                _log.warning(
                    "waiting for %s [%s] from offset %s on: a transaction is open there, or its broker is away",
                    wanted.topic,
                    wanted.partition,
                    rows.position,
                )

        return rows.take_range(wanted, read_more, self._read_again)

    def _read_more(self, needed: PartitionRows[Message], wait_s: float = WAIT_S) -> None:
        """Add what has come; wait a little if nothing has."""
        with sorted_errors("reading"):
            self._resume(needed)
            batch = self._consumer.consume(_BATCH, 0) or self._consumer.consume(1, wait_s)
            errors = any(map(Message.error, batch))
            start = 0
            for key, same in groupby(zip(map(Message.topic, batch), map(Message.partition, batch), strict=True)):
                count = sum(1 for _ in same)
                records, start = batch[start : start + count], start + count
                rows = self._partitions.get(Place(*key))  # type: ignore[arg-type]
                if rows is self._partitions[self._commits]:
                    self.is_at_end = False
                if errors:
                    records = self._without_errors(records, rows)
                if rows is not None and records:
                    rows.add(records, (records[-1].offset() or 0) + 1)
            self._pause_full(needed)

    def _without_errors(self, records: list[Message], rows: PartitionRows[Message] | None) -> list[Message]:
        found = []
        for record in records:
            if (error := record.error()) is None:
                found.append(record)
            elif error.code() != END:
                self._raise(error, record)
            elif rows is not None and record.offset() is not None:
                rows.position = max(rows.position, record.offset() or 0)
                self.is_at_end = self.is_at_end or rows is self._partitions[self._commits]
        return found

    def _resume(self, needed: PartitionRows[Message]) -> None:
        if needed.is_paused:
            place = next(place for place, rows in self._partitions.items() if rows is needed)
            self._consumer.resume([TopicPartition(*place)])
            needed.is_paused = False

    def _pause_full(self, needed: PartitionRows[Message]) -> None:
        bound = max(_LEAST_BYTES, _WAITING_BYTES // len(self._partitions))
        full = []
        for place, rows in self._partitions.items():
            if rows.size <= bound:
                continue
            if rows.early_size > bound // 2:
                rows.drop_early()
            if rows.size > bound and rows is not needed and not rows.is_paused:
                rows.is_paused = True
                full.append(TopicPartition(*place))
        if full:
            self._consumer.pause(full)

    def _read_again(self, wanted: Range) -> Iterator[list[Message]]:
        """Yield the records of a range that lies before what is read now."""
        with sorted_errors(f"reading {wanted.topic} again"):
            consumer = Consumer(self._settings)
        position = wanted.first
        try:
            consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.first)])
            while position <= wanted.last:
                with sorted_errors(f"reading {wanted.topic} again"):
                    batch = consumer.consume(_BATCH, 0) or consumer.consume(1, WAIT_S)
                found = []
                for message in batch:
                    offset = message.offset() or 0
                    if (error := message.error()) is None:
                        position = offset + 1
                        if offset <= wanted.last:
                            found.append(message)
                    elif error.code() == END:
                        position = max(position, offset)
                    else:
                        self._raise(error, message)
                yield found
        finally:
            consumer.close()

    def _raise(self, error: KafkaError, message: Message) -> None:
        """Raise what ends the reading; return for what passes by itself."""
        if error.code() == RESET:
            offset = message.offset()
            where = f"{message.topic()} [{message.partition()}]" + (
                f" at offset {offset}" if offset and offset > 0 else ""
            )
            raise removed_rows(where, self.prefix)
        if error.code() in GONE:
            raise SetupError(f"the topic {message.topic()} does not exist, or no longer: look with twofold status")
        if passes_by_itself(error):
            return
        if error.code() in _DENIED or error.fatal():
            raise KafkaException(error)
        _log.warning("Kafka: %s", error.str())


_OF_CONSUMERS: Final = ("group.", "fetch.", "queued.", "max.partition", "enable.", "auto.", "isolation.", "session.")
_COMMITTED: Final = IsolationLevel.READ_COMMITTED


@contextmanager
def sorted_errors(doing: str) -> Iterator[None]:
    """Turn the library's errors into those that say what to do."""
    try:
        yield
    except TwofoldError:
        raise
    except KafkaException as error:
        reason = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
        text = f"Kafka: {doing} failed: {reason.str() if reason else error}"
        if reason is not None and reason.code() in _DENIED:
            raise SetupError(
                f"{text}; remedy: grant Read on the prefix's topics, or correct sasl.* and ssl.*"
            ) from error
        if reason is not None and reason.code() in GONE:
            raise SetupError(f"{text}; remedy: correct the prefix, or run twofold init") from error
        if reason is not None and reason.code() == KafkaError._NOENT:  # noqa: SLF001
            raise Unreachable(
                f"{text}; remedy: correct the prefix, grant Read on its topics, which Kafka hides from others, or start the brokers that hold them"
            ) from error
        raise Unreachable(
            f"{text}; remedy: check that the brokers of bootstrap.servers run and take the credentials"
        ) from error
