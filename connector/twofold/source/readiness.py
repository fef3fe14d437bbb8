"""Checks whether a source is ready for Twofold, and names the remedy if it is not.

Reads only. `init` stops at required repairs before it creates a slot; `init` and `run` pass the
advice on.
"""

from __future__ import annotations

from dataclasses import dataclass

from twofold.errors import RESET_REPAIR, SetupError
from twofold.source import standby
from twofold.source.connection import PAST_THE_POOLER, SETTINGS, PlainConnection, connect
from twofold.source.diagnosis import AS_UTF8, lost_slot, missing_publication, slot_holder
from twofold.source.identity import SlotState, slot_state
from twofold.source.published_tables import publication_exists
from twofold.source.service import MAY_REPLICATE, Service, ask
from twofold.source.standby import WAL_LEVEL, SourceUse, Stops
from twofold_common.table_names import sql_identifier

MINIMUM_MINORS = {15: 19, 16: 15, 17: 11, 18: 6}
"""The first minor version in which two-phase decoding has no known bug."""
NEWEST_TRIED = max(MINIMUM_MINORS)
"""The newest major version that the tests run on."""

NO_ENCODING = "PostgreSQL does not know what the bytes of its text mean, and cannot send them as UTF-8"

POOLER = "a connection pooler is in between, and keeps settings of the session from PostgreSQL"

ROOM = 10
"""How many slots or WAL senders a remedy adds."""

