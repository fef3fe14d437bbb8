"""Reads the branches of global transactions that any connector of a Kafka cluster knows.

It reads the connectors' in-doubt ledgers, and their commit records since a time. A branch that was
committed soon after its PREPARE is only in a commit record. One that was rolled back equally soon
is nowhere. This is for people: no connector's work depends on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Message, TopicPartition

from twofold.errors import SetupError, Unreachable
from twofold.sink.client import PARTITION_EOF, KafkaSettings, sort_error, sorted_errors
from twofold.sink.schema_registry import Registry
from twofold_avro import wire
from twofold_avro.records import Commit, Prepared, Record
from twofold_avro.schemas import fixed

_LEDGER, _COMMITS = ".prepared", ".commits"


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a global transaction, as a connector's topics show it."""

    prefix: str
    gid: str
    global_id: str
    state: Literal["open", "parked", "committed", "rolled_back"]
    sequence: int | None = None
    """Its commit record's number, if it is committed and has one."""
    committed_at: float | None = None
    """When it was committed, if its commit record says so."""


@dataclass(frozen=True, slots=True)
class Branches:
    """All branches found, and the topics that were not readable."""

    found: tuple[Branch, ...]
    unread: tuple[str, ...]
    """The unreadable topics, each with the reason."""
    last: Mapping[str, int]
    """The last commit record of each prefix that was read."""


NO_BRANCHES = Branches((), (), {})


class Ledgers:
    """A reader of the connectors' ledgers. It reads once and writes nothing."""

    def __init__(self, settings: KafkaSettings, registry: Registry) -> None:
        self._settings = settings
        self._timeout_s = settings.call_timeout_s
        self._registry = registry

    def branches(self, global_ids: Collection[str], since_ms: int) -> Branches:
        """Return all branches of these global transactions that any connector's topics mention.

        Commit records before `since_ms` are not read.
        """
        marks = [each.encode() for each in global_ids]
        last_of: dict[str, bytes] = {}
        found: dict[tuple[str, str], Branch] = {}
        unread: dict[str, str] = {}
        with sorted_errors("reading the connectors' ledgers"):
            consumer = self._settings.secrets.open(Consumer, self._settings.consumer())
            try:
                for message in self._messages(consumer, since_ms, unread):
                    value, topic = message.value() or b"", message.topic() or ""
                    if topic.endswith(_COMMITS):
                        last_of[topic] = value
                    if not any(mark in value for mark in marks):
                        continue
                    for branch in self._decoded(topic, value, unread):
                        known = found.get((branch.prefix, branch.gid))
                        if branch.global_id in global_ids and _says_more(branch, known):
                            found[branch.prefix, branch.gid] = branch
            finally:
                consumer.close()
        committed = {each.prefix for each in found.values() if each.sequence is not None}
        return Branches(
            tuple(found.values()),
            tuple(f"{topic}: {reason}" for topic, reason in sorted(unread.items())),
            {prefix: self._sequence(last_of[topic]) for prefix in committed if (topic := prefix + _COMMITS) in last_of},
        )

    def _messages(self, consumer: Consumer, since_ms: int, unread: dict[str, str]) -> Iterator[Message]:
        topics = consumer.list_topics(timeout=self._timeout_s).topics
        prefixes = [name.removesuffix(_LEDGER) for name in topics if name.endswith(_LEDGER)]
        prefixes = [prefix for prefix in prefixes if prefix + _COMMITS in topics]
        since = [TopicPartition(prefix + _COMMITS, 0, since_ms) for prefix in prefixes]
        starts = consumer.offsets_for_times(since, timeout=self._timeout_s) if since else []
        for start in starts:
            start.offset = start.offset if start.offset >= 0 else OFFSET_END
        consumer.assign([*starts, *(TopicPartition(prefix + _LEDGER, 0, OFFSET_BEGINNING) for prefix in prefixes)])
        unfinished = {prefix + kind for prefix in prefixes for kind in (_LEDGER, _COMMITS)}
        deadline = time.monotonic() + self._timeout_s
        while unfinished:
            for message in consumer.consume(1000, 0.05):
                deadline = time.monotonic() + self._timeout_s
                topic, error = message.topic() or "", message.error()
                if error is None:
                    yield message
                    continue
                if error.code() != PARTITION_EOF:
                    unread[topic] = str(sort_error(error, f"reading {topic}"))
                unfinished.discard(topic)
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"Kafka delivered nothing more of {', '.join(sorted(unfinished))} for {self._timeout_s:.0f} s"
                )

    def _decoded(self, topic: str, value: bytes, unread: dict[str, str]) -> list[Branch]:
        kind: type[Record] = Prepared if topic.endswith(_LEDGER) else Commit
        prefix = topic.removesuffix(_LEDGER).removesuffix(_COMMITS)
        try:
            writer = json.loads(self._registry.schema(wire.unframe(value)[0]))
        except SetupError as error:
            unread[topic] = str(error)  # its connector has a registry of its own
            return []
        if writer["name"] != fixed(kind.schema_name)["name"]:
            return []  # a table's topic with such a name
        record = kind.from_bytes(value, writer)
        if isinstance(record, Prepared):
            return [Branch(prefix, record.gid, record.global_id or "", record.state, record.sequence)]
        assert isinstance(record, Commit)
        return [
            Branch(prefix, each.gid, each.global_id or "", "committed", record.sequence, each.committed_at / 1e6)
            for each in record.prepared
        ]

    def _sequence(self, value: bytes) -> int:
        """Read the number of a commit record of a connector whose other ones were read."""
        record = Commit.from_bytes(value, json.loads(self._registry.schema(wire.unframe(value)[0])))
        assert isinstance(record, Commit)
        return record.sequence


def _says_more(branch: Branch, known: Branch | None) -> bool:
    """Whether it replaces what is known: an outcome wins over the ledger's states, and a commit
    record over the ledger.
    """
    return known is None or known.state in {"open", "parked"} or branch.committed_at is not None
