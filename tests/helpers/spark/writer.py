"""Plays the connector for the Spark jobs' tests: real Kafka transactions, real schemas, real commit
records.

It writes what docs/reference/topics.md promises and nothing else: rows, their commit record and
the commit; or rows and an abort. It also keeps `model`, the tables as they must come out, so that a
test compares and does not describe.
"""

from __future__ import annotations

import io
import itertools
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import fastavro
from confluent_kafka import IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from helpers.reading import ask_registry
from twofold_avro import names, records, schemas, wire
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_common import gids

Row = dict[str, Any]


def table(name: str, columns: dict[str, str], *, key: tuple[str, ...] = ("id",), schema: str = "public") -> TableShape:
    """A shape from `{"id": "int8", "body": "text"}`."""
    return TableShape(
        oid=abs(hash(name)) % 2**31,
        schema=schema,
        table=name,
        columns=tuple(
            ColumnShape(c, TypeShape(oid=0, namespace="pg_catalog", name=t), in_key=c in key, in_identity=c in key)
            for c, t in columns.items()
        ),
    )


@dataclass
class _Topic:
    shape: TableShape
    name: str
    partitions: int
    key_id: int | None
    value_id: int
    key_codec: Any
    value_codec: Any


@dataclass
class _Stretch:
    first: int
    last: int
    count: int


@dataclass
class Open:
    """A Kafka transaction in the making."""

    writer: Writer
    producer: Producer
    tx: str
    gid: str | None
    stretches: dict[tuple[str, int], _Stretch] = field(default_factory=dict)
    rows: int = 0
    order: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    transactions: int = 1
    undo: list[tuple[str, Any, Row | None]] = field(default_factory=list)

    def _delivered(self, error: Any, message: Message) -> None:
        assert error is None, error
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        stretch = self.stretches.setdefault((topic, partition), _Stretch(offset, offset, 0))
        stretch.first, stretch.last = min(stretch.first, offset), max(stretch.last, offset)
        stretch.count += 1

    def _send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        while True:
            try:
                self.producer.produce(topic, value=value, key=key, partition=partition, on_delivery=self._delivered)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.rows += 1
        if self.rows % 1000 == 0:
            self.producer.poll(0)

    def _record(
        self, shape_name: str, op: str, key_row: Row | None, before: Row | None, after: Row | None, lsn: int,
        unchanged: tuple[str, ...] = (), partition: int | None = None,
    ) -> None:  # fmt: skip
        topic = self.writer.topics[shape_name]
        parsed = gids.parse(self.gid) if self.gid is not None else gids.ParsedGid()
        envelope = {
            "before": before,
            "after": after,
            "source": {
                "version": "test", "connector": "postgresql", "name": self.writer.prefix, "db": "db",
                "schema": topic.shape.schema, "table": topic.shape.table, "ts_ms": 0, "ts_us": time.time_ns() // 1000,
                "txId": int(self.tx.partition(":")[0]), "lsn": lsn, "gid": self.gid,
                "snapshot": "true" if op == "r" else "false",
                "global_id": parsed.global_id, "branch": parsed.branch,
            },
            "op": op,
            "ts_ms": time.time_ns() // 1_000_000,
            "transaction": {"id": self.tx, "total_order": next(self.order), "data_collection_order": 1},
            "unchanged": list(unchanged),
            "special": [],
        }  # fmt: skip
        value = encode(topic.value_codec, topic.value_id, envelope)
        key = self.writer.key_bytes(shape_name, key_row) if key_row is not None else None
        if partition is None:
            partition = wire.partition_of(key, topic.partitions) if key is not None else 0
        self._send(topic.name, partition, key, value)

    def _set(self, name: str, key: Any, row: Row | None) -> None:
        model = self.writer.model[name]
        self.undo.append((name, key, model.get(key)))
        if row is None:
            model.pop(key, None)
        else:
            model[key] = row

    def upsert(self, name: str, row: Row, *, op: str | None = None, unchanged: tuple[str, ...] = ()) -> None:
        """An insert, or an update if the model has the row; `unchanged` columns keep the model's
        value."""
        key = self.writer.key_of(name, row)
        there = self.writer.model[name].get(key)
        row = {**row, **{c: there[c] for c in unchanged}} if there else row
        sent = {**row, **dict.fromkeys(unchanged)}
        op = op or ("u" if there is not None else "c")
        self._record(name, op, row, None, sent, self.writer.lsn(), tuple(unchanged))
        self._set(name, key, row)

    def delete(self, name: str, key: Any, *, tombstone: bool = False) -> None:
        row = self.writer.model[name][key]
        self._record(name, "d", row, self.writer.only_key(name, row), None, self.writer.lsn())
        if tombstone:
            topic = self.writer.topics[name]
            raw = self.writer.key_bytes(name, row)
            self._send(topic.name, wire.partition_of(raw, topic.partitions), raw, None)
        self._set(name, key, None)

    def rekey(self, name: str, old: Any, row: Row, *, unchanged: tuple[str, ...] = ()) -> None:
        """A change of the key: a delete and an insert with one place in the log."""
        there = self.writer.model[name][old]
        row = {**row, **{c: there[c] for c in unchanged}}
        lsn = self.writer.lsn()
        before = self.writer.only_key(name, there)
        self._record(name, "d", there, before, None, lsn)
        self._record(name, "c", row, before, {**row, **dict.fromkeys(unchanged)}, lsn, tuple(unchanged))
        self._set(name, old, None)
        self._set(name, self.writer.key_of(name, row), row)

    def keyless(self, name: str, op: str, *, before: Row | None = None, after: Row | None = None) -> None:
        """A change of a keyless table, of which the model has each distinct row once, with its
        `_copies`."""
        self._record(name, op, None, before, after, self.writer.lsn())
        for row, more in ((before, -1), (after, 1)):
            if row is not None:
                key = self.writer.key_of(name, row)
                there = self.writer.model[name].get(key)
                copies = (there["_copies"] if there else 0) + more
                self._set(name, key, {**row, "_copies": copies} if copies > 0 else None)

    def truncate(self, name: str) -> None:
        lsn = self.writer.lsn()
        for partition in range(self.writer.topics[name].partitions):
            self._record(name, "t", None, None, None, lsn, partition=partition)
        for key in list(self.writer.model[name]):
            self._set(name, key, None)

    def raw(self, name: str, key: bytes | None, value: bytes | None, partition: int = 0) -> None:
        """Bytes as they are: for what no connector would write."""
        self._send(self.writer.topics[name].name, partition, key, value)

    def event(self, name: str, key: bytes, value: bytes) -> None:
        """An outbox's event: of no table, and no Avro."""
        self._send(names.event_topic_of(self.writer.prefix, name), 0, key, value)

    def roll_back_model(self) -> None:
        for name, key, row in reversed(self.undo):
            if row is None:
                self.writer.model[name].pop(key, None)
            else:
                self.writer.model[name][key] = row
        self.undo.clear()


