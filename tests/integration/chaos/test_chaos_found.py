"""Faults that the chaos suite has found, each as a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

import psycopg
import pytest

from fixtures.backfill import initialised
from fixtures.connector import Maker
from helpers.connector.ledger import SCHEMA
from twofold.source.table_copier import TableCopier
from twofold.stack import PostgresServer


@pytest.mark.slow
def test_a_chunk_may_be_empty(connector: Maker) -> None:
    """The last one of a table that ends with a full chunk; then COPY's head and end come in one
    message, which was taken for a row: the connector ended, at every start again.
    """
    here = connector(init=False, backfill={"chunk_rows": 50})
    here.sql(SCHEMA)
    here.sql("INSERT INTO account SELECT n, 1, 'before' FROM generate_series(1, 100) n", "TRUNCATE ledger")
    with initialised(here):
        pass
    assert sorted(seen.value["after"]["id"] for seen in here.read("account")) == list(range(1, 101))


def test_a_load_is_cancelled_though_its_server_has_died(own_postgres: Callable[..., PostgresServer]) -> None:
    """The run ended because the server died, and cancelled its loads: that the server could not be
    asked to ended the connector.
    """
    server = own_postgres()
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT n, repeat('x', 1000) AS x FROM generate_series(1, 100000) n")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
    cancelled = False
    with (
        closing(TableCopier(server.dsn(), "p", "public", "t")) as copier,
        suppress(psycopg.OperationalError),  # of the copy, whose server is gone
        copier._connection.cursor().copy("COPY public.t TO STDOUT") as copy,
    ):
        copy.read()
        server.kill()
        copier.cancel()
        cancelled = True
    assert cancelled
