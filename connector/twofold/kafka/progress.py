"""Reads what recovery needs: progress and pins, the in-doubt ledger, and the last commit record.

It reads to the high watermark at the beginning of the read, read_committed. After the fence none of
our transactions is open below that, so the last stable offset reaches it within moments. If it does
not, another program's transaction is open there, and the error says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Consumer, IsolationLevel, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from twofold.errors import Refused, Unreachable
from twofold.kafka.backfill_commands import TopicCommand
from twofold.kafka.client import PARTITION_EOF, KafkaSettings, sort_error, sorted_errors
from twofold.kafka.decoding import Decoder, RecordPlace, place_of, read_command, read_text
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry
from twofold_avro.records import Commit, Pin, Prepared, Progress


class _Kept(NamedTuple):
    """The last value of a key, where it lies, and the time of its record."""

    value: bytes
    place: RecordPlace
    at_ms: int

    @property
    def placed(self) -> tuple[bytes, RecordPlace]:
        """What a decoder takes."""
        return self.value, self.place


_Latest = dict[bytes, _Kept]

_ENDS = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
_TAIL = 64
"""The last commit record is first searched this far before the end; each further search goes
four times as far."""


_WAIT_S = 0.05
"""How long one `consume` waits: it returns early only with a full list."""


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """The state that a predecessor left."""

    progress: Progress | None
    """None: nothing was ever committed under this name."""
    takeover: str | None
    """The token of the last takeover."""
    refusal: str | None = None
    """Why the last run ended by itself, until one has committed since."""
    pins: dict[str, Pin] = field(default_factory=dict)
    """The pins by topic."""
    unresolved: dict[str, Prepared] = field(default_factory=dict)
    """The ledger's entries without an outcome, by downstream id."""
    ended: tuple[str, ...] = ()
    """The downstream ids of the other entries, in the order of their last writes."""
    commands: tuple[TopicCommand, ...] = ()
    """People's commands about loads that nobody has executed, in their order."""
    progress_at_ms: int = 0
    """The time of the progress record, by the clock that gives rows their time."""
    progress_end: int = 0
    """The end of the read part of the progress topic."""
    last_commit: Commit | None = None
    """None: there is none, or retention has deleted it."""

    @property
    def to_reload(self) -> frozenset[str]:
        """The topics of tables that a person wants to be loaded from the beginning."""
        return frozenset(command.topic for command in self.commands if command.name == "start")


