"""Trino reads the mirror's Iceberg tables by their plain names, as docs/use/spark.md says.

Slow: its server is a download of 821 MB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fixtures.catalogs import RestCatalogServer
from fixtures.spark import Lake, new_lake
from helpers.spark.every_type import mirror_twice
from helpers.spark.trino_server import TrinoServer, rest_catalog
from helpers.spark.writer import Writer
from readers.places import rest_place
from readers.programs import make_reader
from readers.trial import try_catalog
from twofold_spark.catalog_choice import CatalogChoice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_TYPES = {
    "id": "bigint",
    "price": "decimal(12,2)",
    "free": "varchar",
    "at": "timestamp(6) with time zone",
    "local": "timestamp(6)",
    "day": "date",
    "uid": "varchar",
    "doc": "varchar",
    "raw": "varbinary",
    "tags": "array(varchar)",
}
_NAME = "lake.public.every"


@pytest.fixture
def lake(spark: SparkSession, lake_writer: Writer, rest_catalog: RestCatalogServer) -> Lake:
    choice = CatalogChoice.choose(None, rest_catalog.url, {"warehouse": str(rest_catalog.folder)})
    return new_lake(spark, lake_writer, rest_catalog.folder, choice)


@contextmanager
def _trino(address: str, folder: Path) -> Iterator[TrinoServer]:
    server = TrinoServer(folder / "trino", rest_catalog(address))
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _notes(trino: TrinoServer, at: str = "") -> dict[int, str]:
    return {key: json.loads(doc)["note"] for key, doc in trino.query(f"SELECT id, doc FROM {_NAME} {at}")}


def test_it_reads_all_types_older_versions_and_the_branch_of_format_2(
    lake: Lake, rest_catalog: RestCatalogServer, tmp_path: Path
) -> None:
    lake.format_version, lake.write_mode = 2, "merge-on-read"
    mirror_twice(lake)
    with _trino(rest_catalog.url, tmp_path) as trino:
        assert {column: kind for column, kind, *_ in trino.query(f"DESCRIBE {_NAME}")} == _TYPES
        texts = ", ".join(f"CAST({name} AS varchar)" for name in _TYPES if name not in ("raw", "tags"))
        assert trino.query(f"SELECT {texts}, to_hex(raw), tags FROM {_NAME} WHERE id = 2") == [
            [
                "2",
                "12345.67",
                "1e400",
                "2024-02-29 12:00:00.000001 UTC",
                "2024-02-29 12:00:00.000001",
                "2024-02-29",
                "01234567-89ab-cdef-0123-456789abcdef",
                json.dumps({"note": "two"}),
                "00FF",
                ["two", None],
            ]
        ]
        snapshots = trino.query('SELECT snapshot_id FROM lake.public."every$snapshots" ORDER BY committed_at')
        assert _notes(trino) == _notes(trino, "FOR VERSION AS OF 'twofold'") == {0: "two", 2: "two"}
        assert _notes(trino, f"FOR VERSION AS OF {snapshots[-2][0]}") == dict.fromkeys(range(3), "one")


def test_it_says_of_format_3_that_it_cannot_read_deletion_vectors(
    lake: Lake, rest_catalog: RestCatalogServer, tmp_path: Path
) -> None:
    lake.write_mode = "merge-on-read"
    mirror_twice(lake)
    with (
        _trino(rest_catalog.url, tmp_path) as trino,
        pytest.raises(RuntimeError, match="Unexpected PUFFIN file format"),
    ):
        _notes(trino)


def test_it_never_sees_two_cuts_of_a_catalog_that_commits_several_tables_at_once(
    spark: SparkSession, lake_writer: Writer, rest_catalog: RestCatalogServer
) -> None:
    """`make readers ARGS='--readers trino --catalogs rest --format-version 2'` is longer."""
    with ExitStack() as ending:
        lake, tables, options = ending.enter_context(rest_place(spark, lake_writer, rest_catalog, at_once=True))
        reader = make_reader("trino", lake, tables, ending)
        made = ("--format-version", "2", "--write-mode", "merge-on-read")
        outcome = try_catalog(lake, tables, [reader], options=(*options, *made), reads=60, kills=2)
    assert outcome.reads >= 60
    assert outcome.torn == 0, outcome.describe()
