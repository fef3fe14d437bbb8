"""Which event a row of an outbox is, or a logical message, and that it goes the way of its
transaction's rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any, cast

import pytest
from pydantic import ValidationError

from helpers.source.collecting import make_collector
from helpers.source.frames import frame
from twofold.bridge import events
from twofold.config import OutboxRule
from twofold.errors import Refused, RunEnded, SetupError
from twofold.kafka.registrar import Registrar
from twofold.kafka.row_batch import RowBatch
from twofold.kafka.topic_rules import KnownTopic, RequiredTopic
from twofold.lives.skipped_rows import NO_COMMANDS
from twofold.outbox.event_topics import EventTopics
from twofold.outbox.outbox import OutboxEvent, OutboxMessages, OutboxTable
from twofold.source.messages import LogicalMessage, Relation
from twofold.spool import Spool
from twofold.stream.collector import Collector
from twofold.stream.source_transaction import CollectedEvent
from twofold.tables.ddl_descriptions import DdlDescriptions
from twofold.tables.logical_messages import LogicalMessages
from twofold_avro.names import event_topic_of, topic_of
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_avro.wire import partition_of
from twofold_common.positions import Lsn

OID, PARTITIONS = 7, 3
TYPES = {"id": "uuid", "aggregatetype": "text", "aggregateid": "text", "type": "text", "payload": "jsonb"}
RULE = OutboxRule(table="public.outbox")  # type: ignore[call-arg]
AS_AVRO = OutboxRule(table="public.outbox", payload_encoding="avro")  # type: ignore[call-arg]
BY_MESSAGE = OutboxRule(messages="outbox:(?P<topic>[^/]*)(/(?P<key>.*))?")  # type: ignore[call-arg]
ROW = {"id": "1", "aggregatetype": "order", "aggregateid": "A", "type": "placed", "payload": "{}"}
ORDERS = "shop.outbox.event.order"
EVENT = OutboxEvent(ORDERS, b"A", b"{}", (("id", b"1"), ("type", b"placed")))


def shape(**types: str) -> TableShape:
    columns = tuple(ColumnShape(name, TypeShape(0, "pg_catalog", kind)) for name, kind in (TYPES | types).items())
    return TableShape(OID, "public", "outbox", columns)


def insert(xid: int | None = None, **values: str | None) -> bytes:
    items = [
        b"n" if value is None else b"t" + pack(">I", len(value.encode())) + value.encode()
        for value in (ROW | values).values()
    ]
    own = b"" if xid is None else pack(">I", xid)
    return b"I" + own + pack(">I", OID) + b"N" + pack(">H", len(items)) + b"".join(items)


def event(row: bytes, rule: OutboxRule = RULE, **types: str) -> OutboxEvent | None:
    return OutboxTable(rule, shape(**types), "shop").event(row, in_stream=False)


def test_an_insert_of_an_outbox_is_an_event_with_its_columns_bytes() -> None:
    assert event(insert()) == EVENT
    assert event(insert(payload=None, aggregateid=None, type=None)) == OutboxEvent(
        ORDERS, None, None, (("id", b"1"), ("type", None))
    )
    assert event(insert(payload="\\x00ff"), payload="bytea") == EVENT._replace(value=b"\0\xff")
    other = OutboxRule(
        table="public.outbox", topic_column="type", key_column="id", payload_column="aggregateid", header_columns=()
    )  # type: ignore[call-arg]
    assert event(insert(), other) == OutboxEvent("shop.outbox.event.placed", b"1", b"A", ())


def test_updates_and_deletes_of_an_outbox_are_no_events() -> None:
    row = insert()[6:]
    assert event(b"U" + pack(">I", OID) + b"N" + row) is None
    assert event(b"D" + pack(">I", OID) + b"K" + row) is None


@pytest.mark.parametrize("topic", [None, ""])
def test_a_row_of_an_outbox_without_a_topic_is_refused(topic: str | None) -> None:
    with pytest.raises(Refused, match=r"a row of the outbox public\.outbox has no aggregatetype"):
        event(insert(aggregatetype=topic))


def test_an_outbox_that_lacks_a_column_is_refused_by_its_name() -> None:
    with pytest.raises(Refused, match="has no column kind, which key_column names"):
        event(insert(), OutboxRule(table="public.outbox", key_column="kind"))  # type: ignore[call-arg]
    with pytest.raises(Refused, match="has bytes in aggregatetype"):
        event(insert(), aggregatetype="bytea")
    with pytest.raises(Refused, match="has no JSON in payload"):
        event(insert(), AS_AVRO, payload="text")


@pytest.mark.parametrize("column", ["aggregateid", "payload", "type"])
def test_an_outbox_does_not_show_what_the_policy_hides(column: str) -> None:
    hidden = tuple(replace(c, policy="drop") if c.name == column else c for c in shape().columns)
    with pytest.raises(Refused, match=f"the data policy hides: {column}"):
        OutboxTable(RULE, replace(shape(), columns=hidden), "shop").find_places()


def said(prefix: str) -> LogicalMessage:
    return LogicalMessage(True, Lsn(5), prefix, b"\0", None)


def test_a_messages_prefix_names_an_outbox_topic_and_a_key() -> None:
    messages = OutboxMessages([BY_MESSAGE.messages or ""], "shop")
    assert messages.event(said("outbox:order/A/1")) == OutboxEvent(ORDERS, b"A/1", b"\0", ())
    assert messages.event(said("outbox:order")) == OutboxEvent(ORDERS, None, b"\0", ())
    assert [messages.event(said(prefix)) for prefix in ("audit", "outbox:", "an outbox:order")] == [None] * 3


def test_an_outbox_topic_is_no_tables_topic() -> None:
    names = ["order", "order.created", "order_xa", "a/b", "a_x2f_b", "x" * 300, "x" * 301]
    topics = [event_topic_of("shop", name) for name in names]
    assert topics[:2] == [ORDERS, "shop.outbox.event.order.created"]
    assert len({*topics}) == len(names)
    assert max(map(len, topics)) == 249
    tables = {topic_of("shop", schema, table) for schema in ("outbox", "outbox.event") for table in (*names, "event")}
    assert not tables & {*topics}


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"table": "outbox"},
        {"table": "public.*"},
        {"messages": "("},
        {"messages": "outbox"},
        {"messages": "(?P<topic>a)(?P<other>b)"},
        {"table": "public.outbox", "messages": "(?P<topic>a)"},
        {"messages": "(?P<topic>a)", "payload_encoding": "avro"},
    ],
)
def test_an_outbox_rule_that_says_too_little_or_too_much(rule: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        OutboxRule(**rule)  # type: ignore[arg-type]


class Topics:
    """Kafka's administration."""

    def __init__(self) -> None:
        self.asked: list[RequiredTopic] = []

    def ensure(self, wanted: Iterable[RequiredTopic]) -> dict[str, KnownTopic]:
        self.asked += (asked := list(wanted))
        return {each.name: KnownTopic(PARTITIONS) for each in asked}


