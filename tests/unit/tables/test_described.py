"""What the stream says of a table and what becomes of it: the collector, the tables and their plans
are real, the catalog, the registry and Kafka are stood in for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import fastavro
import pytest

from helpers.connector.configs import make_config
from helpers.source.collecting import make_collector
from twofold.bridge import events
from twofold.config import OutboxRule
from twofold.descriptions.ddl_message import DdlMessage
from twofold.errors import Refused, RunEnded, SetupError, TwofoldError, Unreachable
from twofold.kafka.registrar import Registrar
from twofold.kafka.row_batch import VOID
from twofold.kafka.schema_registry import NotRegistered
from twofold.kafka.subjects import RequireRules
from twofold.kafka.topic_rules import KnownTopic, RequiredTopic
from twofold.lives.exchanged import LoadCommand
from twofold.lives.load_life import CommandGiven, LoadEnded, ReloadDue, TopicEmptied
from twofold.source import messages as m
from twofold.source.session import Received
from twofold.spool import Spool
from twofold.stream.source_transaction import CollectedEvent
from twofold.tables.data_policy import DataPolicy
from twofold.tables.pins import STARTS_OVER
from twofold.tables.table_version import CHANGED_SHAPE, DescribedVersion
from twofold.tables.tables import Tables
from twofold.tables.topic_mismatch import TopicRestart
from twofold_avro import wire
from twofold_avro.records import Pin
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_common.positions import Lsn, PreparedIdentity
from unit.source.pgoutput_bytes import EPOCH_US, encode

TYPES = {23: "int4", 1082: "date", 1700: "numeric"}
OID = 7
TOPIC = "p.public.t"
Columns = list[tuple[str, int, int, bool]]
"""Name, type, its modifier, whether it is in the key."""


class Catalog:
    now: m.Relation | None = None
    comment: str | None = None
    """Of the table and of each column."""

    def add_comments(self, shape: TableShape) -> TableShape:
        columns = tuple(replace(column, comment=self.comment) for column in shape.columns)
        return replace(shape, columns=columns, comment=self.comment)

    def published(self, publication: str, schema: str, table: str) -> m.Relation | None:
        return self.now if self.now and self.now.table == table else None

    def root_of(self, relation: m.Relation, known: Iterable[int]) -> None:
        pass

    def shape(self, relation: m.Relation, described: DdlMessage | None = None) -> TableShape:
        columns = (
            ColumnShape(
                c.name,
                TypeShape(c.type_oid, "pg_catalog", TYPES[c.type_oid], typmod=c.typmod),
                c.in_identity,
                c.in_identity,
            )
            for c in relation.columns
        )
        return TableShape(relation.oid, relation.schema, relation.table, tuple(columns), relation.replica_identity)


class Registry:
    def __init__(self) -> None:
        self.subjects: dict[str, dict[str, int]] = {}
        self.refusal: TwofoldError | None = None
        """Raised for each new schema."""
        self._last = 0

    def register(self, subject: str, text: str) -> int:
        if self.refusal and text not in self.subjects.get(subject, {}):
            raise self.refusal
        self._last += 1
        return self.subjects.setdefault(subject, {}).setdefault(text, self._last)

    def withdraw(self, subject: str) -> None:
        self.subjects.pop(subject, None)

    def known_id(self, subject: str, text: str) -> int | None:
        return self.subjects.get(subject, {}).get(text)

    def schema(self, number: int, *, again: bool = False) -> str:
        for versions in self.subjects.values():
            for text, known in versions.items():
                if known == number:
                    return text
        raise NotRegistered(f"the registry does not have schema {number}")

    def versions(self, subject: str) -> list[str]:
        return list(self.subjects.get(subject, ()))


class Topics:
    def ensure(
        self, wanted: Iterable[RequiredTopic], while_created: Callable[[], None] = lambda: None
    ) -> dict[str, KnownTopic]:
        while_created()
        return {each.name: KnownTopic(each.partitions) for each in wanted}

    def missing(self, topics: Iterable[str]) -> list[str]:
        return []


def tables(
    registry: Registry,
    pins: dict[str, Pin],
    now: m.Relation | None = None,
    require_rules: RequireRules = lambda *_: None,
    comment: str | None = None,
    *,
    load_first: bool = False,
    outbox: Iterable[OutboxRule] = (),
) -> Tables:
    """`now`: as the catalog has it."""
    catalog: Any = Catalog()
    catalog.now, catalog.comment = now, comment
    registry_: Any = registry
    topics: Any = Topics()
    config = make_config("p", source={"backfill": load_first}).model_copy(update={"outbox": tuple(outbox)})
    registrar = Registrar(registry_, topics, "p", require_rules)
    return Tables(config, "db", pins, catalog=catalog, registrar=registrar, policy=DataPolicy(config))


def relation(columns: Columns) -> m.Relation:
    said = tuple(m.RelationColumn(name, oid, typmod, in_key) for name, oid, typmod, in_key in columns)
    return m.Relation(OID, "public", "t", "default", said)


def said(columns: Columns, table: bytes = b"t") -> tuple[int, bytes]:
    """The same, as it comes."""
    data = b"R" + pack(">I", OID) + b"public\0" + table + b"\0d" + pack(">H", len(columns))
    for name, oid, typmod, in_key in columns:
        data += bytes([in_key]) + name.encode() + b"\0" + pack(">Ii", oid, typmod)
    return 0, data


def insert(*values: bytes) -> tuple[int, bytes]:
    data = b"".join(b"t" + pack(">I", len(value)) + value for value in values)
    return 1, b"I" + pack(">I", OID) + b"N" + pack(">H", len(values)) + data


def transaction(n: int, *items: tuple[int, bytes]) -> Received:
    commit = pack(">BQQq", 0, 1000 * n, 1000 * n + 10, 0)
    return [(0, b"B" + pack(">QqI", 1000 * n, 0, n)), *items, (1000 * n + 10, b"C" + commit)]


def prepared(*items: tuple[int, bytes]) -> Received:
    end = pack(">QQqI", 1000, 1010, 0, 7) + b"g\0"
    return [(0, b"b" + end), *items, (1010, b"P\0" + end)]


@pytest.fixture
def collect(tmp_path: Path) -> Iterator[Callable[..., list[CollectedEvent]]]:
    """What these messages come to, if all that lies before a position is applied."""
    spool = Spool(tmp_path, memory_max=1 << 20, disk_max=1 << 30)

    def collect(tables: Tables, received: Received, *, applied: int = 0) -> list[CollectedEvent]:
        collector = make_collector(
            tables, spool, is_applied=lambda lsn: lsn < applied, is_applied_upto=lambda lsn: lsn < applied
        )
        return list(collector.collect(received, 0))

    yield collect
    spool.close()


def announced(registry: Registry, columns: Columns) -> dict[str, Pin]:
    """The pins of a run that knows the table like this."""
    first = tables(registry, {})
    first.announce([relation(columns)])
    return first.pins.take_unwritten()


def numeric(precision: int, scale: int) -> tuple[int, int]:
    return 1700, (precision << 16 | scale) + 4


def test_policy_is_that_of_the_former_name_too_where_a_table_was_renamed() -> None:
    """Until its topic under the new name is pinned."""
    registry, columns = Registry(), OTHER_KEY[0]
    asked: list[tuple[str, str | None]] = []
    here = tables(
        registry,
        announced(registry, columns),
        require_rules=lambda shape, before, former: asked.append((shape.table, former)),
    )
    renamed = replace(relation(columns), table="u")
    here.describe(renamed)
    assert asked == [("u", "public.t")]
    here.announce([renamed])
    asked.clear()
    here.describe(renamed)
    assert asked == [("u", None)]


PLAIN: Columns = [("id", 23, -1, True), ("v", 23, -1, False)]
WIDER: Columns = [*PLAIN, ("more", 23, -1, False)]


def docs(registry: Registry) -> list[tuple[str, str | None]]:
    """What each version of the table's schema says of the table and of its last column."""
    rows = [json.loads(text)["fields"][0]["type"][1] for text in registry.subjects[f"{TOPIC}-value"]]
    return [(row["doc"], row["fields"][-1].get("doc")) for row in rows]