class ProgressReader:
    """A reader of the bookkeeping topics; it writes nothing. Used by one thread."""

    def __init__(self, settings: KafkaSettings, names: Names, registry: Registry) -> None:
        self._settings = settings
        self._timeout_s = settings.call_timeout_s
        self._names = names
        self._decode = Decoder(registry).decode
        with sorted_errors("creating the admin client"):
            self._admin = settings.secrets.open(AdminClient, settings.admin())

    def read(self) -> RecoveredState:
        """Read everything that recovery needs. The result is reliable only after the fence."""
        names = self._names
        bounds = {topic: self._bounds(topic) for topic in (names.progress, names.prepared, names.commits)}
        low, end = bounds[names.commits]
        latest_of = self._committed({**bounds, names.commits: (max(low, end - _TAIL), end)})
        latest, ledger = latest_of[names.progress], latest_of[names.prepared]
        self._refuse_others(latest)
        last = self._last_commit(latest_of[names.commits].get(b""), low, end)
        progress, takeover = latest.get(names.progress_key), latest.get(names.takeover_key)
        refusal = latest.get(names.refusal_key)
        pinned = {topic: kept for key, kept in latest.items() if (topic := names.pinned_topic(key))}
        pins = {topic: self._decode(Pin, *kept.placed) for topic, kept in pinned.items()}
        entries = {read_text(key, kept.place): self._decode(Prepared, *kept.placed) for key, kept in ledger.items()}
        unresolved = {key: entry for key, entry in entries.items() if entry.state in {"open", "parked"}}
        return RecoveredState(
            commands=_unexecuted(names, latest, pins),
            progress_end=bounds[names.progress][1],
            progress_at_ms=0 if progress is None else progress.at_ms,
            progress=None if progress is None else self._decode(Progress, *progress.placed),
            takeover=None if takeover is None else read_text(*takeover.placed),
            refusal=None if refusal is None else refusal.value.decode(errors="replace"),
            pins=pins,
            unresolved=unresolved,
            ended=tuple(key for key in entries if key not in unresolved),
            last_commit=None if last is None else self._decode(Commit, *last.placed),
        )

    def _refuse_others(self, latest: _Latest) -> None:
        """Refuse topics that belong to another connector.

        A takeover record alone may stem from a connector that was refused here.
        """
        others = sorted(
            read_text(key, kept.place)
            for key, kept in latest.items()
            if b"/" not in key and key != self._names.progress_key
        )
        if others:
            raise Refused(
                f"the topics {self._names.prefix}.* belong to the connector {others[0]}, but this connector is {self._names.name}",
                at_stake="two sources would share one set of topics: positions, keys and order would mean nothing",
                repair=f"give this connector its own kafka.prefix, or restore its former name: name = {others[0]!r}",
            )

    def _last_commit(self, last: _Kept | None, low: int, end: int) -> _Kept | None:
        """Search the last commit record backwards from the end.

        Markers and aborted records take offsets too, so the record may lie some way before the end.
        """
        back = _TAIL
        while last is None and end - back > low:
            back *= 4
            last = self._committed({self._names.commits: (max(low, end - back), end)})[self._names.commits].get(b"")
        return last

    def _bounds(self, topic: str) -> tuple[int, int]:
        """Return the first offset and the high watermark, which may be beyond read_committed."""
        partition = TopicPartition(topic, 0)
        with sorted_errors(f"reading the bounds of {topic}"):
            low, high = (
                self._admin.list_offsets(
                    {partition: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self._timeout_s
                )[partition]
                .result()
                .offset
                for spec in _ENDS
            )
        return low, high

    def _committed(self, stretches: Mapping[str, tuple[int, int]]) -> dict[str, _Latest]:
        """Return each topic's last committed value of each key, from an offset to a high watermark.

        That is what compaction would leave. A record without a key has the key b"". Each step is
        bounded, not the number of records; only the result is held in memory. One new consumer
        reads all topics: a consumer that knows its brokers already queries further topics only
        once a second.
        """
        latest_of: dict[str, _Latest] = {topic: {} for topic in stretches}
        unfinished = set(stretches)
        with sorted_errors(f"reading {', '.join(stretches)}"):
            consumer = self._settings.secrets.open(Consumer, self._settings.consumer())
            try:
                consumer.assign([TopicPartition(topic, 0, start) for topic, (start, _) in stretches.items()])
                deadline = time.monotonic() + self._timeout_s
                while unfinished:
                    for message in consumer.consume(1000, _WAIT_S):
                        deadline = time.monotonic() + self._timeout_s
                        topic, error = message.topic() or "", message.error()
                        if error is None:
                            _keep(latest_of[topic], message)
                        elif error.code() != PARTITION_EOF:
                            raise sort_error(error, f"reading {topic}")
                        elif (message.offset() or 0) >= stretches[topic][1]:
                            unfinished.discard(topic)
                    if time.monotonic() > deadline:
                        raise _stuck(sorted(unfinished), self._timeout_s)
            finally:
                consumer.close()
        return latest_of


def _unexecuted(names: Names, latest: _Latest, pins: Mapping[str, Pin]) -> tuple[TopicCommand, ...]:
    """Return the commands behind the one that each pin has; `latest` is in the order of the last
    writes.
    """
    given = (
        TopicCommand(kept.place.offset, topic, read_command(*kept.placed))
        for key, kept in latest.items()
        if (topic := names.command_topic(key))
    )
    return tuple(each for each in given if each.topic not in pins or each.number > pins[each.topic].command)


def _keep(latest: _Latest, message: Message) -> None:
    key, value = message.key() or b"", message.value()
    latest.pop(key, None)  # in the order of the last writes
    if value is not None:
        latest[key] = _Kept(value, place_of(message), message.timestamp()[1])


def _stuck(topics: list[str], timeout_s: float) -> Unreachable:
    return Unreachable(
        f"Kafka delivered nothing more of {', '.join(topics)} for {timeout_s:.0f} s: brokers are away, or another program has an open transaction there;"
        f" find it with kafka-transactions.sh --bootstrap-server ... find-hanging --topic {topics[0]} --partition 0"
    )
