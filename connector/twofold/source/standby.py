"""Checks what a physical standby lacks as the source, and names each remedy.

Reads only. docs/inside/standby.md says what was tried. `init` stops at a flaw that makes the slot
useless, `run` at a flaw that no standby can repair; `doctor` shows all flaws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from twofold.conninfo import primary_of
from twofold.errors import SetupError, TwofoldError
from twofold.source.connection import PlainConnection
from twofold.source.primary import connect_to_primary, is_standby
from twofold.source.service import Service, ask
from twofold_common.table_names import sql_identifier

FIRST_VERSION = 16
_SETTINGS = "SELECT current_setting('hot_standby_feedback'), current_setting('primary_slot_name')"
WAL_LEVEL = "SELECT current_setting('wal_level'), current_setting('effective_wal_level', true)"
"""The second is null before PostgreSQL 19."""
_MAY_LOG = "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_log_standby_snapshot()', 'EXECUTE')"
_SET_PRIMARY = "set source.primary_dsn to the connection string of the primary"


@dataclass(frozen=True, slots=True)
class SourceUse:
    """The parts of the configuration that a standby may not support."""

    failover: bool = False
    synchronous: bool = False
    loads: bool = False
    in_group: bool = False


class Stops(Enum):
    """The commands that stop at a flaw."""

    RUN = "run"
    """`run` and `init`."""
    INIT = "init"
    NOTHING = ""


@dataclass(frozen=True, slots=True)
class StandbyFlaw:
    """Something that the standby, its settings or its primary lack."""

    check: str
    stops: Stops
    what: str
    why: str
    remedy: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; remedy: {' '.join(self.remedy)}"


def require_for_run(conninfo: str, connection: PlainConnection, use: SourceUse) -> None:
    """Raise SetupError if the configuration asks for more than a standby can give."""
    if is_standby(connection) and (flaws := list(_never(conninfo, connection, use))):
        raise SetupError("\n".join(map(str, flaws)))


def examine(
    conninfo: str, connection: PlainConnection, use: SourceUse, *, slot_exists: bool = True
) -> Iterator[StandbyFlaw]:
    """Yield the flaws; none if the server is no standby."""
    if not is_standby(connection):
        return
    service = ask(connection)
    yield from _never(conninfo, connection, use)
    # A slot that exists is kept, and its connector started, whatever the primary does now.
    stops = Stops.NOTHING if slot_exists else Stops.INIT
    yield from _settings(connection, service, stops)
    if not slot_exists:
        yield from _before_the_slot(conninfo, use)
    if primary_of(conninfo) is None:
        yield from _followed_wal_level(connection, service, stops)
    else:
        yield from _primary(conninfo, service, stops)


def _never(conninfo: str, connection: PlainConnection, use: SourceUse) -> Iterator[StandbyFlaw]:
    """Yield the flaws that no setting of the server repairs."""
    major = connection.info.server_version // 10_000
    if major < FIRST_VERSION:
        yield StandbyFlaw(
            "standby_version",
            Stops.RUN,
            f"the server is a standby with PostgreSQL {major}",
            f"a standby decodes from {FIRST_VERSION} on",
            ("point source.dsn to the primary, or upgrade",),
        )
    if use.synchronous:
        yield StandbyFlaw(
            "standby_synchronous",
            Stops.RUN,
            "prepared.synchronous is on, and the server is a standby",
            "a PREPARE waits only for those who follow the primary itself",
            ("prepared.synchronous = false, or point source.dsn to the primary",),
        )
    if use.in_group and primary_of(conninfo) is None:
        yield StandbyFlaw(
            "standby_group",
            Stops.RUN,
            "the connector is in a source group, the server is a standby, and source.primary_dsn is not set",
            "only the primary lists the prepared transactions that a frontier must name",
            (_SET_PRIMARY,),
        )


def _settings(connection: PlainConnection, service: Service, stops: Stops) -> Iterator[StandbyFlaw]:
    row = connection.execute(_SETTINGS).fetchone()
    assert row is not None
    feedback, slot_name = row
    if feedback != "on":
        yield StandbyFlaw(
            "hot_standby_feedback",
            stops,
            "hot_standby_feedback is off on the standby",
            "the primary removes rows of the catalog that decoding needs, and the slot is lost: all tables must be loaded again",
            _set(service, "hot_standby_feedback", "on"),
        )
    if not slot_name:
        yield StandbyFlaw(
            "standby_slot",
            Stops.NOTHING,
            "the standby uses no physical slot on its primary (primary_slot_name is empty)",
            "while it is disconnected, the primary does not keep what decoding needs, and the slot is lost",
            (
                *((f"-- see {service.page}, or",) if service.is_managed else ()),
                "SELECT pg_create_physical_replication_slot('twofold_standby', true); -- on the primary",
                "ALTER SYSTEM SET primary_slot_name = 'twofold_standby'; -- on the standby",
                "SELECT pg_reload_conf(); -- on the standby",
            ),
        )


def _set(service: Service, setting: str, value: str) -> tuple[str, ...]:
    if service.is_managed:
        return (f"-- {service.set(setting, value, restart=False)}",)
    return (f"ALTER SYSTEM SET {setting} = {value};", "SELECT pg_reload_conf();")


def _before_the_slot(conninfo: str, use: SourceUse) -> Iterator[StandbyFlaw]:
    if use.failover:
        yield StandbyFlaw(
            "standby_failover",
            Stops.INIT,
            "source.failover is on, and the server is a standby",
            "a failover slot is created on the primary alone; a standby keeps its own slots when it is promoted",
            ("source.failover = false",),
        )
    if use.loads and primary_of(conninfo) is None:
        yield StandbyFlaw(
            "standby_loads",
            Stops.INIT,
            "source.backfill is on, the server is a standby, and source.primary_dsn is not set",
            "loads read the primary: a standby shows neither who writes to a table nor which transactions its snapshots see",
            (f"{_SET_PRIMARY}, or source.backfill = false",),
        )


def _primary(conninfo: str, service: Service, stops: Stops) -> Iterator[StandbyFlaw]:
    """Yield the flaws of the primary, which is known."""
    try:
        with connect_to_primary(conninfo) as primary:
            wal_level = primary.execute(WAL_LEVEL).fetchone()
            may_log = primary.execute(_MAY_LOG).fetchone()
            role = sql_identifier(primary.info.user)
    except TwofoldError as error:
        what, _, remedy = str(error).partition("; remedy: ")
        yield StandbyFlaw(
            "standby_primary",
            stops,
            what,
            "the publication, loads, frontiers and the list of what is prepared need the primary",
            (remedy or "correct source.primary_dsn",),
        )
        return
    assert wal_level is not None
    level, effective = wal_level
    yield from _wal_level(level, effective, service, stops)
    if may_log != (True,) and stops is Stops.INIT:
        yield StandbyFlaw(
            "standby_snapshot",
            Stops.NOTHING,
            f"role {role} may not call pg_log_standby_snapshot() on the primary",
            "twofold init waits until the primary logs its running transactions by itself, every 15 s while it writes",
            (f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_log_standby_snapshot() TO {role};",),
        )


def _wal_level(wal_level: str, effective: str | None, service: Service, stops: Stops) -> Iterator[StandbyFlaw]:
    """Yield what is wrong with the primary's level; `effective` is None before PostgreSQL 19."""
    remedy = (f"-- {service.set('wal_level', 'logical', restart=True)}, on the primary",)
    if (effective or wal_level) != "logical":
        yield StandbyFlaw(
            "standby_wal_level",
            stops,
            "wal_level of the primary is not logical",
            "its WAL does not hold what decoding needs",
            remedy,
        )
    elif wal_level != "logical":
        yield StandbyFlaw(
            "standby_wal_level",
            Stops.NOTHING,
            f"wal_level of the primary is {wal_level}, and holds what decoding needs only while the primary has a logical slot",
            "when the last of those slots is dropped or invalidated, the slot on the standby is lost: all tables must be loaded again",
            remedy,
        )


def _followed_wal_level(connection: PlainConnection, service: Service, stops: Stops) -> Iterator[StandbyFlaw]:
    """Yield what is wrong with the level of a primary that cannot be asked.

    From PostgreSQL 19 on, a standby's effective_wal_level is that of its primary.
    """
    row = connection.execute(WAL_LEVEL).fetchone()
    assert row is not None
    if row[1] is not None:
        yield from _wal_level("logical", row[1], service, stops)
