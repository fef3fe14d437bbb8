"""What a real server sends of rows, and what becomes of it: pgoutput's messages as text and as
binary, COPY's tuples, and both runs of the transcoder, compiled and not.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import fastavro
import psycopg
from psycopg import sql

import twofold_avro
from twofold.source.catalog import Catalog
from twofold.source.connection import connect
from twofold.source.decoder import decode
from twofold.source.messages import Relation
from twofold_avro import transcode, wire
from twofold_avro.schemas import envelope_schema, key_schema
from twofold_avro.shapes import TableShape
from twofold_avro.types import copy_item

KEY_ID, VALUE_ID, PARTITIONS = 11, 12, 4
LSN, TS_MS, TS_US, XID = 1_000, 1_700_000_000_123, 1_700_000_000_123_456, 777
HASH_KEY = b"the key of hashes, of 32 bytes or more"
SERVER = transcode.ServerConstants("0.1.0", "pre.fix", "db", HASH_KEY)
Message = dict[str, bytes | None]


@cache
def uncompiled(name: str) -> ModuleType:
    """A module of twofold_avro from its source, whether a compiled one lies beside it or not."""
    path = Path(twofold_avro.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"uncompiled_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def modules() -> list[ModuleType]:
    """The transcoder as it is installed, and as its source runs, with the hash beneath it."""
    source = uncompiled("transcode")
    source.KeyedHash = uncompiled("hashing").KeyedHash  # type: ignore[attr-defined]
    return [transcode, source]


def append(plan: Any, payload: bytes, lsn: int, header: Any, lists: list[list[Message]], *, offset: int = 1) -> None:
    """One row's message alone."""
    assert plan.append_run([(lsn, payload)], 0, offset, header, TS_MS, lists, 0) == (1, len(payload))


def copied(module: Any, plan: Any, run: bytes, header: Any) -> tuple[tuple[int, bytes | None], list[list[Message]]]:
    """What `append_copy` says of a run, and the messages that it packs."""
    packer = module.PartitionPacker(PARTITIONS)
    counted = plan.append_copy(run, LSN, header, TS_MS, packer)
    lists = [list(module.PackedRecords(packed)) for packed in packer.take_rows()]
    assert packer.take_rows() == [b""] * PARTITIONS, "taken once"
    return counted, lists


@dataclass(frozen=True)
class Bench:
    """A table's plan in both runs; every call checks that they give the same bytes, and fastavro
    too.
    """

    shape: TableShape
    tombstones: bool = True
    placeholders: bool = False

    def plans(self, key_id: int = KEY_ID, value_id: int = VALUE_ID) -> list[tuple[ModuleType, Any]]:
        ids = {"key_schema_id": None if self.shape.keyless else key_id, "value_schema_id": value_id}
        return [
            (m, m.RowPlan(self.shape, **ids, partitions=PARTITIONS, server=SERVER, **self._options)) for m in modules()
        ]

    @property
    def _options(self) -> dict[str, bool]:
        return {"tombstones": self.tombstones, "placeholders": self.placeholders}

    def header(self, module: ModuleType, *, snapshot: bool = False, gid: str | None = None) -> Any:
        if snapshot:
            return module.TransactionHeader(None, TS_US, None)
        return module.TransactionHeader(XID, TS_US, f"{XID}:{LSN}", gid)

    def stream(self, payloads: list[bytes], *, offset: int = 1, gid: str | None = None) -> list[tuple[int, Message]]:
        """The messages of one transaction's row messages, with their partitions, in the order in
        which they were made.
        """
        runs = []
        for module, plan in self.plans():
            header = self.header(module, gid=gid)
            messages: list[tuple[int, Message]] = []
            for payload in payloads:
                lists: list[list[Message]] = [[] for _ in range(PARTITIONS)]
                append(plan, payload, LSN, header, lists, offset=offset)
                messages += [(p, m) for p, messages_of in enumerate(lists) for m in messages_of]
            runs.append(messages)
        assert runs[0] == runs[1], "compiled and uncompiled differ"
        return self.checked(runs[0])

    def copy(self, tuples: list[bytes]) -> list[tuple[int, Message]]:
        """The messages of COPY's tuples, in their order: of each alone, and the same of all in one
        run.
        """
        runs = []
        for module, plan in self.plans():
            header = self.header(module, snapshot=True)
            messages: list[tuple[int, Message]] = []
            for data in tuples:
                counted, lists = copied(module, plan, data, header)
                [(partition, message)] = [(p, m) for p, messages_of in enumerate(lists) for m in messages_of]
                assert counted == (1, message["key"])
                messages.append((partition, message))
            counted, lists = copied(module, plan, b"".join(tuples), header)
            assert counted == (len(messages), messages[-1][1]["key"] if messages else None)
            assert lists == [[m for at, m in messages if at == p] for p in range(PARTITIONS)]
            runs.append(messages)
        assert runs[0] == runs[1], "compiled and uncompiled differ"
        return self.checked(runs[0])

    def checked(self, messages: list[tuple[int, Message]]) -> list[tuple[int, Message]]:
        for partition, message in messages:
            key, value = message["key"], message["value"]
            if key is not None:
                assert wire.partition_of(key, PARTITIONS) == partition
                assert reencoded(self.key_codec, key) == key
            if value is not None:
                assert reencoded(self.value_codec, value) == value
        return messages

    @property
    def key_codec(self) -> Any:
        return _parsed(self.shape, "key")

    @property
    def value_codec(self) -> Any:
        return _parsed(self.shape, "value")

    def key(self, message: Message) -> dict[str, Any]:
        assert message["key"] is not None
        return decoded(self.key_codec, message["key"], KEY_ID)

    def value(self, message: Message) -> dict[str, Any]:
        assert message["value"] is not None
        return decoded(self.value_codec, message["value"], VALUE_ID)


