"""Spark, pyiceberg and DuckDB read the mirror's Iceberg tables by their plain names, with all
types, at older versions and at branches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from fixtures.catalogs import RestCatalogServer
from fixtures.spark import new_lake
from helpers.spark.duckdb_client import DuckdbProcess
from helpers.spark.every_type import mirror_twice
from helpers.spark.writer import Writer
from readers.places import rest_place
from readers.programs import READERS, make_reader
from readers.trial import try_catalog
from twofold_spark.catalog_choice import CatalogChoice
from twofold_spark.sinks.iceberg_branches import MERGES

_IN_SPARK = {
    "id": "bigint",
    "price": "decimal(12,2)",
    "free": "string",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "uid": "string",
    "doc": "string",
    "raw": "binary",
    "tags": "array<string>",
}
_IN_DUCKDB = {
    "id": "BIGINT",
    "price": "DECIMAL(12,2)",
    "free": "VARCHAR",
    "at": "TIMESTAMP WITH TIME ZONE",
    "local": "TIMESTAMP",
    "day": "DATE",
    "uid": "VARCHAR",
    "doc": "VARCHAR",
    "raw": "BLOB",
    "tags": "VARCHAR[]",
}


@pytest.fixture
def duckdb() -> Iterator[DuckdbProcess]:
    process = DuckdbProcess()
    yield process
    process.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_every_program_reads_all_types_older_versions_and_the_branch(
    spark: SparkSession,
    lake_writer: Writer,
    rest_catalog: RestCatalogServer,
    duckdb: DuckdbProcess,
    version: int,
) -> None:
    """As docs/use/spark.md says."""
    choice = CatalogChoice.choose(None, rest_catalog.url, {"warehouse": str(rest_catalog.folder)})
    lake = new_lake(spark, lake_writer, rest_catalog.folder, choice)
    lake.format_version, lake.write_mode = version, "merge-on-read"
    mirror_twice(lake)
    assert dict(lake.table("every").dtypes) == _IN_SPARK
    in_spark = [row.asDict() for row in lake.table("every").withColumn("at", f.col("at").cast("string")).collect()]
    instants = {key: {**row, "at": "2024-02-29 12:00:00.000001"} for key, row in lake.writer.model["every"].items()}
    assert {row["id"]: row for row in in_spark} == instants

    loaded = RestCatalog("rest", uri=rest_catalog.url).load_table("public.every")
    assert loaded.format_version == version
    assert any(name.endswith(".puffin") for name in _delete_files(loaded)) == (version == 3), "deletion vectors"
    now = {0: "two", 2: "two"}
    before = dict.fromkeys(range(3), "one")
    *_, first, last = (snapshot.snapshot_id for snapshot in loaded.snapshots())
    rows = {row["id"]: row for row in loaded.scan().to_arrow().to_pylist()}
    assert rows == lake.writer.model["every"]
    assert _notes(loaded.scan(snapshot_id=first).to_arrow().to_pylist()) == before
    assert _notes(loaded.scan().use_ref(MERGES).to_arrow().to_pylist()) == now

    duckdb.ask(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{rest_catalog.url}', AUTHORIZATION_TYPE 'none')")
    name = "lake.public.every"
    assert {column: kind for column, kind, *_ in duckdb.ask(f"DESCRIBE {name}")} == _IN_DUCKDB
    texts = duckdb.ask(f"SELECT COLUMNS(*)::VARCHAR FROM {name} WHERE id = 2")
    assert texts == [_in_duckdb(2, "two")]
    assert {key: doc["note"] for key, doc in _keyed(duckdb, name)} == now
    assert {key: doc["note"] for key, doc in _keyed(duckdb, f"{name} AT (VERSION => {first})")} == before
    assert {key: doc["note"] for key, doc in _keyed(duckdb, f"{name} AT (VERSION => {last})")} == now


def _notes(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["id"]: json.loads(row["doc"])["note"] for row in rows}


def _keyed(duckdb: DuckdbProcess, table: str) -> list[tuple[int, Any]]:
    return [(key, json.loads(doc)) for key, doc in duckdb.ask(f"SELECT id, doc FROM {table}")]


def _in_duckdb(key: int, note: str) -> list[str]:
    return [
        f"{key}",
        "12345.67",
        "1e400",
        "2024-02-29 12:00:00.000001+00",
        "2024-02-29 12:00:00.000001",
        "2024-02-29",
        "01234567-89ab-cdef-0123-456789abcdef",
        json.dumps({"note": note}),
        "\\x00\\xFF",
        f"[{note}, NULL]",
    ]


def _delete_files(loaded: Table) -> list[str]:
    return [file["file_path"] for file in loaded.inspect.delete_files().to_pylist()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_reader_of_plain_names_sees_two_cuts_of_a_catalog_that_commits_several_tables_at_once(
    spark: SparkSession,
    lake_writer: Writer,
    rest_catalog: RestCatalogServer,
) -> None:
    """`make readers` is the long form."""
    with ExitStack() as ending:
        lake, tables, options = ending.enter_context(rest_place(spark, lake_writer, rest_catalog, at_once=True))
        readers = [make_reader(name, lake, tables, ending) for name in READERS]
        outcome = try_catalog(lake, tables, readers, options=options, reads=30, kills=1)
    assert outcome.reads >= 30
    assert outcome.torn == 0, outcome.describe()
