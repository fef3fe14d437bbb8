"""Waits until a position of the source is visible: to consumers of Kafka, or in a mirror's tables.

A position is visible in Kafka when everything up to it is committed there, and its commit record is
visible. The progress topic says so, also where nothing that is published happens in the source. A
mirror says in the consumer group `<prefix>.mirror` which cut it has published. No table is read.

Positions of two timelines are not compared. Nothing here asks the source: the connector does, and
its refusal in the progress topic ends a wait.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from confluent_kafka import Consumer, TopicPartition

from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.names import TopicNames
from twofold_avro.records import Progress, RecordDecoder
from twofold_common.errors import Refused, SetupError, Unreachable, UsageError
from twofold_common.mirror_place import MirrorPlace, parse_place
from twofold_common.positions import Lsn, format_lsn, parse_lsn
from twofold_reader.schemas import schemas_at
from twofold_reader.topics import END, Closing, consumer_settings, passes_by_itself, sorted_errors

Until = Literal["kafka", "mirror", "global"]
OpenConsumer = Callable[[Mapping[str, Any]], Consumer]
"""Opens a consumer with these options beside those that reach the brokers."""

_TAIL: Final = 64
_WAIT_S: Final = 0.1
_ASKED_S: Final = 5.0
_TRIES: Final = 5
_POLLED_S: Final = 0.03
_NO_PROGRESS: Final = Progress(0, 0, "", 0, "", "", 0, 0)


@dataclass(slots=True)
class Heard:
    """What the ends of the progress topic and of the commits topic say. Pure."""

    last: Progress = _NO_PROGRESS
    """The last progress record."""
    visible: int = 0
    """The last commit record's number."""
    is_current: bool = True
    """False: the topics were made again, and are to be read again."""
    _connector: bytes = b""
    _refusals: dict[bytes, bytes] = field(default_factory=dict)
    """By the connector: one that was refused because the topics are another's has written here."""

    def note_progress(self, key: bytes, progress: Progress) -> None:
        self.is_current = self.is_current and self.last.stream_id in {"", progress.stream_id}
        self.last, self._connector = progress, key
        self._refusals.pop(key, None)

    def note_refusal(self, key: bytes, data: bytes | None) -> None:
        """Note why a run has ended by itself; None: a later one has overcome it."""
        connector = key.partition(b"/")[0]
        self._refusals.pop(connector, None)
        if data is not None:
            self._refusals[connector] = data

    def refuse(self, lsn: Lsn) -> None:
        """Raise the refusal of the connector that is newer than its progress, if there is one."""
        with suppress(ValueError, TypeError, KeyError):  # another version or program wrote it
            said = json.loads(self._refusals.get(self._connector, b"{}"))
            if said and said["exit_status"] == Refused.exit_status:
                raise Refused(
                    f"the connector has refused to go on: {said['what']}",
                    at_stake=f"whether {format_lsn(lsn)} is visible: it may be of another timeline than what is in Kafka",
                    repair=str(said["repair"]),
                )


