"""Values that PostgreSQL takes for equal and that are not identical, and the other way round: as
keys and in tables without one, in the fold, and from a source to `verify` in the sinks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fixtures.connector import Installation, Maker
from fixtures.spark import Lake
from helpers.connector import ledger as connector_ledger
from helpers.spark.verified import verification
from helpers.spark.writer import Row, encode, table
from twofold_avro import schemas, wire
from twofold_avro.shapes import TableShape, TypeShape
from twofold_spark.mirror.folding import LastRecords, fold_keyed, fold_keyless
from twofold_spark.row_columns import COPIES, OP, UNCHANGED
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources.decoding import merge_key_columns
from twofold_spark.sources.registry import Subject

NAN = float("nan")
Change = tuple[str, Row | None, Row | None]
"""Op, row before, row after."""


def _records(
    spark: SparkSession, shape: TableShape, changes: Iterable[Change]
) -> tuple[DataFrame, Subject | None, Subject]:
    """The changes as Kafka has them: a key's records in the partition of its bytes."""
    key, value = schemas.key_schema(shape, "p"), schemas.envelope_schema(shape, "p")
    rows = []
    for offset, (op, before, after) in enumerate(changes):
        source = {
            "version": "", "connector": "", "name": "p", "db": "", "schema": "public", "table": shape.table, "ts_ms": 0,
            "ts_us": 0, "txId": 1, "lsn": offset, "gid": None, "snapshot": "false", "global_id": None, "branch": None,
        }  # fmt: skip
        transaction = {"id": "1:1", "total_order": offset + 1, "data_collection_order": 1}
        envelope: dict[str, Any] = {
            "before": before, "after": after, "source": source, "op": op, "ts_ms": 0, "transaction": transaction,
            "unchanged": [], "special": [],
        }  # fmt: skip
        row = after or before or {}
        kept = encode(key, 1, {c.name: row[c.name] for c in shape.key}) if key is not None else None
        partition = wire.partition_of(kept, 3) if kept is not None else 0
        rows.append((partition, offset, kept, encode(value, 2, envelope)))
    raw = spark.createDataFrame(rows, "partition int, offset long, key binary, value binary")
    keys = Subject("p-key", ((1, cast("Any", key)),)) if key is not None else None
    return raw, keys, Subject("p-value", ((2, cast("Any", value)),))


def _fold(spark: SparkSession, shape: TableShape, changes: Iterable[Change]) -> list[Row]:
    """The folded rows; floats as text, in which -0 and 0 differ."""
    raw, keys, values = _records(spark, shape, changes)
    with ExitStack() as held:
        if keys is None:
            rows = fold_keyless(raw, values, held).rows
        else:
            columns = merge_key_columns(keys.latest, values.latest)
            last = LastRecords(values, decode_all=False)
            rows = fold_keyed(raw, last, keys, columns, lambda _: None, held).rows
        shown = [f.col(c).cast("string").alias(c) for c in rows.columns if c != UNCHANGED]
        return [row.asDict() for row in rows.select(*shown).collect()]


def test_of_two_message_keys_of_one_float_the_row_that_is_there_is_kept(spark: SparkSession) -> None:
    """The two lie in different partitions, and no offset says which is later."""
    shape = table("t", {"id": "float8", "v": "int4"})

    def moved(old: float, new: float, v: int) -> list[Change]:
        return [("d", {"id": old, "v": None}, None), ("c", {"id": old, "v": None}, {"id": new, "v": v})]

    there_and_back = [("c", None, {"id": 0.0, "v": 1}), *moved(0.0, -0.0, 2), *moved(-0.0, 0.0, 3)]
    others: list[Change] = [
        ("c", None, {"id": NAN, "v": 7}),
        ("u", None, {"id": NAN, "v": 8}),
        ("c", None, {"id": 1.5, "v": 9}),
    ]
    found = {row["id"]: row for row in _fold(spark, shape, [*there_and_back, *others])}
    assert {key: (row["v"], row[OP] == "d") for key, row in found.items()} == {
        "0.0": ("3", False), "NaN": ("8", False), "1.5": ("9", False),
    }  # fmt: skip
    (once,) = _fold(spark, shape, moved(0.0, -0.0, 2))
    assert (once["id"], once["v"], once[OP]) == ("-0.0", "2", "c")
    (gone,) = _fold(spark, shape, [*moved(0.0, -0.0, 2), ("d", {"id": -0.0, "v": None}, None)])
    assert gone[OP] == "d"