@cache
def _parsed(shape: TableShape, which: str) -> Any:
    schema: Any = (key_schema if which == "key" else envelope_schema)(shape, SERVER.prefix)
    return fastavro.parse_schema(schema)


def decoded(schema: Any, message: bytes, schema_id: int) -> dict[str, Any]:
    found_id, body = wire.unframe(message)
    assert found_id == schema_id
    source = io.BytesIO(body)
    value: Any = fastavro.schemaless_reader(source, schema, None)
    assert source.read() == b""
    assert isinstance(value, dict)
    return value


def reencoded(schema: Any, message: bytes) -> bytes:
    """The same message as fastavro writes it."""
    schema_id, body = wire.unframe(message)
    out = io.BytesIO()
    record: Any = fastavro.schemaless_reader(io.BytesIO(body), schema, None)
    fastavro.schemaless_writer(out, schema, record)
    return wire.frame(schema_id, out.getvalue())


class Capture:
    """A publication and its slots, one for each form, on a database of the test's own."""

    def __init__(self, conninfo: str, name: str) -> None:
        self.conninfo = conninfo
        self.name = name
        self.connection = connect(conninfo)
        self.catalog = Catalog(conninfo)
        self.shapes: dict[int, TableShape] = {}

    def publish(self, *tables: str) -> None:
        self.run(f"CREATE PUBLICATION {self.name} FOR TABLE {', '.join(tables)}")
        for form in ("text", "binary"):
            self.run(f"SELECT pg_create_logical_replication_slot('{self.name}_{form}', 'pgoutput')")

    def run(self, query: str, parameters: list[Any] | None = None) -> psycopg.Cursor[Any]:
        return self.connection.execute(query.encode(), parameters)

    def changes(self, form: str = "text") -> list[bytes]:
        """The row messages since the last call, of all tables; relations are noted on the way."""
        options = [
            "proto_version",
            "1",
            "publication_names",
            self.name,
            *(["binary", "true"] if form == "binary" else []),
        ]
        found = self.run(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, VARIADIC %s)",
            [f"{self.name}_{form}", options],
        ).fetchall()
        rows = []
        for (data,) in found:
            if data[:1] == b"R":
                relation = decode(data, in_stream=False)
                assert isinstance(relation, Relation)
                self.shapes[relation.oid] = self.catalog.shape(relation)
            elif data[:1] in {b"I", b"U", b"D", b"T"}:
                rows.append(bytes(data))
        return rows

    def shape(self, table: str) -> TableShape:
        return next(shape for shape in self.shapes.values() if shape.table == table)

    def bench(self, table: str) -> Bench:
        return Bench(self.shape(table))

    def copied(self, table: str, order: str) -> list[bytes]:
        """The tuples of COPY in binary, its columns selected as the backfill selects them."""
        shape = self.shape(table)
        items = ", ".join(copy_item(column) for column in shape.columns)
        query = f"COPY (SELECT {items} FROM {sql.Identifier(shape.schema, table).as_string()} ORDER BY {order}) TO STDOUT (FORMAT binary)"
        with self.connection.cursor().copy(query.encode()) as copy:
            data = b"".join(bytes(part) for part in copy)
        assert data[:11] == b"PGCOPY\n\xff\r\n\0"
        at, tuples = 19, []
        while (count := int.from_bytes(data[at : at + 2], "big", signed=True)) >= 0:
            start, at = at, at + 2
            for _ in range(count):
                at += 4 + max(int.from_bytes(data[at : at + 4], "big", signed=True), 0)
            tuples.append(data[start:at])
        return tuples

    def close(self) -> None:
        self.catalog.close()
        self.connection.close()
