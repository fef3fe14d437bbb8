"""Reads the server's identity and state: system, timelines, slots, prepared transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from twofold.errors import SetupError, Unreachable
from twofold.source.connection import PlainConnection, connect
from twofold.source.diagnosis import conflict_reason, error_text
from twofold.source.primary import connect_to_primary, is_standby
from twofold_common.positions import NO_LSN, Lsn, parse_lsn


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The answer to IDENTIFY_SYSTEM, with database and version."""

    system_identifier: str
    timeline: int
    xlogpos: Lsn
    database: str
    version_num: int
    is_standby: bool = False


@dataclass(frozen=True, slots=True)
class TimelineSwitch:
    """The end of `timeline` at `ends_at`; later positions belong to another history."""

    timeline: int
    ends_at: Lsn
    reason: str


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of pg_replication_slots. Columns that the server's version lacks are None."""

    name: str
    database: str | None
    plugin: str | None
    confirmed_flush: Lsn
    restart: Lsn
    active_pid: int | None
    two_phase: bool
    wal_status: str | None
    invalidation_reason: str | None
    failover: bool | None

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost" or self.invalidation_reason is not None


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A row of pg_prepared_xacts, of any database of the server."""

    xid: int
    gid: str
    owner: str
    database: str
    prepared_at: float
    age_s: float
    """The transaction's age, by the server's clock."""


class SourceFacts(NamedTuple):
    """The facts of the source that recovery compares."""

    slot: SlotState
    server: ServerIdentity
    history: tuple[TimelineSwitch, ...]
    """The switches of timelines that led to the server's present one."""


def read_facts(conninfo: str, slot: str) -> SourceFacts:
    """Read the source's facts. The slot must exist."""
    state = slot_state(conninfo, slot)
    if state is None:  # dropped within this moment: the next try finds out what that means
        raise Unreachable(f"PostgreSQL does not know slot {slot} any more")
    with connect(conninfo, replication=True) as connection:
        server = identify_by(connection)
        return SourceFacts(state, server, timeline_history(connection, server.timeline))


def identify(conninfo: str) -> ServerIdentity:
    """Run IDENTIFY_SYSTEM, which needs the right to replicate, as the stream does."""
    with connect(conninfo, replication=True) as connection:
        return identify_by(connection)


def identify_by(connection: PlainConnection) -> ServerIdentity:
    """Return the same as `identify`, over an open connection."""
    row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    if row is None:
        raise Unreachable("PostgreSQL did not answer IDENTIFY_SYSTEM")
    system_identifier, timeline, xlogpos, database = row
    return ServerIdentity(
        system_identifier,
        int(timeline),
        parse_lsn(xlogpos),
        database,
        connection.info.server_version,
        is_standby(connection),
    )


def timeline_history(connection: PlainConnection, timeline: int) -> tuple[TimelineSwitch, ...]:
    """Return the ancestors of `timeline`, oldest first, with their ends. Timeline 1 has none."""
    if timeline == 1:
        return ()
    try:
        row = connection.execute(sql.SQL("TIMELINE_HISTORY {}").format(sql.SQL(str(timeline)))).fetchone()
    except psycopg.Error as error:
        raise SetupError(
            f"PostgreSQL cannot show the history of timeline {timeline}: {error_text(error)}; "
            f"remedy: copy {timeline:08X}.history from the WAL archive into pg_wal"
        ) from error
    return parse_history(bytes(row[1]).decode() if row and isinstance(row[1], bytes) else str(row[1]) if row else "")


def parse_history(content: str) -> tuple[TimelineSwitch, ...]:
    """Parse a timeline history file.

    A line has timeline, position and reason, separated by white space; `#` starts a comment.
    """
    switches = []
    for line in content.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        timeline, position, *reason = line.split(maxsplit=2)
        switches.append(TimelineSwitch(int(timeline), parse_lsn(position), reason[0] if reason else ""))
    return tuple(switches)


def slot_state(conninfo: str, slot: str) -> SlotState | None:
    """Read a slot's state; None if there is no such slot."""
    with connect(conninfo) as connection:
        row = connection.execute(
            "SELECT to_jsonb(s) FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s", (slot,)
        )
        state = row.fetchone()
    if state is None:
        return None
    # One row as JSON: a column that this version lacks is simply absent.
    columns = state[0]
    return SlotState(
        name=columns["slot_name"],
        database=columns["database"],
        plugin=columns["plugin"],
        confirmed_flush=_lsn(columns["confirmed_flush_lsn"]) or NO_LSN,
        restart=_lsn(columns["restart_lsn"]) or NO_LSN,
        active_pid=columns["active_pid"],
        two_phase=columns["two_phase"],
        wal_status=columns["wal_status"],
        invalidation_reason=columns.get("invalidation_reason") or conflict_reason(columns.get("conflicting")),
        failover=columns.get("failover"),
    )


def _lsn(text: str | None) -> Lsn | None:
    return parse_lsn(text) if text else None


def prepared_transactions(conninfo: str, *, all_databases: bool = True) -> tuple[PreparedTransaction, ...]:
    """Return the prepared transactions, oldest first, as the primary lists them.

    A slot's stream sends only the transactions of its own database; creating a slot waits for all.
    """
    with connect_to_primary(conninfo) as connection:
        return list_prepared(connection, all_databases=all_databases)


def list_prepared(
    connection: PlainConnection, *, all_databases: bool = False, at_most: int | None = None
) -> tuple[PreparedTransaction, ...]:
    """Return the prepared transactions that this server lists, oldest first."""
    cursor = connection.cursor(row_factory=class_row(PreparedTransaction))
    cursor.execute(
        """
        SELECT p.transaction::text::bigint AS xid, p.gid, p.owner::text, p.database::text,
               extract(epoch FROM p.prepared)::float8 AS prepared_at,
               extract(epoch FROM pg_catalog.clock_timestamp() - p.prepared)::float8 AS age_s
          FROM pg_catalog.pg_prepared_xacts p
         WHERE %s OR p.database = pg_catalog.current_database()
         ORDER BY p.prepared, p.gid LIMIT %s
        """,
        (all_databases, at_most),
    )
    return tuple(cursor.fetchall())