_SETTINGS = f"""
SELECT current_setting('server_version_num')::int, current_setting('max_prepared_transactions')::int,
       current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_catalog.pg_replication_slots),
       current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_catalog.pg_stat_replication),
       current_setting('server_encoding'), current_user::text, ({MAY_REPLICATE})
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class ReadinessFinding:
    """A problem of the source, with its remedy. With `must`, nothing works before the repair."""

    what: str
    remedy: str
    must: bool = True

    def __str__(self) -> str:
        return f"{self.what}; remedy: {self.remedy}"


def require(
    conninfo: str,
    *,
    slot: str,
    publication: str | None = None,
    two_phase: bool,
    use: SourceUse = SourceUse(),  # noqa: B008  (frozen)
) -> tuple[ReadinessFinding, ...]:
    """Raise SetupError with all required repairs; otherwise return the advice.

    Refused: the slot exists, and nothing can close the gap in its stream.
    """
    if (state := slot_state(conninfo, slot)) is not None:
        _refuse_a_gap(conninfo, state, publication)
    return refuse(examine(conninfo, slot=slot, publication=publication, two_phase=two_phase, use=use))


def refuse(findings: tuple[ReadinessFinding, ...]) -> tuple[ReadinessFinding, ...]:
    """Raise SetupError with all required repairs; otherwise return the advice."""
    if must := [finding for finding in findings if finding.must]:
        raise SetupError("\n".join(map(str, must)))
    return findings


def _refuse_a_gap(conninfo: str, state: SlotState, publication: str | None) -> None:
    if state.lost:
        raise lost_slot(state.name, state.invalidation_reason)
    with connect(conninfo) as connection:
        if publication is not None and not publication_exists(connection, publication):
            raise missing_publication(f"{publication!r} does not exist in this database")


def examine(
    conninfo: str,
    *,
    slot: str,
    publication: str | None = None,
    two_phase: bool = True,
    use: SourceUse = SourceUse(),  # noqa: B008  (frozen)
) -> tuple[ReadinessFinding, ...]:
    """Return all problems.

    `publication`: the one that must exist; None if `twofold init` creates it.
    """
    state = slot_state(conninfo, slot)
    with connect(conninfo) as connection:
        service = ask(connection)
        findings = [*_server(connection, service, slot_exists=state is not None, two_phase=two_phase)]
        findings += [
            ReadinessFinding(f"{flaw.what}: {flaw.why}", " ".join(flaw.remedy), must=flaw.stops is not Stops.NOTHING)
            for flaw in standby.examine(conninfo, connection, use, slot_exists=state is not None)
        ]
        if publication is not None and not publication_exists(connection, publication):
            findings.append(lacks_publication(publication))
        database = connection.info.dbname
    if state is not None:
        findings += _slot(conninfo, state, database, two_phase=two_phase)
    return tuple(findings)


def _server(
    connection: PlainConnection, service: Service, *, slot_exists: bool, two_phase: bool
) -> list[ReadinessFinding]:
    row = connection.execute(_SETTINGS).fetchone()
    assert row is not None
    version, prepared_max, slots_max, slots, senders_max, senders, encoding, user, may_replicate = row
    findings = []
    if lost := unreached_settings(connection):
        findings.append(ReadinessFinding(f"{POOLER} ({', '.join(lost)})", PAST_THE_POOLER))
    if encoding == "SQL_ASCII":
        findings.append(ReadinessFinding(f"the database's encoding is SQL_ASCII: {NO_ENCODING}", AS_UTF8))
    findings += _wal_level(connection, service)
    if not may_replicate:
        role = sql_identifier(user)
        findings.append(ReadinessFinding(f"role {user} may not replicate", service.let_replicate(role)))
    if not slot_exists and slots >= slots_max:
        findings.append(
            ReadinessFinding(
                f"all {slots_max} replication slots are in use",
                f"drop an unused slot (see pg_replication_slots), or {service.set('max_replication_slots', slots_max + ROOM, restart=True)}",
            )
        )
    if senders >= senders_max:
        findings.append(
            ReadinessFinding(
                f"all {senders_max} WAL senders are in use",
                f"end a replication client (see pg_stat_replication), or {service.set('max_wal_senders', senders_max + ROOM, restart=True)}",
            )
        )
    if two_phase and prepared_max == 0:
        findings.append(
            ReadinessFinding(
                "max_prepared_transactions is 0: PREPARE TRANSACTION is refused",
                f"to use it, {service.set('max_prepared_transactions', 100, restart=True)}",
                must=False,
            )
        )
    return [*findings, *version_advice(version)]


def unreached_settings(connection: PlainConnection) -> tuple[str, ...]:
    """Return the session settings that the server did not get, because a pooler keeps them.

    Without them a copied value would have other bytes than a streamed one.
    """
    query = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name ORDER BY name"
    rows = connection.execute(query, (list(SETTINGS),)).fetchall()
    return tuple(name for name, now in rows if now.split(",")[0].lower() != SETTINGS[name].lower())


def _wal_level(connection: PlainConnection, service: Service) -> list[ReadinessFinding]:
    row = connection.execute(WAL_LEVEL).fetchone()
    assert row is not None
    if allows_decoding(*row):
        return []
    return [ReadinessFinding(f"wal_level is {row[0]}", service.set("wal_level", "logical", restart=True))]


def allows_decoding(wal_level: str, effective: str | None) -> bool:
    """Return whether a server with this wal_level can decode.

    `effective` is its effective_wal_level, None before PostgreSQL 19. From 19 on, a server with
    wal_level = replica writes what decoding needs while it has a logical slot, beginning with the
    first. A standby writes nothing, and its primary's level counts.
    """
    return wal_level == "logical" or (wal_level == "replica" and effective is not None)


def version_advice(version: int) -> tuple[ReadinessFinding, ...]:
    """Return the known bugs of this version, given as server_version_num, or that it is untried."""
    major, minor = divmod(version, 10000)
    if major > NEWEST_TRIED:
        problem = f"PostgreSQL {major} is newer than {NEWEST_TRIED}, the newest that Twofold was tried with"
        remedy = f"use PostgreSQL {NEWEST_TRIED}, or try a copy of the database first"
        return (ReadinessFinding(problem, remedy, must=False),)
    minimum = MINIMUM_MINORS.get(major, 0)
    if minor >= minimum:
        return ()
    problem = f"PostgreSQL {major}.{minor} has known bugs in two-phase decoding (outcomes without their prepare, or the reverse)"
    return (ReadinessFinding(problem, f"upgrade to {major}.{minimum} or later", must=False),)


def lacks_publication(name: str) -> ReadinessFinding:
    """Return the finding that this publication does not exist."""
    return ReadinessFinding(
        f"publication {name!r} does not exist in this database",
        f"correct source.publication, or list the tables in source.tables, or CREATE PUBLICATION {sql_identifier(name)} FOR TABLE ...",
    )


def _slot(conninfo: str, state: SlotState, database: str, *, two_phase: bool) -> list[ReadinessFinding]:
    findings = []
    if state.lost:
        why = f" ({state.invalidation_reason})" if state.invalidation_reason else ""
        findings.append(ReadinessFinding(f"slot {state.name!r} was invalidated{why}: its WAL is gone", RESET_REPAIR))
    if state.plugin != "pgoutput" or state.database != database:
        findings.append(
            ReadinessFinding(
                f"slot {state.name!r} is for {state.plugin or 'physical replication'} in database {state.database}",
                "give the connector another name or slot",
            )
        )
    elif state.two_phase != two_phase:
        findings.append(
            ReadinessFinding(
                f"slot {state.name!r} was created with two_phase {'on' if state.two_phase else 'off'}, which cannot be changed, but source.two_phase differs",
                f"change source.two_phase back, or start over: {RESET_REPAIR}",
            )
        )
    if state.active_pid is not None:
        pid, holder = slot_holder(conninfo, state.name)
        findings.append(
            ReadinessFinding(
                f"slot {state.name!r} is in use by process {pid} from {holder}",
                "none is needed if this is intended",
                must=False,
            )
        )
    return findings
