"""The rows of a prepared transaction that Kafka has and hides: those of its open Kafka transaction.

An open transaction's rows lie behind each partition's last stable offset, so only these stretches
are read, under read_uncommitted. Rows that a former run sent lie before it: a new run aborts them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter

from twofold.config import Config
from twofold.inspect.changes import ChangeReader, TopicChange
from twofold.inspect.in_doubt import InDoubt
from twofold.kafka.decoding import place_of
from twofold.kafka.kafka_settings import kafka_settings, names_of, open_registry
from twofold.kafka.topic_reader import TopicReader

FIRST_MAX = 5
"""The most changes shown of a table."""


@dataclass(frozen=True, slots=True)
class OpenRows:
    """The rows in one topic."""

    topic: str
    table: str
    changes: int
    first: tuple[TopicChange, ...]


@dataclass(slots=True)
class _Found:
    """The rows that were found in a topic."""

    changes: int = 0
    first: list[tuple[int, TopicChange]] = field(default_factory=list)
    """The first changes, each with its number in the transaction."""

    def add(self, number: int, change: TopicChange) -> None:
        self.changes += 1
        if len(self.first) < FIRST_MAX or number < self.first[-1][0]:
            self.first = sorted([*self.first, (number, change)], key=itemgetter(0))[:FIRST_MAX]


def read_open_rows(config: Config, each: InDoubt) -> tuple[OpenRows, ...]:
    """Return an open transaction's rows by topic, without outbox events, which do not name it."""
    names = names_of(config)
    reader, changes = TopicReader(kafka_settings(config)), ChangeReader(open_registry(config), names)
    topics = [topic for topic in each.topics if not topic.startswith(names.events)]
    bounds = reader.bounds(reader.partitions_of(topics))
    stretches = {place: (at.stable, at.high) for place, at in bounds.items()}
    mark, found = each.gid.encode(), {topic: _Found() for topic in topics}
    for message in reader.read(stretches, isolation="read_uncommitted"):
        value = message.value()
        if value is None or mark not in value:
            continue
        change = changes.read(place_of(message), message.key(), value)
        source, transaction = change.value["source"], change.value.get("transaction")
        if (source.get("txId"), source.get("gid")) == (each.xid, each.gid) and isinstance(transaction, dict):
            found[change.topic].add(transaction.get("total_order") or 0, change)
    return tuple(_rows_of(topic, of_topic) for topic, of_topic in found.items())


def _rows_of(topic: str, found: _Found) -> OpenRows:
    first = tuple(change for _, change in found.first)
    return OpenRows(topic, next((each.table for each in first if each.table), topic), found.changes, first)
