"""Reads the branches of global transactions that the members of a source group know.

Only topics of prefixes that the configuration names are read: whoever may create topics could write
outcomes of his own choice into others. What cannot be read is named, and the rest is shown.

It reads the connectors' in-doubt ledgers, and their commit records since a time. A branch that was
committed soon after its PREPARE is only in a commit record. One that was rolled back equally soon
is nowhere. This is for people: no connector's work depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from twofold.errors import SetupError, TwofoldError, UnreadableRecord
from twofold.kafka.client import KafkaSettings
from twofold.kafka.decoding import Decoder, RecordPlace, place_of
from twofold.kafka.schema_registry import Registry
from twofold.kafka.topic_reader import PartitionId, TopicReader
from twofold_avro.names import TopicNames
from twofold_avro.records import Commit, Prepared, PreparedOutcome
from twofold_common.gids import find_global_id


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a global transaction, as a connector's topics show it."""

    prefix: str
    gid: str
    global_id: str
    state: Literal["open", "parked", "committed", "rolled_back"]
    sequence: int | None = None
    """The number of the branch's commit record, if it is committed and has one."""
    committed_at: float | None = None
    """The time of the commit, if the branch's commit record has it."""
    prepare_lsn: int = 0
    """The position of its PREPARE: of a gid that is used again, the branch is the last one's."""
    noted_at: float | None = None
    """The time when the ledger's entry was written."""

    def ended_before(self, time_s: float) -> bool:
        """Whether the branch has an outcome that is older."""
        ended_at = self.noted_at if self.committed_at is None else self.committed_at
        return self.state in {"committed", "rolled_back"} and ended_at is not None and ended_at < time_s


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

    def __init__(
        self, settings: KafkaSettings, registry: Registry, prefixes: Collection[str], gid_patterns: tuple[str, ...]
    ) -> None:
        self._gid_patterns = gid_patterns
        self._reader = TopicReader(settings)
        self._members = [TopicNames(prefix) for prefix in sorted({*prefixes})]
        self._prefix_of = {topic: each.prefix for each in self._members for topic in (each.prepared, each.commits)}
        self._commits = frozenset(each.commits for each in self._members)
        self._decoder = Decoder(registry)

    def branches(self, global_ids: Collection[str], since_ms: int) -> Branches:
        """Return all branches of these global transactions that the members' topics mention.

        Commit records before `since_ms` are not read.
        """
        marks = [each.encode() for each in global_ids]
        last_of: dict[str, tuple[bytes, RecordPlace]] = {}
        found: dict[tuple[str, str], Branch] = {}
        unread: dict[str, str] = {}
        failed: dict[PartitionId, TwofoldError] = {}
        for message in self._reader.read(self._stretches(since_ms), failed=failed):
            value, topic = message.value() or b"", message.topic() or ""
            if topic in self._commits:
                last_of[topic] = value, place_of(message)
            if not any(mark in value for mark in marks):
                continue
            noted_at = message.timestamp()[1] / 1000
            for branch in self._decoded(topic, value, place_of(message), noted_at, unread):
                known = found.get((branch.prefix, branch.gid))
                if branch.global_id in global_ids and _says_more(branch, known):
                    found[branch.prefix, branch.gid] = branch
        unread |= {place.topic: str(error) for place, error in failed.items()}
        committed = {each.prefix for each in found.values() if each.sequence is not None}
        return Branches(
            tuple(found.values()),
            tuple(f"{topic}: {reason}" for topic, reason in sorted(unread.items())),
            dict(self._last_sequences(committed, last_of)),
        )

    def _stretches(self, since_ms: int) -> dict[PartitionId, tuple[int, int]]:
        """Return the ledgers, and the commit records since then, of the prefixes that have both."""
        places = {each.topic: each for each in self._reader.partitions_of(self._prefix_of)}
        both = [each for each in self._members if {each.prepared, each.commits} <= places.keys()]
        visible = self._reader.visible(places[topic] for each in both for topic in (each.prepared, each.commits))
        commits = [each for each in visible if each.topic in self._commits]
        since = self._reader.offsets_since(commits, since_ms)
        return {place: (max(start, since.get(place, start)), end) for place, (start, end) in visible.items()}

    def _decoded(
        self, topic: str, value: bytes, place: RecordPlace, noted_at: float, unread: dict[str, str]
    ) -> list[Branch]:
        prefix = self._prefix_of[topic]
        try:
            if topic not in self._commits:
                entry = self._decoder.decode(Prepared, value, place)
                name = self._name(entry)
                return [Branch(prefix, *name, entry.state, entry.sequence, None, entry.prepare_lsn, noted_at)]
            record = self._decoder.decode(Commit, value, place)
        except (SetupError, UnreadableRecord) as error:  # its connector may have a registry of its own
            unread[topic] = error.what if isinstance(error, UnreadableRecord) else str(error)
            return []
        return [
            Branch(
                *(prefix, *self._name(each), "committed"),
                record.sequence,
                each.committed_at / 1e6,
                each.prepare_lsn,
            )
            for each in record.prepared
        ]

    def _name(self, branch: Prepared | PreparedOutcome) -> tuple[str, str]:
        return branch.gid, find_global_id(branch.gid, branch.global_id, self._gid_patterns) or ""

    def _last_sequences(
        self, prefixes: Iterable[str], last_of: Mapping[str, tuple[bytes, RecordPlace]]
    ) -> Iterator[tuple[str, int]]:
        """Yield the number of the last commit record of each, where it can be read."""
        for prefix in prefixes:
            if found := last_of.get(TopicNames(prefix).commits):
                with suppress(SetupError, UnreadableRecord):
                    yield prefix, self._decoder.decode(Commit, *found).sequence


def _says_more(branch: Branch, known: Branch | None) -> bool:
    """Whether the branch replaces a known one: a later PREPARE wins, of one PREPARE an outcome wins
    over the ledger's states, and a commit record over the ledger.
    """
    if known is None or branch.prepare_lsn != known.prepare_lsn:
        return known is None or branch.prepare_lsn > known.prepare_lsn
    return known.state in {"open", "parked"} or branch.committed_at is not None
