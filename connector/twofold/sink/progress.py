"""Reads what recovery needs to know: progress and pins, the in-doubt ledger, and the last commit record.

To the end means: to the high watermark that stood when the reading began, read_committed. After the fence nothing of ours is open below it, so the last stable offset reaches it within moments; if
it does not, somebody else's transaction is open there, and that is said.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from twofold.errors import Unreachable
from twofold.sink.client import PARTITION_EOF, KafkaSettings, sort_error, sorted_errors
from twofold.sink.names import Names
from twofold.sink.registry import Registry
from twofold_avro import wire
from twofold_avro.records import Commit, Pin, Prepared, Progress, Record
from twofold_avro.schemas import fixed

_R = TypeVar("_R", bound=Record)

_BOUNDS = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
_TAIL = 64
"""How far before the end the last commit record is looked for first; each further look goes twice as far."""


_WAIT_S = 0.05
"""How long one look for records waits: `consume` comes back early only with a full list."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a predecessor left."""

    progress: Progress | None
    """None: nothing was ever committed under this name."""
    takeover: str | None
    """The token of the last takeover."""
    pins: dict[str, Pin] = field(default_factory=dict)
    """By topic."""
    unresolved: dict[str, Prepared] = field(default_factory=dict)
    """The ledger's entries without an outcome, by downstream id."""
    last_commit: Commit | None = None
    """None: there is none, or retention has taken it."""


class ProgressReader:
    """Reads; writes nothing. Used by one thread."""

    def __init__(self, settings: KafkaSettings, names: Names, registry: Registry) -> None:
        self._timeout_s = settings.call_timeout_s
        self._names = names
        self._registry = registry
        self._own_schemas: dict[tuple[int, type[Record]], bool] = {}
        with sorted_errors("making the reader"):
            self._admin = AdminClient(settings.admin())
            self._consumer = Consumer(settings.consumer())

    def close(self) -> None:
        with sorted_errors("closing the reader"):
            self._consumer.close()

    def read(self) -> Recovered:
        """Everything that recovery reads. True only after the fence."""
        latest = self._latest(self._names.progress)
        ledger = self._latest(self._names.prepared)
        last = self._last(self._names.commits)
        progress = latest.get(self._names.progress_key)
        takeover = latest.get(self._names.takeover_key)
        pinned = {topic: m for key, m in latest.items() if (topic := self._names.pinned_topic(key))}
        entries = {key.decode(): self._decode(Prepared, value) for key, value in ledger.items()}
        return Recovered(
            progress=None if progress is None else self._decode(Progress, progress),
            takeover=None if takeover is None else takeover.decode(),
            pins={topic: self._decode(Pin, value) for topic, value in pinned.items()},
            unresolved={key: entry for key, entry in entries.items() if entry.state in {"open", "parked"}},
            last_commit=None if last is None else self._decode(Commit, last),
        )

    def _latest(self, topic: str) -> dict[bytes, bytes]:
        """What compaction would leave: each key's last value; a key whose last value is a tombstone is gone."""
        latest: dict[bytes, bytes | None] = {}
        _, end = self._bounds(topic)
        for message in self._committed(topic, OFFSET_BEGINNING, end):
            latest[message.key() or b""] = message.value()
        return {key: value for key, value in latest.items() if value is not None}

    def _last(self, topic: str) -> bytes | None:
        """The last record's value. Markers and aborted records take offsets too, so it may lie some way before the end."""
        low, end = self._bounds(topic)
        back = _TAIL
        while True:
            start = max(low, end - back)
            last = None
            for message in self._committed(topic, start, end):
                last = message.value()
            if last is not None or start == low:
                return last
            back *= 4

    def _bounds(self, topic: str) -> tuple[int, int]:
        """The first offset, and the high watermark: beyond what read_committed may see now."""
        place = TopicPartition(topic, 0)
        with sorted_errors(f"reading the bounds of {topic}"):
            bounds = [
                self._admin.list_offsets(
                    {place: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self._timeout_s
                )[place]
                .result()
                .offset
                for spec in _BOUNDS
            ]
        return bounds[0], bounds[1]

    def _committed(self, topic: str, start: int, end: int) -> Iterator[Message]:
        """The records from `start` to the high watermark `end`. Each step is bounded, not their number."""
        with sorted_errors(f"reading {topic}"):
            self._consumer.assign([TopicPartition(topic, 0, start)])
            deadline = time.monotonic() + self._timeout_s
            while True:
                for message in self._consumer.consume(1000, _WAIT_S):
                    deadline = time.monotonic() + self._timeout_s
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.code() != PARTITION_EOF:
                        raise sort_error(error, f"reading {topic}")
                    elif (message.offset() or 0) >= end:
                        return
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"Kafka does not give {topic} to its end, offset {end}, within {self._timeout_s:.0f} s: brokers are away, or a transaction of another"
                        f" program is open in it (kafka-transactions --bootstrap-server ... find-hanging --topic {topic} --partition 0)"
                    )

    def _decode(self, kind: type[_R], message: bytes) -> _R:
        schema_id, _ = wire.unframe(message)
        writer = json.loads(self._registry.schema(schema_id))
        own = self._own_schemas.setdefault((schema_id, kind), writer == fixed(kind.schema_name))
        return kind.from_bytes(message, None if own else writer)
