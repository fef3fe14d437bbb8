"""Spark, pyiceberg, DuckDB and Trino, as readers of two tables by their plain names."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final, Protocol

from pyspark.sql import SparkSession

from fixtures.spark import Lake
from helpers.spark import trino_server
from helpers.spark.duckdb_client import DuckdbProcess
from helpers.spark.trino_server import TrinoServer
from readers.catalogs import SCHEMA, CatalogOfTables, RestTables

TABLES: Final = ("accounts", "vault")
READERS: Final = ("spark", "pyiceberg", "duckdb")
"""Those of the short forms; Trino is a download of 821 MB."""
KNOWN_READERS: Final = (*READERS, "trino")
_WITHOUT_STATISTICS: Final = "SET disabled_optimizers = 'statistics_propagation'"
"""DuckDB subtracts the deleted rows of a table's delete files from its rows. In format 2 compaction
leaves files that delete nothing any more, so that less than none are left: of two such tables
`UNION ALL` is then an INTERNAL Error of that optimizer.
"""
_QUERY: Final = "SELECT sum(balance) FROM (SELECT balance FROM {} UNION ALL SELECT balance FROM {})"


class TotalReader(Protocol):
    """A program that reads both tables as anyone would; used by one thread."""

    @property
    def name(self) -> str: ...
    def read_total(self) -> int:
        """Load one table, then the other, and add up what they hold."""
        ...


class SparkSql:
    """One statement."""

    name = "spark"

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._query = _QUERY.format(*(f"{catalog}.{SCHEMA}.{table}" for table in TABLES))

    def read_total(self) -> int:
        row = self._spark.sql(self._query).first()
        assert row is not None
        return int(row[0])


class Pyiceberg:
    """Both are loaded, then both are scanned."""

    name = "pyiceberg"

    def __init__(self, tables: CatalogOfTables) -> None:
        self._catalog = tables.for_pyiceberg()

    def read_total(self) -> int:
        loaded = [self._catalog.load_table((SCHEMA, table)) for table in TABLES]
        return sum(sum(table.scan().to_arrow().column("balance").to_pylist()) for table in loaded)


class Duckdb:
    """One statement, in a process of its own."""

    name = "duckdb"

    def __init__(self, process: DuckdbProcess, tables: CatalogOfTables) -> None:
        self._process = process
        self._tables = tables
        for statement in (*tables.duckdb_attaches(), _WITHOUT_STATISTICS):
            process.ask(statement)

    def read_total(self) -> int:
        ((total,),) = self._process.ask(_QUERY.format(*map(self._tables.duckdb_name, TABLES)))
        return int(total)


class Trino:
    """One statement, in a server of its own. It reads no deletion vectors, so it needs format 2."""

    name = "trino"

    def __init__(self, server: TrinoServer) -> None:
        self._server = server
        self._query = _QUERY.format(*(f"{trino_server.CATALOG}.{SCHEMA}.{table}" for table in TABLES))

    def read_total(self) -> int:
        ((total,),) = self._server.query(self._query)
        return int(total)


def make_reader(name: str, lake: Lake, tables: CatalogOfTables, ending: ExitStack) -> TotalReader:
    """Make a reader of the lake's tables."""
    match name:
        case "spark":
            return SparkSql(lake.spark, lake.catalog)
        case "pyiceberg":
            return Pyiceberg(tables)
        case "trino":
            assert isinstance(tables, RestTables), "the command refuses other catalogs"
            server = TrinoServer(lake.warehouse / "trino", trino_server.rest_catalog(tables.access.address))
            ending.callback(server.stop)
            server.start()
            return Trino(server)
        case _:
            process = DuckdbProcess()
            ending.callback(process.close)
            return Duckdb(process, tables)