def park_reasons(collected: list[CollectedEvent]) -> list[str | None]:
    """Why prepared transactions are not opened; None: they are."""
    return [e.event.park_reason for e in collected if isinstance(e.event, events.PrepareRead)]


def test_comment_that_is_new_at_a_start_parks_nothing(collect: Callable[..., list[CollectedEvent]]) -> None:
    registry = Registry()
    here = tables(registry, announced(registry, PLAIN), comment="new")
    assert park_reasons(collect(here, prepared(said(PLAIN), insert(b"1", b"1")))) == [None]
    assert docs(registry) == [("A row of public.t.", None), ("new", "new")]
    assert here.pins[TOPIC].value_schema_id == registry.subjects[f"{TOPIC}-value"].popitem()[1]


def test_comment_of_a_running_table_comes_with_its_next_change(collect: Callable[..., list[CollectedEvent]]) -> None:
    registry = Registry()
    here = tables(registry, announced(registry, PLAIN), comment="old")
    collect(here, transaction(1, said(PLAIN), insert(b"1", b"1")))
    first = [("A row of public.t.", None), ("old", "old")]
    here._catalog.comment = "new"  # type: ignore[attr-defined]
    assert park_reasons(collect(here, prepared(said(PLAIN), insert(b"2", b"2")))) == [None]
    assert docs(registry) == first
    collect(here, transaction(3, said(WIDER), insert(b"3", b"3", b"3")))
    assert docs(registry) == [*first, ("new", "new")]


