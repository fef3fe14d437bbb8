"""Decides the event of an outbox table's insert, or of a logical message. Pure.

An event is no row: its table chooses its topic, and its bytes stay as they are, without an
envelope. `event_topics` puts events into the batch of their transaction, beside the rows. So events
take the rows' way: the batch, the spool, a prepared transaction's own Kafka transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from twofold.config import OutboxRule
from twofold.errors import Refused
from twofold.source.decoder import decode, insert_texts
from twofold.source.messages import Insert, LogicalMessage
from twofold_avro.names import event_topic_of
from twofold_avro.shapes import TableShape
from twofold_avro.types import How, encoding_of

Headers = tuple[tuple[str, bytes | None], ...]

_JSON = frozenset({"json", "jsonb"})
_AT_STAKE = "its events cannot be made, and none is passed over"


class OutboxEvent(NamedTuple):
    """An event in the form of its record in Kafka."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Places(NamedTuple):
    """Where an event's parts are in a row."""

    topic: int
    key: int
    payload: int
    headers: list[tuple[str, int]]


class OutboxTable:
    """One version of an outbox table."""

    def __init__(self, rule: OutboxRule, shape: TableShape, prefix: str) -> None:
        """A version that does not fit the rule is refused with its first event. The stream also
        describes versions whose events are in Kafka.
        """
        self.name = f"{shape.schema}.{shape.table}"
        self._prefix = prefix
        self._rule = rule
        self._shape = shape
        self._columns = [column.name for column in shape.columns]
        self._bytes = [encoding_of(column.type).how is How.BYTES for column in shape.columns]
        self._topics: dict[bytes, str] = {}
        """The topics by their names."""
        self.is_avro = rule.payload_encoding == "avro"
        """Whether the registry's schemas encode the payloads."""

    @cached_property
    def _places(self) -> Places:
        return self.find_places()

    def find_places(self) -> Places:
        """Find where an event's parts are in a row.

        Refused: the table lacks a named column, or a data policy hides it.
        """
        rule, shape = self._rule, self._shape
        places = Places(
            self._place("topic_column", rule.topic_column),
            self._place("key_column", rule.key_column),
            self._place("payload_column", rule.payload_column),
            [(name, self._place("header_columns", name)) for name in rule.header_columns],
        )
        require_shown(rule, shape)
        if self._bytes[places.topic]:
            raise Refused(
                f"the outbox {self.name} has bytes in {rule.topic_column}, the column that names the topic",
                at_stake=_AT_STAKE,
                repair="name a column of text as topic_column in [[outbox]]",
            )
        if self.is_avro and shape.columns[places.payload].type.name not in _JSON:
            raise Refused(
                f"the outbox {self.name} has no JSON in {rule.payload_column}, and payload_encoding is avro",
                at_stake=_AT_STAKE,
                repair="name a column of json or jsonb as payload_column in [[outbox]], or remove payload_encoding",
            )
        return places

    def event(self, payload: bytes, *, in_stream: bool) -> OutboxEvent | None:
        """Return the event of a row's message; None for an update or a delete.

        Refused: an event without a topic.
        """
        row = insert_texts(payload, in_stream=in_stream)
        if row is None or len(row) != len(self._columns):
            other = decode(payload, in_stream=in_stream)
            assert not isinstance(other, Insert), "the stream sends text, and an insert all values"
            return None
        places = self._places
        name = row[places.topic]
        if not name:
            raise Refused(
                f"a row of the outbox {self.name} has no {self._rule.topic_column}",
                at_stake="the event has no topic, and none is passed over",
                repair=f"remove the [[outbox]] of {self.name} from the configuration until the row is published as a row, and set NOT NULL and CHECK ({self._rule.topic_column} <> '') in the table",
            )
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = event_topic_of(self._prefix, name.decode())
        headers = tuple([(header, self._value(row, place)) for header, place in places.headers])
        return OutboxEvent(topic, self._value(row, places.key), self._value(row, places.payload), headers)

    def _place(self, setting: str, name: str) -> int:
        if name in self._columns:
            return self._columns.index(name)
        raise Refused(
            f"the outbox {self.name} has no column {name}, which {setting} names",
            at_stake=_AT_STAKE,
            repair=f"name one of its columns as {setting} in [[outbox]]: {', '.join(self._columns)}. If the table was altered, "
            "rows from before that come first: with each configuration the run goes on up to the first row that does not fit it",
        )

    def _value(self, row: list[bytes | None], place: int) -> bytes | None:
        """Return a value as an event has it: a bytea's bytes, PostgreSQL's text of all others."""
        text = row[place]
        return bytes.fromhex(text[2:].decode("ascii")) if text is not None and self._bytes[place] else text


def require_shown(rule: OutboxRule, shape: TableShape) -> None:
    """Refuse an outbox whose events would have values that the data policy hides."""
    used = {rule.topic_column, rule.key_column, rule.payload_column, *rule.header_columns}
    if hidden := sorted(used & shape.policy.keys()):
        raise Refused(
            f"the outbox {shape.schema}.{shape.table} uses columns that the data policy hides: {', '.join(hidden)}",
            at_stake="their values would be readable in the events; nothing was written",
            repair='put a rule with action = "keep" for them before the others in [[policy.columns]], or name other columns in [[outbox]]',
        )


class OutboxMessages:
    """The logical messages that are events."""

    def __init__(self, patterns: Iterable[str], prefix: str) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._prefix = prefix

    def event(self, message: LogicalMessage) -> OutboxEvent | None:
        """Return the message's event; None if the message is no event."""
        for pattern in self._patterns:
            if (found := pattern.fullmatch(message.prefix)) and found["topic"]:
                key = found.groupdict().get("key")
                topic = event_topic_of(self._prefix, found["topic"])
                return OutboxEvent(topic, None if key is None else key.encode(), message.content, ())
        return None
