"""Asks PostgreSQL which transactions are prepared, and where its WAL ends, on one connection.

Both are the primary's answers, also where the stream is a standby's.
"""

from __future__ import annotations

from typing import Any

import psycopg

from twofold.errors import TwofoldError, Unreachable
from twofold.source.connection import PlainConnection
from twofold.source.diagnosis import error_text
from twofold.source.primary import connect_to_primary
from twofold_common.positions import Lsn, PreparedIdentity, parse_lsn

_PAGE_HEADER_BYTES_MAX = 40
_INSERT_END = """
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text,
       pg_catalog.current_setting('wal_block_size')::int
"""


def insert_end(connection: PlainConnection) -> Lsn:
    """Return a position behind every commit that this server has shown; the stream reaches it."""
    row: Any = connection.execute(_INSERT_END).fetchone()
    return reached(parse_lsn(row[0]), row[1])


def reached(lsn: Lsn, page: int) -> Lsn:
    """Return the position that the stream reaches once it has sent everything before `lsn`.

    An insert position at a page's beginning lies behind the page's header. The stream does not
    reach it until more is written.
    """
    return Lsn(lsn - lsn % page) if lsn % page <= _PAGE_HEADER_BYTES_MAX else lsn


class WalEnd:
    """The connection that asks, for one thread; after a failure it is opened again."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: PlainConnection | None = None

    def prepared(self) -> frozenset[PreparedIdentity]:
        """Return the prepared transactions of this database. An ended transaction is listed until
        its outcome is in the WAL.
        """
        rows = self._ask(
            "SELECT transaction::text::bigint, gid FROM pg_catalog.pg_prepared_xacts"
            " WHERE database = current_database()"
        )
        return frozenset(PreparedIdentity(*row) for row in rows)

    def end(self) -> Lsn:
        """Return the end of the flushed WAL: every PREPARE that has returned lies before it."""
        ((end,),) = self._ask("SELECT pg_current_wal_flush_lsn()::text")
        return parse_lsn(end)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, query: str) -> list[Any]:
        try:
            if self._connection is None:
                self._connection = connect_to_primary(self._conninfo)
            return self._connection.execute(query).fetchall()
        except TwofoldError:
            self.close()
            raise
        except psycopg.Error as error:
            self.close()
            raise Unreachable(f"PostgreSQL does not say where its WAL ends: {error_text(error)}") from error
