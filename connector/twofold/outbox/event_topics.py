"""Encodes outbox events, puts them into the batch of their transaction, and makes their topics.

`outbox` decides which event a row is. The thread that reads uses this; the worker's appends events
whose topics are known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from twofold.config import OutboxRule
from twofold.errors import Refused, RunEnded, SetupError
from twofold.kafka.registrar import Registrar
from twofold.kafka.row_batch import Record, RowBatch
from twofold.kafka.schema_registry import value_subject
from twofold.kafka.topic_rules import RequiredTopic
from twofold.outbox.outbox import OutboxEvent, OutboxMessages, OutboxTable
from twofold.source.messages import LogicalMessage, Relation
from twofold_avro.errors import Misfit, UnfitSchema
from twofold_avro.json_values import JsonEncoder
from twofold_avro.shapes import TableShape
from twofold_avro.wire import partition_of
from twofold_common.table_names import sql_identifier

_AT_STAKE = "the event could not be read; it was not written, and none is passed over"

_log = logging.getLogger(__name__)

_UPDATE = b"U"[0]


class EventTopics:
    """The outboxes of one run, and their topics."""

    def __init__(self, rules: Iterable[OutboxRule], prefix: str, *, partitions: int, registrar: Registrar) -> None:
        rules = tuple(rules)
        self._rules = {rule.name: rule for rule in rules if rule.name is not None}
        self._tables: dict[int, OutboxRule] = {}
        """The tables that have or had the rules' names, by oid: a renamed one stays the outbox
        until another table has its name."""
        self._renamed: set[int] = set()
        """Those of them that have come under another name."""
        self._messages = OutboxMessages([rule.messages for rule in rules if rule.messages], prefix)
        self._prefix = prefix
        self._partitions = partitions
        self._registrar = registrar
        self._schemas = EventSchemas(registrar)
        self._topics: dict[str, int] = {}
        """The number of partitions of each topic that is known to exist."""
        self._told: set[str] = set()

    def is_outbox(self, relation: Relation) -> bool:
        """Whether the table's inserts are events, under this name or another one."""
        return (relation.schema, relation.table) in self._rules or relation.oid in self._tables

    def other_name(self, relation: Relation) -> tuple[str, str] | None:
        """Return the name that the rule has for a table which is an outbox by its oid alone."""
        named = (relation.schema, relation.table) in self._rules
        return None if named or relation.oid not in self._tables else self._tables[relation.oid].name

    def note_names(self, relations: Iterable[Relation | TableShape]) -> None:
        """Note which tables have the rules' names: these are the outboxes under other names too.

        RunEnded: an outbox under another name is none any more; its rows are described again.
        """
        for each in relations:
            if rule := self._rules.get((each.schema, each.table)):
                former = {oid for oid, other in self._tables.items() if other is rule and oid != each.oid}
                if former & self._renamed:
                    raise RunEnded(f"{each.schema}.{each.table} is another table now: the former one is no outbox")
                self._tables = {oid: other for oid, other in self._tables.items() if oid not in former}
                self._tables[each.oid] = rule

    def require_published(self, published: Iterable[Relation], publication: str) -> None:
        """Note the outboxes; refuse one whose table the stream leaves out."""
        published = tuple(published)
        self.note_names(published)
        for schema, table in self._rules.keys() - {(each.schema, each.table) for each in published}:
            statement = f"ALTER PUBLICATION {sql_identifier(publication)} ADD TABLE {sql_identifier(schema, table)}"
            raise SetupError(
                f"the outbox {schema}.{table} is not in publication {publication}, so its events are not sent: {statement}; if it was renamed, correct its name in [[outbox]]; if it is partitioned: ALTER PUBLICATION {sql_identifier(publication)} SET (publish_via_partition_root = true)"
            )

    def table(self, shape: TableShape, *, committed: bool = True) -> OutboxTable:
        """Return a version of an outbox table; names that may be rolled back are not noted."""
        if committed:
            self.note_names([shape])
        rule = self._rules.get((shape.schema, shape.table))
        if rule is None:
            self._renamed.add(shape.oid)
        return OutboxTable(rule or self._tables[shape.oid], shape, self._prefix)

    def row_event(self, table: OutboxTable, payload: bytes, *, in_stream: bool) -> OutboxEvent | None:
        """Return a row's event, after making its topic; None for an update or a delete."""
        event = table.event(payload, in_stream=in_stream)
        if event is not None:
            self._ensure(event.topic)
            return self._schemas.encoded(event, table.name) if table.is_avro else event
        if payload[0] == _UPDATE and table.name not in self._told:
            self._told.add(table.name)
            _log.warning("%s is an outbox: its updates are passed over, only inserts are events", table.name)
        return None

    def message_event(self, message: LogicalMessage) -> OutboxEvent | None:
        """Return a logical message's event, after making its topic; None if it is no event."""
        if (event := self._messages.event(message)) is not None:
            self._ensure(event.topic)
        return event

    def append(self, event: OutboxEvent, batch: RowBatch) -> None:
        """Add an event to its transaction's batch."""
        partitions = self._topics[event.topic]
        partition = 0 if event.key is None else partition_of(event.key, partitions)
        record: Record = {"key": event.key, "value": event.value, "headers": list(event.headers)}
        batch.lists(event.topic, partitions)[partition].append(record)
        batch.bytes += size_of(event)

    def _ensure(self, topic: str) -> None:
        """Make or check a topic before its first event of this run."""
        if topic not in self._topics:
            required = RequiredTopic(topic, "events", self._partitions)
            self._topics[topic] = self._registrar.ensure([required])[topic].partitions