def test_a_row_of_a_table_without_a_key_is_told_by_what_is_identical(spark: SparkSession) -> None:
    shape = table("t", {"f": "float8", "r": "float4", "a": "_float8", "n": "numeric", "c": "bpchar"}, key=())
    of_floats = TypeShape(0, "pg_catalog", "_float8", kind="array", element=TypeShape(0, "pg_catalog", "float8"))
    columns = (replace(each, type=of_floats) if each.name == "a" else each for each in shape.columns)
    shape = replace(shape, columns=tuple(columns))

    def row(f: float = 1.0, r: float = 1.0, a: float = 1.0, n: str = "1.0", c: str = "x ") -> Row:
        return {"f": f, "r": r, "a": [a], "n": n, "c": c}

    rows = [
        row(),
        row(f=0.0),
        row(f=-0.0),
        row(r=0.0),
        row(r=-0.0),
        row(a=0.0),
        row(a=-0.0),
        row(f=NAN),
        row(n="1.00"),
        row(c="x"),
    ]
    changes: list[Change] = [("c", None, each) for each in rows for _ in range(2)]
    changes.append(("d", row(f=-0.0), None))
    found = Counter({tuple(each[c] for c in "franc"): int(each[COPIES]) for each in _fold(spark, shape, changes)})
    assert len(found) == len(rows)
    assert sum(found.values()) == 19
    assert found["-0.0", "1.0", "[1.0]", "1.0", "x "] == 1
    assert found["NaN", "1.0", "[1.0]", "1.0", "x "] == 2


TABLES = (
    "CREATE COLLATION IF NOT EXISTS anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    "CREATE TABLE doubles (k float8 PRIMARY KEY, v int)",
    "CREATE TABLE reals (k float4 PRIMARY KEY, v int)",
    "CREATE TABLE numbers (k numeric PRIMARY KEY, v int)",
    "CREATE TABLE documents (k jsonb PRIMARY KEY, v int)",
    "CREATE EXTENSION citext",
    "CREATE TABLE words (k citext PRIMARY KEY, v int)",
    "CREATE TABLE others (k text COLLATE anycase PRIMARY KEY, v int)",
    "CREATE TABLE padded (k char(4) PRIMARY KEY, v int)",
    "CREATE TABLE lists (k float8[] PRIMARY KEY, v int)",
    "CREATE TABLE bag (d float8, r float4, n numeric, j jsonb, a float8[], c char(4))",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
)
EQUALS = {
    "doubles": ("0", "'-0'"),
    "reals": ("0", "'-0'"),
    "numbers": ("1.0", "1.00"),
    "documents": ("""'{"a": 1.0}'""", """'{"a": 1.00}'"""),
    "words": ("'a'", "'A'"),
    "others": ("'a'", "'A'"),
    "padded": ("'a'", "'a '"),
    "lists": ("'{0}'", "'{-0}'"),
}
_ROWS = (("0", "0", "1.0"), ("-0", "0", "1.0"), ("-0", "0", "1.0"), ("0", "-0", "1.00"), ("NaN", "1", "1"))
BAG = "INSERT INTO bag VALUES " + ", ".join(
    f"""('{d}', '{r}', {n}, '{{"a": {n}}}', '{{{d}}}', 'a')""" for d, r, n in _ROWS
)


@pytest.mark.parametrize(
    "sinks",
    [
        pytest.param(("iceberg",), id="short"),
        pytest.param(("iceberg", "delta", "jdbc"), marks=[pytest.mark.slow, pytest.mark.timeout(1800)], id="long"),
    ],
)
def test_from_a_source_to_verify(lake: Lake, connector: Maker, database: str, sinks: tuple[str, ...]) -> None:
    names = [*EQUALS, "bag", "account"]
    here: Installation = connector(init=False, source={"tables": [f"public.{name}" for name in names]})
    here.sql(connector_ledger.SCHEMA, *TABLES)
    lake.prefix = here.prefix
    addresses = {"delta": str(lake.warehouse / "delta"), "jdbc": database}
    assert here.init().returncode == 0
    with here.carrying():
        for statements in (
            [BAG, *(f"INSERT INTO {name} VALUES ({one}, 1)" for name, (one, _) in EQUALS.items())],
            [
                "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE d::text = '-0' LIMIT 1)",
                "UPDATE bag SET d = '-0' WHERE d::text = '0' AND n::text = '1.00'",
                *(f"UPDATE {name} SET k = {other}, v = 2 WHERE k = {one}" for name, (one, other) in EQUALS.items()),
            ],
            [f"UPDATE {name} SET k = {one} WHERE k = {other}" for name, (one, other) in EQUALS.items()],
        ):
            here.sql(*statements)
            here.caught_up()
            for sink in sinks:
                lake.choice, lake.checkpoint = SinkChoice(sink, addresses.get(sink, "")), sink
                lake.mirror()
    for sink in sinks:
        lake.choice = SinkChoice(sink, addresses.get(sink, ""))
        with verification(lake, lake.prefix, here.conninfo, patience=2) as verify:
            results = verify.run()
        assert {each.table: each.buckets for each in results} == {f"public.{name}": 0 for name in names}, sink