class PositionWaiter(Closing):
    """Waits for positions of one prefix; its connections serve one wait after the other.

    Used by one thread.
    """

    def __init__(self, prefix: str, open_consumer: OpenConsumer, schema_of: Callable[[int], str]) -> None:
        self._prefix = prefix
        self._mirror_group = f"{prefix}.mirror"
        self._open = open_consumer
        self._records = RecordDecoder(schema_of)
        names = TopicNames(prefix)
        self._topics = (names.progress, names.commits)
        self._consumer: Consumer | None = None
        self._asking: Consumer | None = None
        """Reads nothing: a broker answers a client that reads only behind its fetch."""
        self._heard = Heard(is_current=False)
        self._read: dict[str, int] = {}
        """The offset up to which each topic is read."""

    @classmethod
    def at(cls, prefix: str, kafka: Mapping[str, Any], registry: str | Callable[[int], str]) -> PositionWaiter:
        """Make one of confluent_kafka's options, and of the registry's URL."""
        settings = consumer_settings(kafka)
        return cls(prefix, lambda options: Consumer({**settings, **options}), schemas_at(registry))

    def close(self) -> None:
        for consumer in (self._consumer, self._asking):
            if consumer is not None:
                consumer.close()

    def wait(self, position: str | int, *, until: Until = "kafka", timeout_s: float = 30.0) -> None:
        """Return when everything up to the position is visible. Unreachable: not within the time.
        Refused: the connector has refused to go on, and the position may be of another timeline.

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
        with sorted_errors("asking how far everything is"):
            enough = self._wait_for_kafka(lsn, deadline, timeout_s)
            if until != "kafka":
                self._wait_for_mirror(lsn, enough, deadline, timeout_s, is_global=until == "global")

    def read_progress(self) -> Progress:
        """Return the last progress record that is visible. Unreachable: none comes in time."""
        deadline = time.monotonic() + _ASKED_S
        with sorted_errors("asking how far everything is"):
            if not self._catch_up(deadline):
                self._begin(deadline)
        if not self._heard.last.applied_lsn:
            raise Unreachable(
                f"Kafka does not say how far {self._prefix} is within {_ASKED_S:g} s; remedy: grant Read on its topics, and look with twofold status"
            )
        return self._heard.last

    def _wait_for_kafka(self, lsn: Lsn, deadline: float, timeout_s: float) -> int:
        """Return the number of a commit record that is visible and has the position behind it."""
        enough: int | None = None
        is_caught_up = self._catch_up(max(deadline, time.monotonic() + _ASKED_S))
        while enough is None or self._heard.visible < enough:
            if not self._heard.is_current:
                is_caught_up = self._begin(max(deadline, time.monotonic() + _ASKED_S))
                enough = None
            self._heard.refuse(lsn)
            if enough is None and self._heard.last.applied_lsn >= lsn and is_caught_up:
                enough = self._heard.last.sequence
                continue
            if time.monotonic() >= deadline:
                raise self._late(lsn, timeout_s, "in Kafka", _place(self._heard.last))
            self._take_news(max(0.0, min(_WAIT_S, deadline - time.monotonic())))
        return enough

    def _wait_for_mirror(self, lsn: Lsn, enough: int, deadline: float, timeout_s: float, *, is_global: bool) -> None:
        while True:
            place = self._ask_mirror()
            if place is not None and place.stream_id == self._heard.last.stream_id:
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
            return f"no mirror has said in the group {self._mirror_group} where it is"
        if not place.sequence:
            return "the mirror has no cut yet"
        if place.stream_id != self._heard.last.stream_id:
            return f"the mirror reads topics of {self._prefix} that were made again since"
        return _place(place)

    def _ask_mirror(self) -> MirrorPlace | None:
        group, asking = self._mirror_group, self._open_asking()
        wanted = [TopicPartition(TopicNames(self._prefix).commits, 0)]
        for _ in range(_TRIES):
            # librdkafka reads on behind the text; the next answer lies elsewhere in memory
            with suppress(UnicodeDecodeError):
                (found,) = asking.committed(wanted, _ASKED_S)
                if found.error is not None:
                    raise Unreachable(
                        f"Kafka does not say where the mirror is: {found.error.str()}; remedy: grant Describe on the group {group}"
                    )
                return None if found.offset < 0 else parse_place(found.metadata, group)
        return None

    def _catch_up(self, deadline: float) -> bool:
        """Return whether the progress topic is read to its present end: what was read for an
        earlier wait may be of a former timeline, or of topics that were made again.
        """
        if self._consumer is None or not self._heard.is_current:
            return False
        progress = self._topics[0]
        _, end = self._bounds(progress, deadline)
        self._heard.is_current = end >= self._read[progress]
        return self._read_to({progress: end}, deadline)

    def _begin(self, deadline: float) -> bool:
        """Open both topics, and read the last record of each; return whether that was done."""
        if self._consumer is not None:
            self._consumer.close()
        self._heard = Heard(is_current=False)
        self._consumer = consumer = self._open({"group.id": "twofold-reader"})
        bounds = {topic: self._bounds(topic, deadline) for topic in self._topics}
        self._heard.is_current = True
        back = _TAIL
        while True:
            self._read = {topic: max(low, high - back) for topic, (low, high) in bounds.items()}
            is_first = all(self._read[topic] == low for topic, (low, _) in bounds.items())
            consumer.assign([TopicPartition(topic, 0, start) for topic, start in self._read.items()])
            is_read = self._read_to({topic: high for topic, (_, high) in bounds.items()}, deadline)
            if not is_read or is_first or (self._heard.last.applied_lsn and self._heard.visible):
                break
            back *= 16
        if not is_read:
            self._heard.is_current = False  # the next wait opens them again
        elif not self._heard.visible:  # retention has deleted all commit records: these were visible
            self._heard.visible = self._heard.last.sequence
        return is_read

    def _open_asking(self) -> Consumer:
        if self._asking is None:
            self._asking = self._open({"group.id": self._mirror_group})
        return self._asking

    def _bounds(self, topic: str, deadline: float) -> tuple[int, int]:
        left_s = max(0.1, deadline - time.monotonic())
        return self._open_asking().get_watermark_offsets(TopicPartition(topic, 0), timeout=left_s)

    def _read_to(self, ends: Mapping[str, int], deadline: float) -> bool:
        """Return whether the topics are read to these ends within the time."""
        while self._heard.is_current and any(self._read[topic] < end for topic, end in ends.items()):
            if time.monotonic() >= deadline:
                return False
            self._take_news(_WAIT_S)
        return self._heard.is_current

    def _take_news(self, wait_s: float) -> None:
        """Take what has come, or wait a little."""
        assert self._consumer is not None
        for message in self._consumer.consume(1000, 0) or self._consumer.consume(1, wait_s):
            topic, offset = message.topic() or "", message.offset() or 0
            if (error := message.error()) is None:
                self._read[topic] = offset + 1
                self._note(topic, offset, message.key() or b"", message.value())
            elif error.code() == END:  # beyond the end of the last transaction, which is no message
                self._read[topic] = max(self._read[topic], offset)
            elif not passes_by_itself(error):
                self._heard.is_current = False  # the next wait opens them again
                raise SetupError(f"Kafka: reading {topic or 'the progress'} failed: {error.str()}")

    def _note(self, topic: str, offset: int, key: bytes, data: bytes | None) -> None:
        if topic == self._topics[1]:
            number = key.partition(b"/")[0]
            self._heard.visible = int(number) if number.isdigit() else self._heard.visible
            return
        if key.partition(b"/")[2] == b"refusal":
            self._heard.note_refusal(key, data)
        elif key and b"/" not in key and data is not None:
            self._heard.note_progress(key, self._decode(data, f"{topic} at offset {offset}"))

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
