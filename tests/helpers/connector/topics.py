"""Reads a connector's topics as any consumer would: whole or as they grow, with either isolation,
decoded by the registry's schemas alone.
"""

from __future__ import annotations

import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from helpers.reading import Schemas, make_consumer, topics_of

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
FEW = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """One record. A key or value in Avro is decoded, another one is its text."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset


class Reader:
    """Of one Kafka and one registry; remembers schemas."""

    def __init__(self, bootstrap: str, registry_url: str) -> None:
        self.bootstrap = bootstrap
        self.registry_url = registry_url
        self._schemas = Schemas(registry_url)

    def topics(self, prefix: str) -> list[str]:
        """The names that exist under the prefix."""
        consumer = self._consumer(COMMITTED)
        try:
            return topics_of(consumer, prefix)
        finally:
            consumer.close()

    def read(self, topics: Iterable[str], isolation: str = COMMITTED) -> list[Seen]:
        """All that a reader of the isolation gets now, in the order of place."""
        tail = Tail(self, self._consumer(isolation, wait_ms=10), list(topics))
        try:
            tail.to_end()
            return sorted(tail.seen, key=lambda s: s.place)
        finally:
            tail.close()

    def tail(self, topics: Iterable[str], isolation: str = COMMITTED) -> Tail:
        """A consumer that goes on reading, from the beginning."""
        return Tail(self, self._consumer(isolation), list(topics))

    def _consumer(self, isolation: str, wait_ms: int = 100) -> Consumer:
        return make_consumer(self.bootstrap, isolation, wait_ms)

    def decode(self, data: bytes | None) -> Any:
        if data is None or not data.startswith(b"\0"):
            return None if data is None else data.decode()
        try:
            return self._schemas.decode(data)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"the registry answers {error.code} to the schema id of {data[:40]!r}...") from error


def fold(state: dict[tuple[int, str], Any], seen: Seen) -> None:
    """Apply a record to the rows of a topic, by partition and key. Truncates come in every
    partition.
    """
    place = seen.partition, str(seen.key)
    if seen.value is None or seen.value["op"] == "d":
        state.pop(place, None)
    elif seen.value["op"] == "t":
        for other in [each for each in state if each[0] == seen.partition]:
            del state[other]
    else:
        state[place] = seen.value["after"]


Row = TypeVar("Row")


def rows_in_the_end(
    seen: Iterable[Seen], read_row: Callable[[Any], Row], *, each_replaced: bool = False
) -> Counter[Row]:
    """The rows that whoever reads a topic from its beginning has in the end.

    `each_replaced`: without a key, a row that is replaced or deleted is there before.
    """
    records = [each for each in seen if each.value is not None]
    emptied = {each.partition: each.offset for each in records if each.value["op"] == "t"}
    keyed: dict[str, Counter[Row]] = {}
    keyless: Counter[Row] = Counter()
    for each in records:
        if each.value["op"] == "t" or each.offset < emptied.get(each.partition, -1):
            continue
        before, after = (Counter([read_row(row)] if row else []) for row in (each.value["before"], each.value["after"]))
        if each.key is None:
            assert before <= keyless or not each_replaced, f"{each.value['before']} replaces no row"
            keyless = keyless + after - before
        else:
            keyed[str(each.key)] = after
    return sum(keyed.values(), start=keyless)


class Tail:
    """What a consumer of some topics has seen so far."""

    def __init__(self, reader: Reader, consumer: Consumer, topics: list[str]) -> None:
        self._reader = reader
        self._consumer = consumer
        self.seen: list[Seen] = []
        self.ends: dict[tuple[str, int], int] = {}
        """Where each partition ended when it was last read to its end."""
        self._topics = topics
        self._places: list[tuple[str, int]] = []
        self._find()

    def _find(self) -> None:
        """Read the topics that there are; others may be made later."""
        self._looked_at = time.monotonic()
        known = self._known()
        new = [TopicPartition(t, p, 0) for t in self._topics if t in known for p in known[t].partitions]
        self._topics = [t for t in self._topics if t not in known]
        self._places += [(place.topic, place.partition) for place in new]
        if new:
            self._consumer.incremental_assign(new)

    def _known(self) -> dict[str, Any]:
        """A few topics are asked for by name: the broker has those of all tests before this one."""
        if len(self._topics) > FEW:
            return dict(self._consumer.list_topics(timeout=20).topics)
        each = (self._consumer.list_topics(topic, timeout=20).topics[topic] for topic in self._topics)
        return {found.topic: found for found in each if found.error is None}

    def poll(self, wait_s: float = 0.02) -> None:
        """Take what has come."""
        if self._topics and time.monotonic() > self._looked_at + 0.1:
            self._find()
        for message in self._consumer.consume(5000, wait_s):
            place = message.topic() or "", message.partition() or 0
            offset, error = message.offset() or 0, message.error()
            if error is None:
                key, value = self._reader.decode(message.key()), self._reader.decode(message.value())
                self.seen.append(Seen(*place, offset, key, value))
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ends[place] = offset
            elif not error.retriable() and error.code() not in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}:
                raise AssertionError(str(error))

    def to_end(self, within_s: float = 90) -> None:
        """Read to where each partition ends now; give up when nothing has come for so long."""
        ends = {place: self._find_end(place) for place in self._places}
        seen, came = len(self.seen), time.monotonic()
        while missing := {place for place, end in ends.items() if self.ends.get(place, -1) < end}:
            self.poll()
            if len(self.seen) > seen:
                seen, came = len(self.seen), time.monotonic()
            assert time.monotonic() < came + within_s, f"not read to the end: {missing}"

    def _find_end(self, place: tuple[str, int]) -> int:
        """For a reader of committed data it is before the first open transaction."""
        deadline = time.monotonic() + 20
        while True:
            try:
                end: int = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=20)[1]
            except KafkaException:  # a topic that was just made has no leader yet
                if time.monotonic() > deadline:
                    raise
                self.poll()
            else:
                return end

    def wait_for(
        self, wanted: Callable[[Seen], bool], within_s: float = 120, *, unless: Callable[[], bool] = lambda: False
    ) -> Seen | None:
        """The first record that fits. None if `unless` came true before."""
        looked, deadline = 0, time.monotonic() + within_s
        while True:
            for seen in self.seen[looked:]:
                if wanted(seen):
                    return seen
            looked = len(self.seen)
            if unless():
                return None
            assert time.monotonic() < deadline, f"not seen within {within_s} s"
            self.poll()

    def close(self) -> None:
        self._consumer.close()


def gid_of(seen: Seen) -> str | None:
    """The gid that a row of a table carries."""
    return seen.value["source"]["gid"] if isinstance(seen.value, dict) and "source" in seen.value else None
