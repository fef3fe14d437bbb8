"""What reading a table leaves in the log of a server on which nothing else happens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from fixtures.connector import wait_until
from twofold.source.catalog import Catalog
from twofold.source.table_copier import TableCopier
from twofold.stack import PostgresServer

ROWS = 20_000
TUPLE_BYTES = 2 + (4 + 4) + (4 + 100)
FLUSHED_WITHIN_S = 5
QUIET = {"wal_log_hints": "on", "bgwriter_delay": "10s", "autovacuum": "off"}


def positions(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Up to where the log is written by sessions, and up to where it is on disk."""
    row = connection.execute(
        "SELECT pg_current_wal_insert_lsn() - '0/0', pg_current_wal_flush_lsn() - '0/0'"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


@pytest.mark.parametrize("taken", [ROWS, ROWS // 2], ids=["all", "stopped early"])
def test_what_reading_wrote_is_flushed_at_its_end(own_postgres: Callable[..., PostgresServer], taken: int) -> None:
    """The next chunk's position lies behind it, and the stream shows only what is flushed.

    After a rollback it waits for the background writer, which comes every 15 s.
    """
    server = own_postgres(settings=QUIET)
    with (
        psycopg.connect(server.dsn(), autocommit=True) as connection,
        closing(Catalog(server.dsn())) as catalog,
    ):
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        connection.execute(f"INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, {ROWS}) n")
        connection.execute("CHECKPOINT")
        _, before = positions(connection)
        with closing(TableCopier(server.dsn(), "p", "public", "t")) as copier:
            with copier.view() as view:
                assert view.described is not None
                shape = catalog.shape(view.described.relation)
                with closing(copier.rows(view.described, shape, mark=taken * TUPLE_BYTES)) as runs:
                    received = 0
                    while received < taken * TUPLE_BYTES:
                        received += len(next(runs))
                assert received == taken * TUPLE_BYTES
            written, _ = positions(connection)
            assert written > before, "reading writes hints into the log"
            wait_until(lambda: positions(connection)[1] >= written, FLUSHED_WITHIN_S, "it is flushed")