class Table:
    topic = ""
    partitions = 1
    committed = True
    void = True
    park_reason = None

    def __init__(self, outbox: OutboxTable) -> None:
        self.outbox = outbox


class Tables:
    """Knows the outbox alone."""

    skips = NO_COMMANDS

    def __init__(self) -> None:
        self.topics = Topics()
        self.ddl = DdlDescriptions("p")
        registrar = Registrar(cast("Any", None), cast("Any", self.topics), "shop")
        self.events = EventTopics([RULE, BY_MESSAGE], "shop", partitions=1, registrar=registrar)
        self.messages = LogicalMessages("shop", "db", registrar, self.events)
        self._table = Table(self.events.table(shape()))

    def of_relation(self, oid: int, *, provisional: bool) -> Table:
        assert oid == OID
        return self._table

    def adopt(self, described: Any) -> None:
        pass


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def collecting(tmp_path: Path, tables: Tables) -> Iterator[Collector]:
    spool = Spool(tmp_path, memory_max=1000, disk_max=1 << 30)
    yield make_collector(tables, spool)
    spool.close()


def records(batch: RowBatch | None) -> list[tuple[Any, ...]]:
    assert batch is not None
    found = [(topic, partition, r) for topic, partition, records in batch.partitions() for r in records]
    return [(topic, partition, r["key"], r["value"], r["headers"]) for topic, partition, r in found]


