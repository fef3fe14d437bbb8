"""Names the transactions that hold a lock: possible writers of a table, and blockers of a session.

Such a transaction is plain or prepared. A lock is held until the transaction's commit is visible to
every new snapshot. Reads only, except for a barrier's temporary slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from twofold.errors import RunEnded, SetupError, Unreachable
from twofold.source.connection import PlainConnection, connect, to_database
from twofold.source.diagnosis import error_text

FIXED = {15: 13, 16: 9, 17: 5}
"""The first minor version in which a change of a publication reaches transactions in progress;
every later major version has it."""

# A prepared transaction keeps the name of its former virtual transaction. It holds a lock on its
# own xid, beside those of its savepoints: that xid identifies it.
_PREPARED = """(
       SELECT own.virtualtransaction, x.* FROM pg_catalog.pg_locks own JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = own.transactionid
        WHERE own.pid IS NULL AND own.locktype = 'transactionid' AND own.granted)"""
_HOLDERS = f"""
SELECT DISTINCT ON (l.virtualtransaction, l.pid) l.virtualtransaction AS virtual, l.pid,
       p.transaction::text::bigint AS xid, p.gid,
       coalesce(p.owner, a.usename)::text AS owner,
       extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start))::float8 AS age_s
  FROM pg_catalog.pg_locks l
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN {_PREPARED} p ON l.pid IS NULL AND p.virtualtransaction = l.virtualtransaction
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
"""  # noqa: S608  (built from constants)


_WRITTEN = """
WITH RECURSIVE held AS (
    SELECT DISTINCT l.relation AS oid FROM pg_catalog.pg_locks l
     WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
       AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
       AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
), above AS (
    SELECT oid FROM held
    UNION
    SELECT i.inhparent FROM above JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
)
SELECT n.nspname::text, c.relname::text
  FROM above JOIN pg_catalog.pg_class c ON c.oid = above.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""


@dataclass(frozen=True, slots=True)
class TableWriter:
    """A transaction that may have written to the table."""

    virtual: str
    pid: int | None
    xid: int | None
    """The xid of a prepared transaction; None of a plain one."""
    gid: str | None
    owner: str | None
    age_s: float | None

    @property
    def name(self) -> str:
        """Identify the transaction from its beginning to its outcome. PREPARE takes the
        transaction's process away, but not this name.
        """
        return self.virtual

    def __str__(self) -> str:
        holder = f"prepared transaction {self.gid!r}" if self.gid is not None else f"process {self.pid}"
        return f"{holder} (owner {self.owner}, {self.age_s or 0:.0f} s old)"


def writers(connection: PlainConnection, schema: str, table: str) -> tuple[TableWriter, ...]:
    """Return the transactions that may be writing to the table now."""
    cursor = connection.cursor(row_factory=class_row(TableWriter))
    return tuple(cursor.execute(_HOLDERS, {"schema": schema, "table": table}).fetchall())


def written_tables(connection: PlainConnection) -> set[tuple[str, str]]:
    """Return schema and name of every table for which `writers` would name a transaction."""
    return set(connection.execute(_WRITTEN).fetchall())


