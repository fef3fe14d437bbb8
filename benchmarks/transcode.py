"""What a row costs on its way from PostgreSQL's bytes to Kafka's: CPU microseconds of the
transcoder, compiled and not.

The messages are captured from a real server: a table of ten columns of mixed types, filled by
INSERTs, its pgoutput read in text form. A million of them go through (the captured hundred
thousand, ten times), in batches of a thousand as a turn hands them on. The same rows go through as
a load reads them: COPY in binary, in runs, packed. Uncompiled the captured ones go through once.
The last line is one JSON object.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import twofold_avro
from twofold.source.catalog import Catalog
from twofold.source.connection import connect
from twofold.source.decoder import decode
from twofold.source.messages import Relation
from twofold.source.table_copier import TableCopier
from twofold.stack import PostgresServer, temporary_folder
from twofold_avro import transcode
from twofold_avro.shapes import TableShape, TypeShape

CAPTURED = 100_000
PASSES = 10
BATCH = 1_000
RUNS = 100
PARTITIONS = 6

TABLE = """
CREATE TABLE public.orders (
    id bigint PRIMARY KEY, quantity int, customer text, price numeric, placed_at timestamptz,
    details jsonb, paid boolean, token uuid, note text, version bigint)
"""
ROWS = f"""
INSERT INTO public.orders
SELECT i, i % 100, 'customer ' || i % 5000, (i % 100000) / 100.0, timestamptz '2024-01-01 00:00:00+00' + i * interval '1.234567 s',
       jsonb_build_object('sku', 'A-' || i % 977, 'gift', i % 2 = 0), i % 3 = 0, gen_random_uuid(), repeat('n', 10 + i % 40), i * 1000003::bigint
  FROM generate_series(1, {CAPTURED}) i
"""


def main() -> None:
    shape, payloads, runs = captured()
    size = sum(map(len, payloads)) // len(payloads)
    print(f"{len(payloads)} messages of {size} bytes on average")
    figures: dict[str, float | None] = {"us_per_row": None, "us_per_row_uncompiled": None, "us_per_copied_row": None}
    if transcode.is_compiled():
        for name, hidden in ("hashed", hashed(shape, "customer")), ("hashed_unique", hashed(shape, "token")):
            figures[f"us_per_row_{name}"] = round(us_per_row(transcode, hidden, payloads, PASSES), 3)
        figures["us_per_row"] = round(us_per_row(transcode, shape, payloads, PASSES), 3)
        figures["us_per_copied_row"] = round(us_per_copied_row(transcode, shape, runs, PASSES), 3)
    else:
        print("the row path is not compiled: `make ready` says what to install")
    figures["us_per_row_uncompiled"] = round(us_per_row(uncompiled(), shape, payloads, 1), 3)
    figures["us_per_copied_row_uncompiled"] = round(us_per_copied_row(uncompiled(), shape, runs, 1), 3)
    print(json.dumps(figures))


def hashed(shape: TableShape, name: str) -> TableShape:
    """The table with one column under a hash: customer has 5,000 values, token one for each row."""
    text = TypeShape(25, "pg_catalog", "text")
    columns = (replace(c, policy="hash", type=text) if c.name == name else c for c in shape.columns)
    return replace(shape, columns=tuple(columns))


def captured() -> tuple[TableShape, list[bytes], list[bytes]]:
    """What pgoutput says of the rows and of their table, and COPY's runs of the rows."""
    folder = temporary_folder()
    server = PostgresServer(folder / "postgres")
    try:
        server.start()
        with connect(server.dsn()) as connection:
            connection.execute(TABLE.encode())
            connection.execute("CREATE PUBLICATION bench FOR TABLE public.orders")
            connection.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
            connection.execute(ROWS.encode())
            found = connection.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes("
                "'bench', NULL, NULL, 'proto_version', '1', 'publication_names', 'bench')"
            ).fetchall()
        relation = decode(next(data for (data,) in found if data[:1] == b"R"), in_stream=False)
        assert isinstance(relation, Relation)
        catalog = Catalog(server.dsn())
        try:
            shape = catalog.shape(relation)
        finally:
            catalog.close()
        return shape, [bytes(data) for (data,) in found if data[:1] == b"I"], copied(server.dsn(), shape)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def copied(dsn: str, shape: TableShape) -> list[bytes]:
    """The rows as a load reads them."""
    copier = TableCopier(dsn, "bench", shape.schema, shape.table)
    try:
        with copier.view() as view:
            assert view.described is not None, "it is published"
            return list(copier.rows(view.described, shape))
    finally:
        copier.close()


def uncompiled() -> ModuleType:
    """The transcoder, and the hashes beneath it, as their sources run."""
    made = {}
    for name in ("hashing", "wire", "transcode"):
        path = Path(twofold_avro.__file__).with_name(f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"uncompiled_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        made[name] = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = made[name]
        spec.loader.exec_module(made[name])
    made["transcode"].partition_of = made["wire"].partition_of  # type: ignore[attr-defined]
    made["transcode"].KeyedHash = made["hashing"].KeyedHash  # type: ignore[attr-defined]
    return made["transcode"]


def us_per_row(module: Any, shape: TableShape, payloads: list[bytes], passes: int) -> float:
    """CPU time of this process for each message, to key and envelope bytes in their partition's
    list.
    """
    server = module.ServerConstants("0.1.0", "shop", "shop", b"k" * 32)
    plan = module.RowPlan(
        shape, key_schema_id=1, value_schema_id=2, partitions=PARTITIONS, server=server, tombstones=True
    )
    size = sum(map(len, payloads))
    received = [(123_456_789_012, payload) for payload in payloads]
    started = time.process_time()
    for _ in range(passes):
        for first in range(0, len(payloads), BATCH):
            header = module.TransactionHeader(777, 1_700_000_000_123_456, "777:123456789", commit_lsn=123_456_789_000)
            lists: list[list[dict[str, bytes | None]]] = [[] for _ in range(PARTITIONS)]
            part = received[first : first + BATCH]
            plan.append_run(part, 0, 1, header, 1_700_000_000_123, lists, size)
    return (time.process_time() - started) / (passes * len(payloads)) * 1e6


def us_per_copied_row(module: Any, shape: TableShape, runs: list[bytes], passes: int) -> float:
    """CPU time of this process for each of COPY's tuples, to packed key and envelope bytes."""
    server = module.ServerConstants("0.1.0", "shop", "shop", b"k" * 32)
    plan = module.RowPlan(
        shape, key_schema_id=1, value_schema_id=2, partitions=PARTITIONS, server=server, tombstones=True
    )
    rows, started = 0, time.process_time()
    for _ in range(passes):
        header, packer = module.TransactionHeader(None, 1_700_000_000_123_456, None), module.PartitionPacker(PARTITIONS)
        for number, run in enumerate(runs):
            rows += plan.append_copy(run, 123_456_789_012, header, 1_700_000_000_123, packer)[0]
            if number % RUNS == 0:
                packer.take_rows()
    return (time.process_time() - started) / rows * 1e6


if __name__ == "__main__":
    main()