@pytest.mark.parametrize(
    "refusal", [Refused("full", at_stake="", repair=""), SetupError("read only"), Unreachable("away")]
)
def test_comment_that_the_registry_refuses_stops_nothing(
    refusal: TwofoldError, collect: Callable[..., list[CollectedEvent]], caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    pins = announced(registry, PLAIN)
    registry.refusal = refusal
    here = tables(registry, dict(pins), relation(WIDER), comment="new")
    assert park_reasons(collect(here, prepared(said(PLAIN), insert(b"1", b"1")))) == [None]
    assert here.pins[TOPIC].value_schema_id == pins[TOPIC].value_schema_id
    assert "its comments are not in the schema" in caplog.text
    with pytest.raises(type(refusal)):
        collect(here, transaction(2, said(WIDER), insert(b"2", b"2", b"2")))


def test_comment_of_a_shape_that_comes_back_stops_nothing(collect: Callable[..., list[CollectedEvent]]) -> None:
    """A registry compares a new schema with the last one, and an old one with none."""
    registry = Registry()
    here = tables(registry, announced(registry, PLAIN))
    collect(here, transaction(1, said(WIDER), insert(b"1", b"1", b"1")))
    registry.refusal = Refused("not compatible", at_stake="", repair="")
    here._catalog.comment = "new"  # type: ignore[attr-defined]
    collect(here, transaction(2, said(PLAIN), insert(b"2", b"2")))
    assert here.pins[TOPIC].value_schema_id == next(iter(registry.subjects[f"{TOPIC}-value"].values()))


OTHERS_SCHEMAS = [
    ("no schema", None),
    ("p.public.other.Envelope", '{"type": "record", "name": "Envelope", "namespace": "p.public.other", "fields": []}'),
    ("another schema", '"string"'),
    ("another schema", 'syntax = "proto3";'),
]


@pytest.mark.parametrize(("found", "schema"), OTHERS_SCHEMAS)
def test_id_that_the_registry_has_lost_or_given_to_another_schema_is_refused(
    found: str, schema: str | None, collect: Callable[..., list[CollectedEvent]]
) -> None:
    """A registry that is restored from a backup hands out the ids of later schemas again."""
    registry = Registry()
    pins = announced(registry, PLAIN)
    schema_id = pins[TOPIC].value_schema_id
    assert schema_id is not None
    del registry.subjects[f"{TOPIC}-value"]
    if schema is not None:
        registry.subjects["another"] = {schema: schema_id}
    with pytest.raises(Refused) as refused:
        collect(tables(registry, dict(pins)), transaction(1, said(PLAIN), insert(b"1", b"1")))
    assert refused.value.what == f"the registry has {found} as id {schema_id}; it was the envelope of table public.t"
    assert "twofold backfill start public.t" in refused.value.repair
    repaired = tables(registry, dict(pins))
    repaired.restart_topics([TOPIC], [relation(PLAIN)])
    repaired.announce([relation(PLAIN)])
    collect(repaired, transaction(2, said(PLAIN), insert(b"2", b"2")))
    assert repaired.pins[TOPIC].value_schema_id in registry.subjects[f"{TOPIC}-value"].values()


OTHER_KEY: tuple[Columns, Columns] = (
    [("a", 23, -1, True), ("b", 23, -1, False)],
    [("a", 23, -1, False), ("b", 23, -1, True)],
)
OTHER_SCALE: tuple[Columns, Columns] = (
    [("id", 23, -1, True), ("price", *numeric(10, 2), False)],
    [("id", 23, -1, True), ("price", *numeric(12, 4), False)],
)


@pytest.mark.parametrize(("before", "after"), [OTHER_KEY, OTHER_SCALE], ids=["key", "scale"])
def test_what_a_table_was_in_an_applied_transaction_does_not_stand_against_its_repair(
    before: Columns, after: Columns, collect: Callable[..., list[CollectedEvent]]
) -> None:
    """PostgreSQL sends it again, as when a transaction in doubt holds its slot."""
    registry = Registry()
    pins = announced(registry, before)
    registry.subjects.clear()
    repaired = tables(registry, pins)
    repaired.restart_topics([TOPIC], [relation(after)])
    repaired.announce([relation(after)])
    known = {subject: list(versions) for subject, versions in registry.subjects.items()}
    again = transaction(1, said(before), insert(b"1", b"10"))
    new = transaction(2, said(after), insert(b"2", b"20.0000" if after[1][1] == 1700 else b"20"))
    read = [c.event for c in collect(repaired, again + new, applied=1010)]
    assert [event.rows for event in read if isinstance(event, events.PlainRead)] == [1]
    assert {subject: list(versions) for subject, versions in registry.subjects.items()} == known


@pytest.mark.parametrize("type_oid", [23, 1082], ids=["as in the row", "text in the row"])
def test_another_key_is_refused_when_it_is_committed_and_not_when_it_is_prepared(
    type_oid: int, collect: Callable[..., list[CollectedEvent]]
) -> None:
    """Types that are text in an envelope leave it as it is when the key goes."""
    registry, value = Registry(), b"2024-01-01" if type_oid == 1082 else b"1"
    before: Columns = [("k", type_oid, -1, True), ("v", 23, -1, False)]
    without: Columns = [("k", type_oid, -1, False), ("v", 23, -1, False)]
    pins = announced(registry, before)
    [collected] = collect(tables(registry, dict(pins)), prepared(said(without), insert(value, b"1")))
    assert isinstance(collected.event, events.PrepareRead)
    assert collected.event.park_reason == CHANGED_SHAPE
    with pytest.raises(Refused, match="the message key"):
        collect(tables(registry, dict(pins), relation(without)), transaction(1, said(without), insert(value, b"1")))


def test_a_prepared_transaction_that_drops_the_key_midway_waits_for_its_outcome(
    collect: Callable[..., list[CollectedEvent]],
) -> None:
    registry = Registry()
    before: Columns = [("k", 23, -1, True), ("v", 23, -1, False)]
    without: Columns = [("k", 23, -1, False), ("v", 23, -1, False)]
    here = tables(registry, announced(registry, before), relation(without))
    items = [said(before), insert(b"1", b"1"), said(without), insert(b"2", b"2"), (1, b"T" + pack(">IBI", 1, 0, OID))]
    [collected] = collect(here, prepared(*items))
    assert isinstance(collected.event, events.PrepareRead)
    assert collected.event.park_reason == CHANGED_SHAPE
    assert collected.transaction is not None
    assert collected.transaction.records == 2 + 6, "a truncate is in every partition"
    with pytest.raises(Refused, match="the message key"):
        here.register_committed(collected.transaction.provisional)


def starting_over(registry: Registry) -> tuple[Tables, Columns, Columns]:
    """A table whose key has changed since, and which is to be reloaded; what it was, and what it
    is.
    """
    before, after = OTHER_KEY
    here = tables(registry, announced(registry, before), relation(after))
    here.restart_topics([TOPIC], [relation(after)])
    here.announce([relation(after)])
    return here, before, after


def topics(collected: list[CollectedEvent]) -> list[str]:
    return [topic for each in collected if each.batch for topic in each.batch.topics]


def emptied(here: Tables, topic: str) -> None:
    here.lives.apply(topic, TopicEmptied())
    here.emptied(topic)


def cancelled(here: Tables, topic: str) -> None:
    here.lives.apply(topic, LoadEnded())


@pytest.mark.parametrize(
    ("ends", "then"),
    [(emptied, TopicRestart), (cancelled, Refused)],
    ids=["emptied", "cancelled"],
)
def test_rows_under_a_former_key_are_void_until_their_topic_is_emptied(
    ends: Callable[[Tables, str], None], then: type[Exception], collect: Callable[..., list[CollectedEvent]]
) -> None:
    """The truncate comes behind them, and all rows behind that.

    Behind it they restart the topic while it is loaded, and where it is not they are refused, in
    a transaction that began before it too.
    """
    here, before, after = starting_over(Registry())
    assert topics(collect(here, transaction(1, said(before), insert(b"1", b"10")))) == [VOID]
    assert topics(collect(here, transaction(2, insert(b"1", b"11")))) == [VOID]
    assert topics(collect(here, transaction(3, said(after), insert(b"2", b"20")))) == [TOPIC]
    both = said(before), insert(b"3", b"30"), said(after), insert(b"4", b"40")
    assert topics(collect(here, transaction(4, *both))) == [VOID, TOPIC]
    [waits] = collect(here, prepared(*both))
    assert isinstance(waits.event, events.PrepareRead)
    assert waits.event.park_reason == CHANGED_SHAPE
    assert waits.transaction is not None
    assert waits.transaction.topics == (TOPIC,)
    here.register_committed(waits.transaction.provisional)
    [rows] = waits.transaction.batches()
    assert set(rows.topics) == {VOID, TOPIC}
    ends(here, TOPIC)
    with pytest.raises(then):
        here.register_committed(waits.transaction.provisional)
    with pytest.raises(then):
        collect(here, transaction(5, said(before), insert(b"5", b"50")))


def test_a_topic_is_stale_from_rows_that_are_void_until_its_truncate(
    collect: Callable[..., list[CollectedEvent]],
) -> None:
    """Its reload may be cancelled before that, and no later row may say so."""
    before, after = OTHER_KEY
    registry = Registry()
    here = tables(registry, announced(registry, before), relation(after), load_first=True)
    here.lives.apply(TOPIC, CommandGiven(LoadCommand(1, "start")))
    assert topics(collect(here, transaction(1, said(before), insert(b"1", b"10")))) == [TOPIC]
    assert not here.pins[TOPIC].stale
    assert topics(collect(here, transaction(2, said(after), insert(b"2", b"20")))) == [VOID]
    assert here.pins.take_unwritten()[TOPIC].stale == STARTS_OVER
    emptied(here, TOPIC)
    assert here.pins.take_unwritten()[TOPIC].stale is None


def test_a_renamed_outbox_that_is_described_when_another_table_has_its_name_is_named(
    collect: Callable[..., list[CollectedEvent]], caplog: pytest.LogCaptureFixture
) -> None:
    """The catalog knows the other table's name, and not since when: rows from before that are no
    events.
    """
    other = replace(relation(OTHER_KEY[0]), oid=OID + 1, table="outbox")
    here = tables(Registry(), {}, other, outbox=[OutboxRule.model_validate({"table": "public.outbox"})])
    here.events.note_names([replace(other, oid=OID)])
    assert topics(collect(here, transaction(1, said(OTHER_KEY[0]), insert(b"1", b"10")))) == [TOPIC]
    assert "public.t was the outbox public.outbox, which is another table now" in caplog.text


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_streamed_transaction_makes_another_table_the_outbox_unless_its_savepoint_was_rolled_back(
    *, rolled_back: bool
) -> None:
    columns: Columns = [("id", 23, -1, True), ("n", 23, -1, False)]
    rule = OutboxRule.model_validate(
        {
            "table": "public.outbox",
            "topic_column": "id",
            "key_column": "id",
            "payload_column": "n",
            "header_columns": [],
        }
    )
    was = replace(relation(columns), table="outbox")
    other = replace(was, oid=OID + 1)
    here = tables(Registry(), {}, None, outbox=[rule])
    here.events.note_names([was])
    described: dict[int, DescribedVersion] = {}
    for each in (replace(was, table="t"), other):
        described |= here.descriptions(each, {})
    here._catalog.now = was if rolled_back else other  # type: ignore[attr-defined]
    with nullcontext() if rolled_back else pytest.raises(RunEnded, match="the former one is no outbox"):
        here.adopt(described)


def test_a_load_with_another_key_than_its_topic_starts_it_over() -> None:
    """The key has changed once more: rows of neither key would be what is loaded."""
    here, before, _ = starting_over(Registry())
    with pytest.raises(TopicRestart):
        here.copying(relation(before))


def test_a_reload_that_was_cut_off_before_its_truncate_goes_on(collect: Callable[..., list[CollectedEvent]]) -> None:
    """It is known by its pin: the wish may have been answered by a later one."""
    registry = Registry()
    here, before, _ = starting_over(registry)
    next_run = tables(registry, here.pins.take_unwritten())
    assert topics(collect(next_run, transaction(1, said(before), insert(b"1", b"10")))) == [VOID]


def test_rows_of_a_table_that_is_gone_are_passed_over_and_a_table_of_its_name_starts_over(
    collect: Callable[..., list[CollectedEvent]],
) -> None:
    """Those that fit are published, of others in the same transaction too; prepared ones likewise.

    What has been passed over is in the pin, for it may come again as it was.
    """
    before, after = OTHER_KEY
    registry = Registry()
    here = tables(registry, announced(registry, before))
    assert topics(collect(here, transaction(1, said(before), insert(b"1", b"10")))) == [TOPIC]
    assert topics(collect(here, transaction(2, said(after), insert(b"1", b"11")))) == [VOID]
    assert here.pins[TOPIC].is_passed_over
    assert here.pins[TOPIC].oid == OID
    [waits] = collect(here, prepared(said(before), insert(b"2", b"20"), said(after), insert(b"2", b"21")))
    assert waits.transaction is not None
    here.register_committed(waits.transaction.provisional)
    assert [batch.topics for batch in waits.transaction.batches()] == [()]
    next_run = tables(registry, here.pins.take_unwritten(), relation(before))
    with pytest.raises(TopicRestart):
        collect(next_run, transaction(3, said(before), insert(b"3", b"30")))
    next_run.restart_topics([], [relation(before)])
    next_run.announce([relation(before)])
    assert next_run.lives.is_in_backfill(TOPIC)
    assert topics(collect(next_run, transaction(3, said(before), insert(b"3", b"30")))) == [TOPIC]


def test_a_table_gets_its_first_key(collect: Callable[..., list[CollectedEvent]]) -> None:
    """Its topic starts over with the next run; its rows' schema stays the one that readers have."""
    without: Columns = [("b", 23, -1, False), ("a", 23, -1, False)]
    keyed: Columns = [("b", 23, -1, False), ("a", 23, -1, True)]
    registry = Registry()
    here = tables(registry, announced(registry, without), relation(keyed))
    with pytest.raises(TopicRestart):
        collect(here, transaction(1, said(keyed), insert(b"1", b"10")))
    before = registry.versions(f"{TOPIC}-value")
    next_run = tables(registry, here.pins.take_unwritten(), relation(keyed))
    next_run.restart_topics([TOPIC], [relation(keyed)])
    next_run.announce([relation(keyed)])
    assert registry.versions(f"{TOPIC}-value") == before
    [rows] = [c.batch for c in collect(next_run, transaction(1, said(keyed), insert(b"1", b"10"))) if c.batch]
    [(topic, _, [record])] = rows.partitions()
    assert topic == TOPIC
    _, body = wire.unframe(record["value"])
    envelope: Any = fastavro.schemaless_reader(io.BytesIO(body), json.loads(before[0]), None)
    assert envelope["after"] == {"a": 10, "b": 1}


def test_rows_of_a_partition_that_lacks_the_key_are_passed_over_before_a_truncate_and_this_is_noted() -> None:
    """The truncate may be cancelled."""
    registry = Registry()
    here = tables(registry, announced(registry, PLAIN), load_first=True)
    void = here._make_void(here.describe(relation(PLAIN)).table.shape)
    here.lives.apply(TOPIC, ReloadDue())
    here.register_committed([void])
    assert here.pins.take_unwritten()[TOPIC].stale == STARTS_OVER


def loaded(
    registry: Registry, columns: Columns, collect: Callable[..., list[CollectedEvent]], *, outbox: bool = False
) -> Tables:
    """A run in which the table's topic has a row, and its load has ended."""
    of_outbox = {"topic_column": "id", "key_column": "id", "payload_column": "v", "header_columns": []}
    rules = [OutboxRule.model_validate({"table": "public.outbox", **of_outbox})] if outbox else []
    here = tables(registry, {}, relation(columns), load_first=True, outbox=rules)
    others = [replace(relation(columns), oid=OID + 1, table="outbox")] if outbox else []
    here.announce([relation(columns), *others])
    here.lives.apply(TOPIC, LoadEnded())
    assert topics(collect(here, transaction(1, said(columns), insert(b"1", b"10")))) == [TOPIC]
    return here


@pytest.mark.parametrize("begins", [transaction, None], ids=["plain", "prepared"])
def test_a_table_that_a_transaction_renames_and_back_is_reloaded(
    collect: Callable[..., list[CollectedEvent]], begins: Callable[..., Received] | None
) -> None:
    """Its topic lacks what came under the other name, also if nothing comes under its own."""
    registry = Registry()
    here = loaded(registry, PLAIN, collect)
    away = [said(PLAIN, b"x"), insert(b"1", b"11"), said(PLAIN), insert(b"1", b"12")]
    [read] = collect(here, prepared(*away) if begins is None else begins(2, *away))
    assert not here.pins[TOPIC].stale, "another transaction's commit would write that"
    if read.transaction is not None:
        here.register_committed(read.transaction.provisional)
    here.note_changed(read.tables if read.transaction is None else read.transaction.tables, {})
    next_run = tables(registry, here.pins.take_unwritten(), relation(PLAIN), load_first=True)
    for run in (here, next_run):
        assert [(each.topic, each.relation) for each in run.pins.take_stale()] == [(TOPIC, OID)]


def test_a_table_that_has_its_name_again_starts_over(collect: Callable[..., list[CollectedEvent]]) -> None:
    registry = Registry()
    here = loaded(registry, PLAIN, collect)
    [read] = collect(here, transaction(2, said(PLAIN, b"x"), insert(b"1", b"11")))
    here.note_changed(read.tables, {})
    again = transaction(3, said(PLAIN), insert(b"1", b"12"))
    with pytest.raises(TopicRestart):
        collect(here, again)
    with pytest.raises(TopicRestart):
        here.announce([relation(PLAIN)])
    next_run = tables(registry, here.pins.take_unwritten(), relation(PLAIN), load_first=True)
    next_run.restart_topics([TOPIC], [relation(PLAIN)])
    next_run.announce([relation(PLAIN)])
    assert topics(collect(next_run, again))[-1] == TOPIC
    assert next_run.lives.is_emptying(TOPIC)


def test_a_table_that_was_an_outbox_for_a_time_lacks_what_was_an_event(
    collect: Callable[..., list[CollectedEvent]],
) -> None:
    here = loaded(Registry(), PLAIN, collect, outbox=True)
    [read] = collect(here, transaction(2, said(PLAIN, b"outbox"), insert(b"2", b"20")))
    assert read.batch is not None
    assert TOPIC not in read.batch.topics
    here.note_changed(read.tables, {})
    with pytest.raises(TopicRestart):
        collect(here, transaction(3, said(PLAIN), insert(b"3", b"30")))


def test_what_a_prepare_is_refused_for_withholds_no_commit_before_it(tmp_path: Path) -> None:
    """The next run publishes what lies before the prepare, and ends there."""
    spool, registry = Spool(tmp_path, memory_max=1 << 20, disk_max=1 << 30), Registry()

    def require_rules(shape: TableShape, *_: object) -> None:
        if shape.keyless:
            raise Refused("what", at_stake="stake", repair="repair")

    begin = 0, b"b" + pack(">QQqI", 1500, 1510, 0, 7) + b"g\0"
    stream = [*transaction(1, said(PLAIN), insert(b"1", b"10")), begin, said([(*each[:3], False) for each in PLAIN])]
    first = make_collector(tables(registry, {}, relation(PLAIN), require_rules), spool)
    with pytest.raises(Refused):
        list(first.collect(stream, 0))
    assert first.at == 1500
    upto = make_collector(tables(registry, {}, relation(PLAIN), require_rules), spool, upto=first.at)
    [read] = upto.collect(stream, 0)
    assert isinstance(read.event, events.PlainRead)
    assert upto.reached
    spool.close()


XID = 50


def streamed(*messages: m.Message) -> Received:
    """A transaction in progress, as far as it has come."""
    return [(0, encode(each)) for each in (m.StreamStart(XID, True), *messages, m.StreamStop())]


def described(table: str) -> m.Relation:
    return replace(relation(PLAIN), table=table, xid=XID)


ROW = m.Text(b"1"), m.Text(b"11")
COMMIT = 2010, encode(m.StreamCommit(XID, Lsn(2000), Lsn(2010), EPOCH_US))


@pytest.mark.parametrize(
    "change",
    [m.Update(OID, None, None, ROW, xid=XID), m.Truncate((OID,), False, False, xid=XID)],
    ids=["an update", "a truncate"],
)
def test_a_streamed_transaction_that_changes_an_outbox_without_an_event_is_lacking_too(
    change: m.Message, collect: Callable[..., list[CollectedEvent]]
) -> None:
    here = loaded(Registry(), PLAIN, collect, outbox=True)
    [read] = collect(here, [*streamed(described("outbox"), change), COMMIT])
    assert read.transaction is None
    assert not here.pins[TOPIC].is_passed_over
    here.note_changed(read.tables, {})
    assert here.pins[TOPIC].is_passed_over


@pytest.mark.parametrize("back", [False, True])
def test_the_name_that_a_streamed_prepared_transaction_leaves_is_the_present_one(
    back: bool, collect: Callable[..., list[CollectedEvent]]
) -> None:
    """Its descriptions hold for it alone, and the last one before it is of the former name."""
    here = loaded(Registry(), PLAIN, collect)
    messages: list[m.Message] = [described("x"), m.Insert(OID, ROW, xid=XID)]
    messages += [described("t"), m.Insert(OID, ROW, xid=XID)] if back else []
    prepare = m.StreamPrepare(Lsn(2000), Lsn(2010), EPOCH_US, PreparedIdentity(XID, "g"))
    [read] = collect(here, [*streamed(*messages), (2010, encode(prepare))])
    assert read.transaction is not None
    here.register_committed(read.transaction.provisional)
    here.note_changed(read.transaction.tables, read.transaction.relations)
    assert (here.pins[TOPIC].is_passed_over, here.pins[TOPIC].reload_due) == (not back, back)