def expected(*events: OutboxEvent) -> list[tuple[Any, ...]]:
    return [(e.topic, partition_of(e.key or b"", PARTITIONS), e.key, e.value, [*e.headers]) for e in events]


def take(collecting: Collector, *payloads: bytes) -> list[CollectedEvent]:
    return [*collecting.collect([frame(payload) for payload in payloads], 0)]


ELSEWHERE = EVENT._replace(value=b"2")
BY_ITSELF = OutboxEvent(ORDERS, b"A", b"3", ())
CHANGES = [
    insert(),
    b"U" + pack(">I", OID) + b"N" + insert()[6:],
    insert(payload="2"),
    b"T" + pack(">IB", 1, 0) + pack(">I", OID),
    b"M\1" + pack(">Q", 5) + b"outbox:order/A\0" + pack(">I", 1) + b"3",
]


def test_outbox_events_are_in_the_batch_of_their_transaction(
    collecting: Collector, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        begin, commit = b"B" + pack(">QqI", 1000, 0, 9), b"C" + pack(">BQQq", 0, 1000, 1010, 0)
        [collected] = take(collecting, begin, *CHANGES, *CHANGES[1:2], commit)
    assert collected.event == events.PlainRead(1, 3, Lsn(1010))
    assert records(collected.batch) == expected(EVENT, ELSEWHERE, BY_ITSELF)
    assert [(each.name, each.kind, each.partitions) for each in tables.topics.asked] == [(ORDERS, "events", 1)]
    assert [r.message for r in caplog.records] == [
        "public.outbox is an outbox: its updates are passed over, only inserts are events"
    ]


def test_outbox_events_of_a_prepared_transaction_wait_with_its_rows(collecting: Collector) -> None:
    begin, prepare = b"b" + pack(">QQqI", 100, 110, 0, 9) + b"g\0", b"P\0" + pack(">QQqI", 100, 110, 0, 9) + b"g\0"
    collected = [*take(collecting, begin, *CHANGES, prepare), *collecting.announce(0)]
    (announced,) = (each for each in collected if each.transaction is not None)
    prepared = announced.transaction
    assert isinstance(announced.event, events.PrepareRead)
    assert announced.event.park_reason is None
    assert prepared is not None
    assert prepared.topics == (ORDERS,)
    assert prepared.records == 3
    assert [r for batch in prepared.batches() for r in records(batch)] == expected(EVENT, ELSEWHERE, BY_ITSELF)


@pytest.mark.parametrize("rolled_back", [True, False])
def test_outbox_events_of_a_savepoint_share_its_fate(collecting: Collector, rolled_back: bool) -> None:
    take(collecting, b"S" + pack(">IB", 9, 1), insert(9), insert(10, payload="2"), insert(9, payload="3"), b"E")
    if rolled_back:
        take(collecting, b"A" + pack(">II", 9, 10))
    [collected] = take(collecting, b"c" + pack(">IBQQq", 9, 0, 1000, 1010, 0))
    assert collected.transaction is not None
    found = [r for batch in collected.transaction.batches() for r in records(batch)]
    kept = [EVENT, *([] if rolled_back else [ELSEWHERE]), EVENT._replace(value=b"3")]
    assert found == expected(*kept)
    assert collected.transaction.records == len(kept)


def test_an_outbox_that_is_not_published_is_refused_with_the_statement(tables: Tables) -> None:
    other = Relation(1, "public", "other", "default", ())
    tables.events.require_published([other, replace(other, table="outbox")], "shop")
    with pytest.raises(SetupError, match=r'ALTER PUBLICATION "shop" ADD TABLE "public"\."outbox"'):
        tables.events.require_published([other], "shop")


def test_a_name_that_may_be_rolled_back_makes_no_other_table_the_outbox(tables: Tables) -> None:
    """A transaction in doubt has renamed the outbox, and made another table with its name."""
    renamed, other = replace(shape(), table="outbox_old"), replace(shape(), oid=OID + 1)
    tables.events.table(renamed, committed=False)
    tables.events.table(other, committed=False)
    assert tables.events.is_outbox(Relation(OID, "public", "events", "default", ()))
    with pytest.raises(RunEnded, match="the former one is no outbox"):
        tables.events.table(other)