def wait_for_all(connection: PlainConnection) -> bool:
    """Wait for every running transaction, where locks do not suffice; else return False at once.

    They do not suffice where the server does not stream everything of a transaction that was in
    progress when the table joined the publication: even its later writes are missing there.
    """
    major, minor = divmod(connection.info.server_version, 10000)
    if minor >= FIXED.get(major, 0):
        return False
    name = sql.Literal(f"twofold_barrier_{connection.info.backend_pid}")
    create = "SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput', true)"
    try:
        connection.execute(sql.SQL(create).format(name))  # which waits; the slot is temporary
        connection.execute(sql.SQL("SELECT pg_catalog.pg_drop_replication_slot({})").format(name))
    except psycopg.Error as error:
        raise RunEnded(f"the barrier of a backfill failed: {error_text(error)}") from error
    return True


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that blocks another one: prepared (`gid`), or of a process (`pid`)."""

    gid: str | None
    pid: int | None
    database: str | None
    owner: str | None
    age: timedelta | None
    lock: str
    """The contested lock."""

    def __str__(self) -> str:
        holder = f"prepared transaction {self.gid!r}" if self.gid is not None else f"process {self.pid}"
        age = "" if self.age is None else f", {self.age.total_seconds():.0f} s old"
        return f"{holder} (database {self.database}, owner {self.owner}{age}) holds {self.lock}"


_BLOCKERS = f"""
SELECT DISTINCT
       p.gid,
       CASE WHEN p.gid IS NULL THEN held.pid END AS pid,
       coalesce(p.database, a.datname)::text AS database,
       coalesce(p.owner, a.usename)::text AS owner,
       statement_timestamp() - coalesce(p.prepared, a.xact_start) AS age,
       held.mode || ' on ' || CASE held.locktype
           WHEN 'transactionid' THEN 'transaction ' || held.transactionid
           WHEN 'virtualxid' THEN 'transaction ' || held.virtualxid
           WHEN 'relation' THEN 'table ' || coalesce(c.relname::text, held.relation::text)
           ELSE held.locktype END AS lock
  FROM pg_catalog.pg_locks asked
  JOIN pg_catalog.pg_locks held ON held.granted
       AND (held.locktype, held.database, held.relation, held.page, held.tuple, held.virtualxid, held.transactionid,
            held.classid, held.objid, held.objsubid)
           IS NOT DISTINCT FROM
           (asked.locktype, asked.database, asked.relation, asked.page, asked.tuple, asked.virtualxid,
            asked.transactionid, asked.classid, asked.objid, asked.objsubid)
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = held.pid
  LEFT JOIN {_PREPARED} p ON held.pid IS NULL AND p.virtualtransaction = held.virtualtransaction
  LEFT JOIN pg_catalog.pg_class c ON c.oid = held.relation
 WHERE NOT asked.granted AND asked.pid = ANY (%s) AND held.pid IS DISTINCT FROM asked.pid
"""  # noqa: S608  (the same)


def blockers(connection: PlainConnection, pids: Sequence[int]) -> tuple[Blocker, ...]:
    """Return the transactions that block these processes now, according to pg_locks.

    Prepared transactions, which pg_blocking_pids calls 0, are included. A transaction that blocks
    several processes is listed once.
    """
    cursor = connection.cursor(row_factory=class_row(Blocker))
    return tuple(cursor.execute(_BLOCKERS, (list(pids),)).fetchall())


_OWN_SESSIONS = """
SELECT pid FROM pg_catalog.pg_stat_activity
 WHERE application_name = %(name)s OR datname = current_database() AND application_name LIKE 'twofold%%'
 UNION
SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = %(slot)s AND active_pid IS NOT NULL
"""
_BLOCKED_SESSIONS = """
SELECT pid FROM pg_catalog.pg_locks WHERE NOT granted AND pid IS NOT NULL AND locktype = 'relation' AND relation < 16384
"""
_CONNECT_TIMEOUT_S = 3


def connector_blockers(conninfo: str, *, slot: str, application_name: str) -> tuple[Blocker, ...]:
    """Return the transactions that block the connector now:

    its slot's session and its reading sessions.
    """
    with connect(conninfo) as connection:
        rows = connection.execute(_OWN_SESSIONS, {"name": application_name, "slot": slot}).fetchall()
        return blockers(connection, [pid for (pid,) in rows])


def new_session_blockers(conninfo: str) -> tuple[Blocker, ...]:
    """Return the holders of a catalog that every new session of this database must read.

    The question goes to another database; the result is empty if that one cannot be reached either.
    """
    other = "template1" if psycopg.conninfo.conninfo_to_dict(conninfo).get("dbname") == "postgres" else "postgres"
    try:
        connection = connect(to_database(conninfo, dbname=other, connect_timeout=str(_CONNECT_TIMEOUT_S)))
    except (Unreachable, SetupError):
        return ()  # the caller's error then has no explanation
    with connection:
        return blockers(connection, [pid for (pid,) in connection.execute(_BLOCKED_SESSIONS).fetchall()])
