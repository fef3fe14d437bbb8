"""Servers, a database with the tables of the trial, and a connector that has carried all that
happened to them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from clients.rows import Rows
from clients.samples import PREPARATION
from clients.tables import IDENTITIES, LAST_ID, Table, every_type, kinds_of_change
from fixtures.connector import Installation
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer

PREFIX = "clients"


@dataclass(frozen=True)
class Laboratory:
    """Where the topics are, and the rows that a reader should have."""

    bootstrap: str
    registry: str
    dsn: str
    """Of the database of the tables."""
    target: str
    """Of an empty database."""
    tables: Sequence[Table]

    def topic(self, table: Table) -> str:
        return f"{PREFIX}.public.{table.table}"

    def rows(self, table: Table) -> Rows:
        """As PostgreSQL writes them."""
        columns = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(s.column)) for s in table.samples)
        query = sql.SQL("SELECT id, n, {} FROM {}").format(columns, sql.Identifier(table.table))
        names = ["n", *(sample.column for sample in table.samples)]
        with psycopg.connect(self.dsn, options="-c timezone=UTC") as connection:
            found = connection.execute(query).fetchall()
        return {key: dict(zip(names, values, strict=True)) for key, *values in found}


@contextmanager
def carried(folder: Path) -> Iterator[Laboratory]:
    """All tables, with everything that happens to them in their topics."""
    tables = [table for identity in IDENTITIES for table in (every_type(identity), *kinds_of_change(identity))]
    with ExitStack() as ending:
        postgres = PostgresServer(folder / "postgres", settings={"max_connections": "300"})
        kafka, registry = KafkaCluster(folder / "kafka"), RegistryServer(folder / "registry")
        for server in (postgres, kafka, registry):
            ending.callback(server.stop)
            server.start()
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            for name in ("source", "target"):
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        prepare(postgres.dsn("target"))
        options = {"source": {"tables": ["*"]}, "kafka": {"partitions": 1}}
        dsn = postgres.dsn("source")
        here = Installation(folder, PREFIX, dsn, kafka.bootstrap, registry.url, options)
        prepare(dsn)
        here.sql("CREATE TABLE account (id int PRIMARY KEY, version int, note text)")
        here.sql(*(statement for table in tables for statement in table.creation()))
        here.twofold("init", ok=True)
        with here.carrying():
            here.until_loaded(120)
            here.sql(*(statement for table in tables for statement in table.statements(*table.changes)))
            here.caught_up()
            for table in tables:
                if table.reloaded:
                    subprocess.run(
                        here.command("backfill", "start", f"public.{table.table}"), check=True, capture_output=True
                    )
            here.until_loaded(120)
            here.sql(*(f"INSERT INTO {table.table} (id, n) VALUES ({LAST_ID}, 0)" for table in tables))
            here.caught_up()
        yield Laboratory(kafka.bootstrap, registry.url, dsn, postgres.dsn("target"), tables)


def prepare(dsn: str) -> None:
    """The types of the samples."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in PREPARATION:
            connection.execute(statement)
