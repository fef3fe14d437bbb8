"""Helps the creation of a slot on a standby. The creation waits until the primary has logged its
running transactions, and until those that ran before have ended.

The primary logs them every 15 s while it writes, and at once when `pg_log_standby_snapshot()` is
called there. The standby's own views do not name the transactions that the creation waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import psycopg
from psycopg.rows import class_row

from twofold.errors import SetupError, Unreachable
from twofold.source.connection import PlainConnection
from twofold.source.diagnosis import error_text
from twofold.source.locks import Blocker
from twofold.source.primary import connect_to_primary
from twofold_common.table_names import sql_identifier

STATEMENT = "SELECT pg_log_standby_snapshot();"

_RUNNING = """
SELECT gid, NULL AS pid, database::text, owner::text, clock_timestamp() - prepared AS age,
       'ExclusiveLock on transaction ' || transaction AS lock
  FROM pg_catalog.pg_prepared_xacts WHERE prepared < %(since)s
 UNION ALL
SELECT NULL, pid, datname::text, usename::text, clock_timestamp() - xact_start, 'ExclusiveLock on transaction ' || backend_xid
  FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND xact_start < %(since)s
 ORDER BY age DESC LIMIT 20
"""


class PrimarySnapshots:
    """For one creation of a slot; says once which statement a person can run instead."""

    statement = f"on the primary, {STATEMENT}"

    def __init__(self, conninfo: str, say: Callable[[str], None]) -> None:
        self._say = say
        self._primary: PlainConnection | None = None
        self._since: datetime | None = None
        self._is_refused = False
        try:
            self._primary = connect_to_primary(conninfo)
            row = self._primary.execute("SELECT clock_timestamp()").fetchone()
            assert row is not None
            self._since = row[0]
        except (SetupError, Unreachable) as error:
            self._tell_statement(str(error))

    def log(self) -> tuple[Blocker, ...]:
        """Let the primary log its running transactions; return those that creation waits for."""
        if self._primary is None:
            return ()
        try:
            self._request(self._primary)
            cursor = self._primary.cursor(row_factory=class_row(Blocker))
            return tuple(cursor.execute(_RUNNING, {"since": self._since}).fetchall())
        except Unreachable as error:
            self._primary = None
            self._tell_statement(str(error))
            return ()

    def close(self) -> None:
        if self._primary is not None:
            self._primary.close()

    def _request(self, primary: PlainConnection) -> None:
        if self._is_refused:
            return
        try:
            primary.execute("SELECT pg_catalog.pg_log_standby_snapshot()")
        except psycopg.errors.InsufficientPrivilege as error:
            self._is_refused = True
            role = sql_identifier(primary.info.user)
            self._tell_statement(
                f"{error_text(error)}; remedy: GRANT EXECUTE ON FUNCTION pg_catalog.pg_log_standby_snapshot() TO {role};"
            )

    def _tell_statement(self, why: str) -> None:
        self._say(
            f"a slot on a standby waits until its primary logs its running transactions, every 15 s while it writes; at once {self.statement} ({why})"
        )
