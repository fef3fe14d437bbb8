"""Reads the branches of global transactions that the members of a source group know.

Only topics of prefixes that the configuration names are read: whoever may create topics could write
outcomes of his own choice into others. What cannot be read is named, and the rest is shown.

It reads the connectors' in-doubt ledgers, and their commit records since a time. A branch that was
committed soon after its PREPARE is only in a commit record. One that was rolled back equally soon
is nowhere. This is for people: no connector's work depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Message, TopicPartition

from twofold.errors import SetupError, Unreachable, UnreadableRecord
from twofold.kafka.client import PARTITION_EOF, KafkaSettings, sort_error, sorted_errors
from twofold.kafka.decoding import Decoder, RecordPlace, place_of
from twofold.kafka.schema_registry import Registry
from twofold_avro.records import Commit, Prepared

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


class Ledgers:
    """A reader of the connectors' ledgers. It reads once and writes nothing."""

    def __init__(self, settings: KafkaSettings, registry: Registry, prefixes: Collection[str]) -> None:
        self._settings = settings
        self._timeout_s = settings.call_timeout_s
        self._prefixes = frozenset(prefixes)
        self._decoder = Decoder(registry)

    def branches(self, global_ids: Collection[str], since_ms: int) -> Branches:
        """Return all branches of these global transactions that the members' topics mention.

        Commit records before `since_ms` are not read.
        """
        marks = [each.encode() for each in global_ids]
        last_of: dict[str, tuple[bytes, RecordPlace]] = {}
        found: dict[tuple[str, str], Branch] = {}
        unread: dict[str, str] = {}
        with sorted_errors("reading the connectors' ledgers"):
            consumer = self._settings.secrets.open(Consumer, self._settings.consumer())
            try:
                for message in self._messages(consumer, since_ms, unread):
                    value, topic = message.value() or b"", message.topic() or ""
                    if topic.endswith(_COMMITS):
                        last_of[topic] = value, place_of(message)
                    if not any(mark in value for mark in marks):
                        continue
                    for branch in self._decoded(topic, value, place_of(message), unread):
                        known = found.get((branch.prefix, branch.gid))
                        if branch.global_id in global_ids and _says_more(branch, known):
                            found[branch.prefix, branch.gid] = branch
            finally:
                consumer.close()
        committed = {each.prefix for each in found.values() if each.sequence is not None}
        return Branches(
            tuple(found.values()),
            tuple(f"{topic}: {reason}" for topic, reason in sorted(unread.items())),
            dict(self._last_sequences(committed, last_of)),
        )

    def _messages(self, consumer: Consumer, since_ms: int, unread: dict[str, str]) -> Iterator[Message]:
        topics = consumer.list_topics(timeout=self._timeout_s).topics
        prefixes = [prefix for prefix in self._prefixes if {prefix + _LEDGER, prefix + _COMMITS} <= topics.keys()]
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

    def _decoded(self, topic: str, value: bytes, place: RecordPlace, unread: dict[str, str]) -> list[Branch]:
        prefix = topic.removesuffix(_LEDGER).removesuffix(_COMMITS)
        try:
            if topic.endswith(_LEDGER):
                entry = self._decoder.decode(Prepared, value, place)
                return [Branch(prefix, entry.gid, entry.global_id or "", entry.state, entry.sequence)]
            record = self._decoder.decode(Commit, value, place)
        except (SetupError, UnreadableRecord) as error:  # its connector may have a registry of its own
            unread[topic] = error.what if isinstance(error, UnreadableRecord) else str(error)
            return []
        return [
            Branch(prefix, each.gid, each.global_id or "", "committed", record.sequence, each.committed_at / 1e6)
            for each in record.prepared
        ]

    def _last_sequences(
        self, prefixes: Iterable[str], last_of: Mapping[str, tuple[bytes, RecordPlace]]
    ) -> Iterator[tuple[str, int]]:
        """Yield the number of the last commit record of each, where it can be read."""
        for prefix in prefixes:
            if found := last_of.get(prefix + _COMMITS):
                with suppress(SetupError, UnreadableRecord):
                    yield prefix, self._decoder.decode(Commit, *found).sequence


def _says_more(branch: Branch, known: Branch | None) -> bool:
    """Whether it replaces what is known: an outcome wins over the ledger's states, and a commit
    record over the ledger.
    """
    return known is None or known.state in {"open", "parked"} or branch.committed_at is not None
