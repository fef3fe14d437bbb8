"""Follows the commit records of a source group's members: how far each is visible, and which one
was the last that a frontier must know. Both are in a commit record's key: a busy member writes
hundreds of them a second. One of each look is decoded: it says whether the stream is still the
same.

Begins with each member's progress, which is always there, and the end of its commit records, which
retention may have removed. Used by one thread. What it says is never more than what is visible; it
may be less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twofold.errors import RunEnded, SetupError
from twofold.kafka.client import GRANT, KafkaSettings
from twofold.kafka.decoding import Decoder, place_of, unreadable
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.names import read_commit_key
from twofold.kafka.schema_registry import Registry
from twofold.kafka.topic_reader import PartitionId, TopicFollower, TopicReader
from twofold_avro.names import TopicNames
from twofold_avro.records import Commit, Frontier, Progress

_TAIL = 64
"""Commit records are followed from this far before the end: what came between the two reads."""
_FETCH_MS = 200
"""A busy member commits hundreds of times a second: Kafka answers five times a second, with all."""


@dataclass(slots=True)
class MemberView:
    """A member, and how far its commit records are visible."""

    stream_id: str = ""
    """The stream whose commit records are counted."""
    sequence: int = 0
    needed: int = 0
    """The last visible commit record with a prepared transaction, or with the end of a load."""


def missing_members(settings: KafkaSettings, prefixes: Iterable[str]) -> list[str]:
    """Return the members whose topics this Kafka does not have, or does not show."""
    _, metadata = ask_brokers(settings, settings.call_timeout_s)
    members = map(TopicNames, prefixes)
    return [each.prefix for each in members if not {each.commits, each.progress} <= metadata.topics.keys()]


def require_members(settings: KafkaSettings, prefixes: Iterable[str]) -> None:
    """Refuse members without topics."""
    if missing := missing_members(settings, prefixes):
        rights = "; ".join(f"{GRANT} --operation Read --topic {p}. --resource-pattern-type prefixed" for p in missing)
        raise SetupError(
            f"the group's members {', '.join(missing)} have no topics in this Kafka, or this user may not see them:"
            f" run twofold init for each, correct group.members, or grant Read on their topics: {rights}"
        )


class MemberCommits:
    """A follower of the members' commit records."""

    def __init__(self, settings: KafkaSettings, registry: Registry, prefixes: Iterable[str]) -> None:
        self._settings = settings
        self._decoder = Decoder(registry)
        self.views = {prefix: MemberView() for prefix in prefixes}
        self._commits = {TopicNames(prefix).commits: view for prefix, view in self.views.items()}
        self._follower: TopicFollower | None = None

    def begin(self) -> None:
        """Read the members' progress, and the end of their commit records."""
        reader = TopicReader(self._settings)
        progress = {TopicNames(prefix).progress: view for prefix, view in self.views.items()}
        for message in reader.read(reader.visible(PartitionId(topic, 0) for topic in progress)):
            if b"/" not in (message.key() or b"") and message.value() is not None:  # others have one in their key
                view = progress[message.topic() or ""]
                found = self._decoder.decode_message(Progress, message)
                view.stream_id, view.sequence = found.stream_id, found.sequence
        bounds = reader.bounds(PartitionId(topic, 0) for topic in self._commits)
        starts = {place: max(each.low, each.high - _TAIL) for place, each in bounds.items()}
        self._follower = TopicFollower(self._settings, starts, fetch_ms=_FETCH_MS)

    def follow(self, wait_s: float) -> None:
        """Read the commit records that have become visible; wait so long for the first of them."""
        assert self._follower is not None, "begin comes first"
        messages = list(self._follower.read_new(wait_s))
        for message in messages:
            key = read_commit_key(message.key())
            if key is None:
                raise unreadable(place_of(message), "its key is no commit record's")
            view = self._commits[message.topic() or ""]
            view.sequence = max(view.sequence, key.sequence)
            if key.is_awaited:
                view.needed = max(view.needed, key.sequence)
        last = {each.topic() or "": each for each in messages}
        for topic, message in last.items():
            # The topics of a member that were made again count from 1.
            if self._decoder.decode_message(Commit, message).stream_id != self._commits[topic].stream_id:
                raise RunEnded(f"{topic} was made again, with another stream's commit records: frontiers go on with it")

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()


def last_frontiers(settings: KafkaSettings, registry: Registry, prefixes: Iterable[str]) -> dict[str, Frontier]:
    """Return the last frontier by prefix; a member without one is left out."""
    reader, decoder = TopicReader(settings), Decoder(registry)
    prefix_of = {TopicNames(prefix).frontiers: prefix for prefix in prefixes}
    topics = reader.partitions_of(prefix_of)
    last = {each.topic() or "": each for each in reader.read(reader.visible(topics)) if each.value() is not None}
    return {prefix_of[topic]: decoder.decode_message(Frontier, each) for topic, each in last.items()}
