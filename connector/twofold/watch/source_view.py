"""Ask PostgreSQL for its WAL's end, the slots that hold WAL, and what is prepared."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.source.connection import PlainConnection
from twofold.source.identity import PreparedTransaction, list_prepared
from twofold_common.positions import Lsn

_WAL = """
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END - '0/0')::bigint,
       split_part(pg_catalog.current_setting('server_version'), ' ', 1)
"""
_HOLDERS = """
SELECT s.slot_name::text, s.active_pid, s.wal_status, s.safe_wal_size,
       (%(wal)s - (s.restart_lsn - '0/0'))::bigint, (s.confirmed_flush_lsn - '0/0')::bigint
  FROM pg_catalog.pg_replication_slots s
 WHERE s.restart_lsn IS NOT NULL
 ORDER BY s.restart_lsn LIMIT 20
"""
PREPARED_MAX = 200


@dataclass(frozen=True, slots=True)
class Holder:
    """A replication slot, and the WAL that stays on the server's disk for it."""

    slot: str
    active_pid: int | None
    wal_status: str | None
    safe_bytes: int | None
    """How much more may be written before the slot is lost; None: without limit."""
    held_bytes: int
    confirmed_lsn: Lsn | None


@dataclass(frozen=True, slots=True)
class SourceView:
    """PostgreSQL's side at one moment."""

    wal_lsn: Lsn
    version: str
    holders: tuple[Holder, ...]
    prepared: tuple[PreparedTransaction, ...]
    """The oldest of them."""


def read_source(connection: PlainConnection) -> SourceView:
    """Run three small queries on the server's views."""
    row = connection.execute(_WAL).fetchone()
    assert row is not None
    wal, version = row
    holders = connection.execute(_HOLDERS, {"wal": wal}).fetchall()
    return SourceView(
        Lsn(wal),
        version,
        tuple(
            Holder(slot, pid, status, safe, held, None if confirmed is None else Lsn(confirmed))
            for slot, pid, status, safe, held, confirmed in holders
        ),
        list_prepared(connection, at_most=PREPARED_MAX),
    )