def size_of(event: OutboxEvent) -> int:
    """Return the event's size in bytes, about."""
    return len(event.key or b"") + len(event.value or b"") + 64 * len(event.headers)


class EventSchemas:
    """The schemas of one run's events: the newest of a topic's value subject.

    The registry is asked at the topic's first event of a run, and again for a payload that does not
    fit: somebody may have registered the next version. Used by the thread that reads.
    """

    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar
        self._encoders: dict[str, JsonEncoder] = {}

    def encoded(self, event: OutboxEvent, table: str) -> OutboxEvent:
        """Return the event with its payload in the registry's wire format; an event without a
        payload stays as it is.

        Refused: the topic has no schema, or the payload does not fit the newest schema.
        """
        if event.value is None:
            return event
        encoder = self._encoders.get(event.topic) or self._newest(event.topic)
        try:
            return event._replace(value=encoder.encode(event.value))
        except Misfit as misfit:
            newest = self._newest(event.topic)
            if newest.schema_id == encoder.schema_id:
                raise _refusal(event.topic, encoder, table, misfit) from misfit
        try:
            return event._replace(value=newest.encode(event.value))
        except Misfit as misfit:
            raise _refusal(event.topic, newest, table, misfit) from misfit

    def _newest(self, topic: str) -> JsonEncoder:
        subject, found = value_subject(topic), self._registrar.latest_schema(topic)
        if found is None:
            raise Refused(
                f"an outbox event is to be Avro, and the subject {subject} has no schema",
                at_stake=_AT_STAKE,
                repair=f"register the schema of its payload under {subject}, then start again",
            )
        try:
            if found.kind != "AVRO" or found.refers:
                what = "refers to other subjects" if found.refers else f"is {found.kind}"
                raise UnfitSchema(f"it {what}")
            encoder = self._encoders[topic] = JsonEncoder(found.id, found.text)
        except UnfitSchema as error:
            raise Refused(
                f"the newest schema of the subject {subject} cannot encode outbox events: {error}",
                at_stake=_AT_STAKE,
                repair=f"register an Avro schema of records, numbers and text under {subject}, then start again",
            ) from error
        return encoder


def _refusal(topic: str, encoder: JsonEncoder, table: str, misfit: Misfit) -> Refused:
    return Refused(
        f"an event of the outbox {table} does not fit schema {encoder.schema_id} of the subject {value_subject(topic)}: {misfit}",
        at_stake=_AT_STAKE,
        repair='register a schema there that has it, then start again; or set payload_encoding = "none" in [[outbox]] until the event is published as text, and then "avro" again',
    )