class Writer:
    """One prefix on one broker."""

    def __init__(self, bootstrap: str, registry: str, prefix: str, *, replication: int = 1) -> None:
        self._replication = replication
        self.bootstrap = bootstrap
        self.registry = registry
        self.prefix = prefix
        self.topics: dict[str, _Topic] = {}
        self.model: dict[str, dict[Any, Row]] = {}
        self.sequence = 0
        self.stream_id = uuid.uuid4().hex
        self.backfilling: tuple[str, ...] = ()
        self.stale: tuple[str, ...] = ()
        self.skipped: tuple[records.SkippedRow, ...] = ()
        self._lsn = 1000
        self._xid = 700
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self.main = self._producer("main")
        self._commit_id, self._commit_tail = self._register(f"{prefix}.commits-value", schemas.fixed("commit")), b""
        self._frontier_id = 0
        self._make(f"{prefix}.commits", 1)

    def table(self, shape: TableShape, *, partitions: int = 3) -> str:
        """Makes the topic, or registers a new version of its value's schema; gives the table's
        short name."""
        topic = names.topic_of(self.prefix, shape.schema, shape.table)
        if shape.table not in self.topics:
            self._make(topic, partitions)
            self.model[shape.table] = {}
        else:
            partitions = self.topics[shape.table].partitions
        key, value = schemas.key_schema(shape, self.prefix), schemas.envelope_schema(shape, self.prefix)
        self.topics[shape.table] = _Topic(
            shape, topic, partitions,
            self._register(f"{topic}-key", key) if key is not None else None,
            self._register(f"{topic}-value", value),
            fastavro.parse_schema(key) if key is not None else None,
            fastavro.parse_schema(value),
        )  # fmt: skip
        return shape.table

    def add_to_commits(self, field: Row, encoded: bytes) -> None:
        """Registers a version of the commit records' schema with one more field, and writes it in
        those that follow."""
        schema = schemas.fixed("commit")
        assert isinstance(schema, dict)
        newer = {**schema, "fields": [*schema["fields"], field]}
        self._commit_id, self._commit_tail = self._register(f"{self.prefix}.commits-value", newer), encoded

    def join_group(self) -> None:
        """Makes the topic of frontiers, which is empty."""
        self._frontier_id = self._register(f"{self.prefix}.frontiers-value", schemas.fixed("frontier"))
        self._make(f"{self.prefix}.frontiers", 1)

    def write_frontier(self, others: Iterable[Writer]) -> None:
        """One that has seen all commit records of the others, and names nothing in doubt."""
        seen = tuple(records.Seen(each.prefix, each.sequence, each.stream_id) for each in others)
        frontier = records.Frontier("group", self.sequence, self.lsn(), seen, (), time.time_ns() // 1000)
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(f"{self.prefix}.frontiers", value=frontier.to_bytes(self._frontier_id), partition=0)
        assert producer.flush(30) == 0

    def outbox(self, name: str) -> None:
        """Makes the topic of an outbox's events."""
        self._make(names.event_topic_of(self.prefix, name), 1)

    @contextmanager
    def commit(self, *, kind: str = "batch", transactions: int = 1, gid: str | None = None) -> Iterator[Open]:
        """A Kafka transaction that commits, with its commit record."""
        with self._open(self.main, gid) as tx:
            tx.transactions = transactions
            yield tx
        self.finish(tx, kind=kind)

    @contextmanager
    def abort(self) -> Iterator[Open]:
        """A Kafka transaction that writes and aborts."""
        with self._open(self.main, None) as tx:
            yield tx
        self.main.abort_transaction(10)
        tx.roll_back_model()

    def reload(self, name: str, rows: Iterable[Row] | None = None) -> None:
        """As the connector does it: a truncate, then what there is, or other rows."""
        rows = [*self.model[name].values()] if rows is None else rows
        with self.commit(kind="reload") as tx:
            tx.truncate(name)
        with self.commit(kind="backfill") as tx:
            for row in rows:
                tx.upsert(name, row, op="r")

    @contextmanager
    def lose(self) -> Iterator[Open]:
        """What a late abort leaves: the rows are aborted, and a commit record of its own
        transaction names them. The source has them."""
        with self._open(self.main, None) as tx:
            yield tx
        self.main.abort_transaction(10)
        self.main.begin_transaction()
        self.finish(tx)

    @contextmanager
    def prepare(self, slot: str, gid: str) -> Iterator[Open]:
        """A transaction of its own producer, written and flushed and left open: see `finish`."""
        with self._open(self._producer(slot), gid) as tx:
            yield tx

    @contextmanager
    def _open(self, producer: Producer, gid: str | None) -> Iterator[Open]:
        self._xid += 1
        producer.begin_transaction()
        tx = Open(self, producer, f"{self._xid}:{self.lsn()}", gid)
        yield tx
        assert producer.flush(30) == 0

    def finish(
        self, tx: Open, *, kind: str = "batch", prepared: tuple[records.PreparedOutcome, ...] = ()
    ) -> records.Commit:
        """The commit record and the commit."""
        self.sequence += 1
        commit = records.Commit(
            sequence=self.sequence,
            kind=kind,  # type: ignore[arg-type]
            applied_lsn=self.lsn(),
            committed_at=time.time_ns() // 1000,
            transactions=tx.transactions,
            rows=tx.rows,
            prepared=prepared,
            ranges=tuple(records.Range(t, p, s.first, s.last, s.count) for (t, p), s in sorted(tx.stretches.items())),
            backfilling=self.backfilling,
            stream_id=self.stream_id,
            stale=self.stale,
            skipped=self.skipped,
        )
        self.declare(tx.producer, commit)
        tx.producer.commit_transaction(30)
        return commit

    def declare(self, producer: Producer, commit: records.Commit) -> None:
        producer.produce(
            f"{self.prefix}.commits",
            key=b"%d" % commit.sequence,
            value=commit.to_bytes(self._commit_id) + self._commit_tail,
            partition=0,
        )
        assert producer.flush(30) == 0

    def visible(self) -> None:
        """Until readers see what was committed: a commit returns some milliseconds before its
        marker is everywhere."""
        place = TopicPartition(f"{self.prefix}.commits", 0)
        deadline = time.monotonic() + 30
        while len({self._end(place, isolation) for isolation in IsolationLevel}) > 1:
            assert time.monotonic() < deadline, f"{place.topic}: an open transaction"
            time.sleep(0.005)

    def _end(self, place: TopicPartition, isolation: IsolationLevel) -> int:
        (found,) = self._admin.list_offsets(
            {place: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=isolation,
        ).values()
        return int(found.result(30).offset)

    def key_of(self, name: str, row: Row) -> Any:
        """What the model has it under: of a keyless table, the whole row."""
        shape = self.topics[name].shape
        key = tuple(row[c.name] for c in shape.key or shape.columns)
        return key[0] if len(key) == 1 else key

    def only_key(self, name: str, row: Row) -> Row:
        return {c.name: row.get(c.name) if c.in_key else None for c in self.topics[name].shape.columns}

    def key_bytes(self, name: str, row: Row) -> bytes:
        topic = self.topics[name]
        assert topic.key_id is not None
        return encode(topic.key_codec, topic.key_id, {c.name: row[c.name] for c in topic.shape.key})

    def value_header(self, name: str) -> bytes:
        return wire.header(self.topics[name].value_id)

    def lsn(self) -> int:
        self._lsn += 8
        return self._lsn

    def evolve(self, name: str, **columns: str) -> None:
        """Adds columns to a table: a new version of its schema."""
        shape = self.topics[name].shape
        more = tuple(ColumnShape(c, TypeShape(0, "pg_catalog", t)) for c, t in columns.items())
        self.table(replace(shape, columns=(*shape.columns, *more)))

    def drop(self, name: str, column: str) -> None:
        shape = self.topics[name].shape
        self.table(replace(shape, columns=tuple(c for c in shape.columns if c.name != column)))

    def _producer(self, slot: str) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"{self.prefix}.{slot}",
                "transaction.timeout.ms": 300_000,
                "linger.ms": 5,
            }
        )
        producer.init_transactions(30)
        return producer

    def make_again(self, name: str) -> None:
        """The topic of a table, which somebody has deleted."""
        self._make(self.topics[name].name, self.topics[name].partitions)

    def _make(self, topic: str, partitions: int) -> None:
        for future in self._admin.create_topics([NewTopic(topic, partitions, self._replication)]).values():
            future.result(30)
        self._wait_for_leaders(topic)

    def _wait_for_leaders(self, topic: str) -> None:
        """A topic is made some milliseconds before every broker names its leaders."""
        deadline = time.monotonic() + 30
        while not self._has_leaders(topic):
            assert time.monotonic() < deadline, f"{topic} has no leaders"
            time.sleep(0.005)

    def _has_leaders(self, topic: str) -> bool:
        found = self._admin.list_topics(topic, timeout=20).topics[topic]
        return bool(found.partitions) and all(each.leader >= 0 for each in found.partitions.values())

    def take_any(self, subject: str) -> None:
        """The registry refuses no new version of the subject."""
        ask_registry(self.registry, f"config/{subject}", "PUT", {"compatibility": "NONE"})

    def delete_subject(self, subject: str) -> None:
        ask_registry(self.registry, f"subjects/{subject}", "DELETE")

    def _register(self, subject: str, schema: Any) -> int:
        body = {"schema": schemas.canonical(schema)}
        return int(ask_registry(self.registry, f"subjects/{subject}/versions", "POST", body)["id"])


def encode(codec: Any, identifier: int, value: Any) -> bytes:
    out = io.BytesIO()
    out.write(wire.header(identifier))
    fastavro.schemaless_writer(out, codec, value)
    return out.getvalue()
