"""Waits until a position of the source is visible: to consumers of Kafka, or in a mirror's tables.

A position is visible in Kafka when everything up to it is committed there, and its commit record is
visible. The progress topic says so, also where nothing that is published happens in the source. A
mirror says in the consumer group `<prefix>.mirror` which cut it has published. No table is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal

from confluent_kafka import Consumer, TopicPartition

from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.names import TopicNames
from twofold_avro.records import Progress, RecordDecoder
from twofold_common.errors import Refused, SetupError, Unreachable, UsageError
from twofold_common.mirror_place import MirrorPlace, parse_place
from twofold_common.positions import Lsn, format_lsn, parse_lsn
from twofold_reader.schemas import schemas_at
from twofold_reader.topics import END, Closing, consumer_settings, sorted_errors

Until = Literal["kafka", "mirror", "global"]
OpenConsumer = Callable[[Mapping[str, Any]], Consumer]
"""Opens a consumer with these options beside those that reach the brokers."""

_TAIL: Final = 64
_WAIT_S: Final = 0.1
_ASKED_S: Final = 5.0
_TRIES: Final = 5
_POLLED_S: Final = 0.03


class PositionWaiter(Closing):
    """Waits for positions of one prefix; its connections serve one wait after the other.

    Used by one thread.
    """

    def __init__(self, prefix: str, open_consumer: OpenConsumer, schema_of: Callable[[int], str]) -> None:
        self._prefix = prefix
        self._open = open_consumer
        self._records = RecordDecoder(schema_of)
        names = TopicNames(prefix)
        self._topics = (names.progress, names.commits)
        self._consumer: Consumer | None = None
        self._mirror: Consumer | None = None
        self._last = Progress(0, 0, "", 0, "", "", 0, 0)
        """The last progress record."""
        self._visible = 0
        """The last commit record's number."""

    @classmethod
    def at(cls, prefix: str, kafka: Mapping[str, Any], registry: str | Callable[[int], str]) -> PositionWaiter:
        """Make one of confluent_kafka's options, and of the registry's URL."""
        settings = consumer_settings(kafka)
        return cls(prefix, lambda options: Consumer({**settings, **options}), schemas_at(registry))

    def close(self) -> None:
        for consumer in (self._consumer, self._mirror):
            if consumer is not None:
                consumer.close()

    def wait(self, position: str | int, *, until: Until = "kafka", timeout_s: float = 30.0) -> None:
        """Return when everything up to the position is visible. Unreachable: not within the time.

        `position` is one of PostgreSQL's, such as `pg_current_wal_lsn()` behind a COMMIT. `until`:
        `kafka`, `mirror`, or `global`, which is the mirror of a source group.
        """
        if until not in ("kafka", "mirror", "global"):
            raise UsageError(f"{until!r} is none of 'kafka', 'mirror' and 'global'")
        try:
            lsn = parse_lsn(position) if isinstance(position, str) else Lsn(position)
        except ValueError as error:
            raise UsageError(
                f"{position!r} is no position: give it as PostgreSQL writes it, such as 0/1A2B3C"
            ) from error
        deadline = time.monotonic() + timeout_s
        enough: int | None = None
        with sorted_errors("asking how far everything is"):
            while enough is None or self._visible < enough:
                if enough is None and self._last.applied_lsn >= lsn:
                    enough = self._last.sequence
                    continue
                if time.monotonic() >= deadline and self._consumer is not None:
                    raise self._late(lsn, timeout_s, "in Kafka", _place(self._last))
                self._read_news(deadline)
            if until != "kafka":
                self._wait_for_mirror(lsn, enough, deadline, timeout_s, is_global=until == "global")

    def read_progress(self) -> Progress:
        """Return the last progress record that is visible. Unreachable: none comes in time."""
        with sorted_errors("asking how far everything is"):
            self._read_news(time.monotonic() + _ASKED_S)
        if not self._last.applied_lsn:
            raise Unreachable(
                f"Kafka does not say how far {self._prefix} is within {_ASKED_S:g} s; remedy: grant Read on its topics, and look with twofold status"
            )
        return self._last

    def _wait_for_mirror(self, lsn: Lsn, enough: int, deadline: float, timeout_s: float, *, is_global: bool) -> None:
        while True:
            place = self._ask_mirror()
            if place is not None and place.stream_id == self._last.stream_id:
                if is_global and not place.of_group:
                    raise SetupError(
                        f"the mirror of {self._prefix} is not that of a source group, so it publishes no global cuts: wait for the mirror, or start one with --source-group"
                    )
                # Behind the last commit record the source's position moves on without one.
                if place.applied_lsn >= lsn or place.sequence >= enough:
                    return
            if time.monotonic() >= deadline:
                said = self._say_mirror(place)
                raise self._late(lsn, timeout_s, "in the global cut" if is_global else "in the mirror", said)
            time.sleep(_POLLED_S)

    def _say_mirror(self, place: MirrorPlace | None) -> str:
        if place is None:
            return f"no mirror has said in the group {self._prefix}.mirror where it is"
        if not place.sequence:
            return "the mirror has no cut yet"
        if place.stream_id != self._last.stream_id:
            return f"the mirror reads topics of {self._prefix} that were made again since"
        return _place(place)

    def _ask_mirror(self) -> MirrorPlace | None:
        group = f"{self._prefix}.mirror"
        if self._mirror is None:
            self._mirror = self._open({"group.id": group})
        wanted = [TopicPartition(TopicNames(self._prefix).commits, 0)]
        for _ in range(_TRIES):
            # librdkafka reads on behind the text; the next answer lies elsewhere in memory
            with suppress(UnicodeDecodeError):
                (found,) = self._mirror.committed(wanted, _ASKED_S)
                if found.error is not None:
                    raise Unreachable(
                        f"Kafka does not say where the mirror is: {found.error.str()}; remedy: grant Describe on the group {group}"
                    )
                return None if found.offset < 0 else parse_place(found.metadata, group)
        return None

    def _read_news(self, deadline: float) -> None:
        """Take what has been written, or wait a little for it."""
        if self._consumer is None:
            self._consumer = self._begin(max(deadline, time.monotonic() + _ASKED_S))
        left_s = max(0.0, min(_WAIT_S, deadline - time.monotonic()))
        self._take_news(self._consumer, left_s)

    def _begin(self, deadline: float) -> Consumer:
        """Open both topics, and read the last record of each."""
        consumer = self._open({"group.id": "twofold-reader"})
        bounds = {
            topic: consumer.get_watermark_offsets(
                TopicPartition(topic, 0), timeout=max(0.1, deadline - time.monotonic())
            )
            for topic in self._topics
        }
        back = _TAIL
        while True:
            starts = {topic: max(low, high - back) for topic, (low, high) in bounds.items()}
            consumer.assign([TopicPartition(topic, 0, start) for topic, start in starts.items()])
            left = {*self._topics}
            while left and time.monotonic() < deadline:
                left -= self._take_news(consumer, _WAIT_S)
            found = bool(self._last.applied_lsn and self._visible)
            if found or time.monotonic() >= deadline or all(starts[topic] == bounds[topic][0] for topic in starts):
                break
            back *= 16
        if not self._visible:  # retention has deleted all commit records: these were visible
            self._visible = self._last.sequence
        return consumer

    def _take_news(self, consumer: Consumer, wait_s: float) -> set[str]:
        """Take what has come; return the topics that are read to their ends."""
        ended = set()
        for message in consumer.consume(1000, 0) or consumer.consume(1, wait_s):
            topic, key, data = message.topic() or "", message.key() or b"", message.value()
            if (error := message.error()) is not None:
                if error.code() == END:
                    ended.add(topic)
                elif not error.retriable():
                    raise SetupError(f"Kafka: reading {topic or 'the progress'} failed: {error.str()}")
            elif topic == self._topics[1]:
                number = key.partition(b"/")[0]
                self._visible = int(number) if number.isdigit() else self._visible
            elif key and b"/" not in key and data is not None:
                self._last = self._decode(data, f"{topic} at offset {message.offset()}")
        return ended

    def _decode(self, data: bytes, place: str) -> Progress:
        try:
            return self._records.decode(Progress, data)
        except (MalformedRecord, NotFramed) as error:
            raise Refused(
                f"the record in {place} cannot be read: {error}",
                at_stake="how far the connector is",
                repair="find who else writes to this topic",
            ) from error

    def _late(self, lsn: Lsn, timeout_s: float, where: str, how_far: str) -> Unreachable:
        return Unreachable(
            f"{format_lsn(lsn)} of {self._prefix} is not visible {where} within {timeout_s:g} s: {how_far}; remedy: twofold status says what it waits for"
        )


def _place(place: Progress | MirrorPlace) -> str:
    return f"it is at {format_lsn(place.applied_lsn)}, commit record {place.sequence}"


def wait(
    position: str | int,
    prefix: str,
    kafka: Mapping[str, Any],
    registry: str | Callable[[int], str],
    *,
    until: Until = "kafka",
    timeout_s: float = 30.0,
) -> None:
    """Return when everything up to this position of the source is visible.

    Unreachable: it is not within `timeout_s`. One who waits often keeps a `PositionWaiter`.
    """
    with PositionWaiter.at(prefix, kafka, registry) as waiter:
        waiter.wait(position, until=until, timeout_s=timeout_s)
