"""Who holds a lock under which rows of a table are written: plain transactions and prepared ones. A lock is held until the transaction's commit is visible to every new snapshot."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from twofold.errors import RunEnded
from twofold.source.connection import Plain
from twofold.source.trouble import words_of

FIXED = {15: 13, 16: 9, 17: 5}
"""From this minor version on a change of a publication reaches transactions that were in progress; later majors were made with it."""

# A prepared transaction keeps the name of the virtual transaction that it was; its own xid, which it holds a lock on, tells which one it is.
_HOLDERS = """
SELECT DISTINCT ON (l.virtualtransaction, l.pid) l.virtualtransaction AS virtual, l.pid,
       p.transaction::text::bigint AS xid, p.gid,
       coalesce(p.owner, a.usename)::text AS owner,
       extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start))::float8 AS age_s
  FROM pg_catalog.pg_locks l
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_catalog.pg_locks own
         ON l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid' AND own.granted AND own.virtualtransaction = l.virtualtransaction
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = own.transactionid
 WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   AND l.relation IN (
       SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %(schema)s AND c.relname = %(table)s
       UNION ALL
       SELECT t.relid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace,
              LATERAL pg_catalog.pg_partition_tree(c.oid) t
        WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind = 'p')
 ORDER BY l.virtualtransaction, l.pid, p.gid
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that may have written to the table."""

    virtual: str
    """Its name while it lives."""
    pid: int | None
    xid: int | None
    """Of a prepared one."""
    gid: str | None
    owner: str | None
    age_s: float | None

    @property
    def name(self) -> tuple[str, int | None]:
        return self.virtual, self.pid

    def __str__(self) -> str:
        who = f"prepared transaction {self.gid!r}" if self.gid is not None else f"process {self.pid}"
        return f"{who} (owner {self.owner}, {self.age_s or 0:.0f} s old)"


def writers(connection: Plain, schema: str, table: str) -> tuple[Holder, ...]:
    """Now."""
    cursor = connection.cursor(row_factory=class_row(Holder))
    return tuple(cursor.execute(_HOLDERS, {"schema": schema, "table": table}).fetchall())


def needs_slot(connection: Plain) -> bool:
    """Whether this server streams of a transaction that was in progress when the table joined the publication not even what it writes afterwards: then locks do not tell, and all must end."""
    major, minor = divmod(connection.info.server_version, 10000)
    return minor < FIXED.get(major, 0)


def wait_for_all(connection: Plain, name: str) -> None:
    """Return when every transaction that runs now has ended: making a slot waits for them. It is temporary, and gone when this returns."""
    try:
        connection.execute(
            sql.SQL("SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput', true)").format(
                sql.Literal(name)
            )
        )
        connection.execute(sql.SQL("SELECT pg_catalog.pg_drop_replication_slot({})").format(sql.Literal(name)))
    except psycopg.Error as error:
        raise RunEnded(f"the barrier of a backfill: {words_of(error)}") from error
