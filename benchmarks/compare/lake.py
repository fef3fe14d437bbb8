"""Iceberg tables whose catalog is in the destination's database. DuckDB reads them.

A look asks the catalog for all tables in one statement, so it sees the tables' plain names as of
one moment. A program that opens one table after the other sees less.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qsl

import psycopg

from compare.bank import DATABASES, TABLES
from compare.ground import Ground
from compare.looks import Ask
from helpers.spark.duckdb_client import DuckdbProcess
from readers.metadata import read_metadata
from twofold_spark.catalog_choice import CatalogChoice
from twofold_spark.sources.postgres_connection import build_jdbc_url

CATALOG: Final = "lake"
Locations = Mapping[tuple[str, str, str], str]
"""The metadata files by catalog, schema and table."""


def choose_catalog(ground: Ground) -> CatalogChoice:
    """Iceberg's JDBC catalog in the destination."""
    url, _, query = build_jdbc_url(ground.copies).partition("?")
    return CatalogChoice("jdbc", url, {f"jdbc.{name}": value for name, value in parse_qsl(query)})


class NotThereError(Exception):
    """A table has no rows yet."""


class LakeCopy:
    """The catalog has a schema for each database, unless `scans` says otherwise."""

    away = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.UndefinedTable, NotThereError)
    names: Final = {database: {table: f"{database}_{table}" for table in TABLES} for database in DATABASES}

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._turn = threading.Lock()
        self.duckdb = DuckdbProcess()

    @contextmanager
    def snapshot(self) -> Iterator[Ask]:
        with self._turn:
            with psycopg.connect(self._dsn, connect_timeout=5) as session:
                places = "SELECT catalog_name, table_namespace, table_name, metadata_location FROM iceberg_tables"
                found = {tuple(place): location for *place, location in session.execute(places.encode()).fetchall()}
            for name, scan in self.scans(found).items():
                self.duckdb.ask(f"CREATE OR REPLACE VIEW {name} AS FROM iceberg_scan({scan})")
            yield self.duckdb.ask

    def scans(self, locations: Locations) -> Mapping[str, str]:
        """What DuckDB scans, by table."""
        return {
            self.names[database][table]: f"'{find(locations, CATALOG, database, table)}'"
            for database in DATABASES
            for table in TABLES
        }


def find(locations: Locations, catalog: str, schema: str, table: str) -> str:
    """The metadata file of a table that has a version."""
    location = locations.get((catalog, schema, table))
    if location is None or read_metadata(location).get("current-snapshot-id") in (None, -1):
        raise NotThereError(table)
    return location
