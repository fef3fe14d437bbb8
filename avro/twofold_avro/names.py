"""PostgreSQL's names as Avro names and Kafka topics, and back.

Avro allows `[A-Za-z_][A-Za-z0-9_]*` for a field and for each part of a namespace. Kafka allows
`[A-Za-z0-9._-]` and 249 characters for a topic. Ordinary names stay as they are. Every other
character becomes `_x<hex>_`. So does an underscore before an `x`, so that a name that looks like an
escape is none. Two names never become the same, and `postgres_name` is the exact inverse. Pure.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

TOPIC_MAX = 249

_FIELD_SAFE = re.compile(r"(_(?=x)|[^A-Za-z0-9_]|^[0-9])")
_TOPIC_SAFE = re.compile(r"(_(?=x)|[^A-Za-z0-9_-])")
_EVENT_SAFE = re.compile(r"(_(?=x)|[^A-Za-z0-9._-])")
_ESCAPE = re.compile(r"_x([0-9a-f]+)_")


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The topics of a prefix that are no table's."""

    prefix: str

    @property
    def commits(self) -> str:
        return f"{self.prefix}.commits"

    @property
    def progress(self) -> str:
        return f"{self.prefix}.progress"

    @property
    def prepared(self) -> str:
        return f"{self.prefix}.prepared"

    @property
    def frontiers(self) -> str:
        return f"{self.prefix}.frontiers"

    @property
    def messages(self) -> str:
        return f"{self.prefix}.messages"

    @property
    def bookkeeping(self) -> frozenset[str]:
        """The topics without rows: a commit record's ranges leave them out."""
        return frozenset({self.commits, self.progress, self.prepared, self.frontiers})

    @property
    def own(self) -> frozenset[str]:
        """The topics whose names are one part longer than the prefix."""
        return self.bookkeeping | {self.messages}

    @property
    def events(self) -> str:
        """The beginning of all topics of outbox events.

        No table's topic has three parts behind the prefix.
        """
        return f"{self.prefix}.outbox.event."

    def is_loaded_from_none(self, topic: str) -> bool:
        """Whether the topic has events or messages, which no load of a table brings."""
        return topic == self.messages or topic.startswith(self.events)


def avro_name(name: str) -> str:
    """Return a column, schema or table as an Avro name."""
    return _escape(_FIELD_SAFE, name)


def postgres_name(escaped: str) -> str:
    """Invert `avro_name`, for one part of a topic too."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), escaped)


def topic_of(prefix: str, schema: str, table: str) -> str:
    """Return `<prefix>.<schema>.<table>`.

    A name that is too long for Kafka ends in a digest of itself.
    """
    return _short(f"{prefix}.{_escape(_TOPIC_SAFE, schema)}.{_escape(_TOPIC_SAFE, table)}")


def event_topic_of(prefix: str, name: str) -> str:
    """Return the topic of the outbox events with this name; dots stay in it."""
    return _short(TopicNames(prefix).events + _escape(_EVENT_SAFE, name))


def _short(topic: str) -> str:
    if len(topic) <= TOPIC_MAX:
        return topic
    digest = hashlib.sha256(topic.encode()).hexdigest()[:32]
    return f"{topic[: TOPIC_MAX - len(digest) - 1]}-{digest}"


def namespace_of(prefix: str, schema: str, table: str) -> str:
    """Return the Avro namespace of a table's records: its topic's parts as Avro names."""
    return ".".join([*(avro_name(part) for part in prefix.split(".")), avro_name(schema), avro_name(table)])


def _escape(unsafe: re.Pattern[str], name: str) -> str:
    return unsafe.sub(lambda found: f"_x{ord(found[1]):x}_", name)
