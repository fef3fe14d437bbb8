"""Reads what recovery needs to know: progress and pins, the in-doubt ledger, and the last commit record.

To the end means: to the high watermark that stood when the reading began, read_committed. After the fence nothing of ours is open below it, so the last stable offset reaches it within moments; if
it does not, somebody else's transaction is open there, and that is said.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from twofold.errors import Refused, Unreachable
from twofold.sink.client import PARTITION_EOF, KafkaSettings, sort_error, sorted_errors
from twofold.sink.names import Names
from twofold.sink.schema_registry import Registry
from twofold_avro import wire
from twofold_avro.records import Commit, Pin, Prepared, Progress, Record
from twofold_avro.schemas import fixed

_Latest = dict[bytes, bytes]
_R = TypeVar("_R", bound=Record)

_ENDS = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
_TAIL = 64
"""How far before the end the last commit record is looked for first; each further look goes twice as far."""


_WAIT_S = 0.05
"""How long one look for records waits: `consume` comes back early only with a full list."""


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What a predecessor left."""

    progress: Progress | None
    """None: nothing was ever committed under this name."""
    takeover: str | None
    """The token of the last takeover."""
    pins: dict[str, Pin] = field(default_factory=dict)
    """By topic."""
    unresolved: dict[str, Prepared] = field(default_factory=dict)
    """The ledger's entries without an outcome, by downstream id."""
    ended: tuple[str, ...] = ()
    """The downstream ids of the others, the last one last."""
    commands: dict[str, str] = field(default_factory=dict)
    """What people wish of a table's backfill, by topic."""
    progress_end: int = 0
    """How far the progress topic was read."""
    last_commit: Commit | None = None
    """None: there is none, or retention has taken it."""


class Decoder:
    """The bookkeeping's records from their bytes, also from those of another version."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._writers: dict[tuple[int, type[Record]], Any] = {}
        """By a schema's id: None if it is our own."""

    def decode(self, kind: type[_R], message: bytes) -> _R:
        schema_id, _ = wire.unframe(message)
        if (schema_id, kind) not in self._writers:
            writer = json.loads(self._registry.schema(schema_id))
            self._writers[schema_id, kind] = None if writer == fixed(kind.schema_name) else writer
        return kind.from_bytes(message, self._writers[schema_id, kind])


class ProgressReader:
    """Reads; writes nothing. Used by one thread."""

    def __init__(self, settings: KafkaSettings, names: Names, registry: Registry) -> None:
        self._settings = settings
        self._timeout_s = settings.call_timeout_s
        self._names = names
        self._decode = Decoder(registry).decode
        with sorted_errors("making the admin client"):
            self._admin = AdminClient(settings.admin())

    def read(self) -> RecoveredState:
        """Everything that recovery reads. True only after the fence."""
        names = self._names
        bounds = {topic: self._bounds(topic) for topic in (names.progress, names.prepared, names.commits)}
        low, end = bounds[names.commits]
        found = self._committed({**bounds, names.commits: (max(low, end - _TAIL), end)})
        latest, ledger = found[names.progress], found[names.prepared]
        self._refuse_others(latest)
        last = self._last_commit(found[names.commits].get(b""), low, end)
        progress, takeover = latest.get(names.progress_key), latest.get(names.takeover_key)
        pinned = {topic: value for key, value in latest.items() if (topic := names.pinned_topic(key))}
        entries = {key.decode(): self._decode(Prepared, value) for key, value in ledger.items()}
        unresolved = {key: entry for key, entry in entries.items() if entry.state in {"open", "parked"}}
        commands = {topic: value for key, value in latest.items() if (topic := names.command_topic(key))}
        return RecoveredState(
            commands={topic: value.decode() for topic, value in commands.items()},
            progress_end=bounds[names.progress][1],
            progress=None if progress is None else self._decode(Progress, progress),
            takeover=None if takeover is None else takeover.decode(),
            pins={topic: self._decode(Pin, value) for topic, value in pinned.items()},
            unresolved=unresolved,
            ended=tuple(key for key in entries if key not in unresolved),
            last_commit=None if last is None else self._decode(Commit, last),
        )

    def _refuse_others(self, latest: _Latest) -> None:
        """A takeover record alone may be there of one that was refused here."""
        others = sorted(key.decode() for key in latest if b"/" not in key and key != self._names.progress_key)
        if others:
            raise Refused(
                f"the topics {self._names.prefix}.* belong to the connector {others[0]}, and this one is {self._names.name}",
                at_stake="two sources would share one set of topics: positions, keys and order would mean nothing",
                repair=f"give this one a kafka.prefix of its own, or its former name back: name = {others[0]!r}",
            )

    def _last_commit(self, last: bytes | None, low: int, end: int) -> bytes | None:
        """Markers and aborted records take offsets too, so the last commit record may lie some way before the end."""
        back = _TAIL
        while last is None and end - back > low:
            back *= 4
            last = self._committed({self._names.commits: (max(low, end - back), end)})[self._names.commits].get(b"")
        return last

    def _bounds(self, topic: str) -> tuple[int, int]:
        """The first offset, and the high watermark: beyond what read_committed may see now."""
        place = TopicPartition(topic, 0)
        with sorted_errors(f"reading the bounds of {topic}"):
            low, high = (
                self._admin.list_offsets(
                    {place: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self._timeout_s
                )[place]
                .result()
                .offset
                for spec in _ENDS
            )
        return low, high

    def _committed(self, stretches: Mapping[str, tuple[int, int]]) -> dict[str, _Latest]:
        """Each topic's last committed value of each key, from an offset to a high watermark: what compaction would leave. A record without a key has the key b"".

        Each step is bounded, not the number of records; only what is returned is held in memory.
        One new consumer for all: one that knows its brokers already looks for a further topic only once a second.
        """
        found: dict[str, _Latest] = {topic: {} for topic in stretches}
        unfinished = set(stretches)
        with sorted_errors(f"reading {', '.join(stretches)}"):
            consumer = Consumer(self._settings.consumer())
            try:
                consumer.assign([TopicPartition(topic, 0, start) for topic, (start, _) in stretches.items()])
                deadline = time.monotonic() + self._timeout_s
                while unfinished:
                    for message in consumer.consume(1000, _WAIT_S):
                        deadline = time.monotonic() + self._timeout_s
                        topic, error = message.topic() or "", message.error()
                        if error is None:
                            _keep(found[topic], message.key() or b"", message.value())
                        elif error.code() != PARTITION_EOF:
                            raise sort_error(error, f"reading {topic}")
                        elif (message.offset() or 0) >= stretches[topic][1]:
                            unfinished.discard(topic)
                    if time.monotonic() > deadline:
                        raise _stuck(sorted(unfinished), self._timeout_s)
            finally:
                consumer.close()
        return found


def _keep(latest: _Latest, key: bytes, value: bytes | None) -> None:
    latest.pop(key, None)  # in the order of what was written last
    if value is not None:
        latest[key] = value


def _stuck(topics: list[str], timeout_s: float) -> Unreachable:
    return Unreachable(
        f"Kafka does not give {', '.join(topics)} to the end within {timeout_s:.0f} s: brokers are away, or a transaction of another program is open there"
        f" (kafka-transactions.sh --bootstrap-server ... find-hanging --topic {topics[0]} --partition 0)"
    )
