"""PostgreSQL: the server's settings, the role, the slot. What is published is looked at in `tables`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql

from twofold.config import Config
from twofold.errors import Unreachable
from twofold.ops.doctor.finding import Finding, Weight
from twofold.ops.doctor.tables import published
from twofold.source import identity
from twofold.source.connection import Plain, connect
from twofold.source.ground import FLOORS

_SETTINGS = """
SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY (%s)
"""
_NAMES = [
    "wal_level",
    "max_prepared_transactions",
    "max_replication_slots",
    "max_wal_senders",
    "wal_sender_timeout",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "synchronous_standby_names",
    "synchronized_standby_slots",
    "server_version_num",
]
KEEPALIVE_MS_MIN = 10_000
IDLE_HELD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Source:
    """What the checks look at."""

    config: Config
    connection: Plain
    settings: dict[str, str]
    slot: identity.SlotState | None

    def number(self, setting: str) -> int:
        return int(self.settings[setting])

    def ask(self, query: str, *values: object) -> list[tuple[object, ...]]:
        return self.connection.execute(query, values or None).fetchall()


def examine(config: Config) -> Iterator[Finding]:
    """All checks, in one session."""
    with connect(config.conninfo) as connection:
        source = Source(
            config,
            connection,
            dict(connection.execute(_SETTINGS, (_NAMES,)).fetchall()),
            identity.slot_state(config.conninfo, config.slot),
        )
        try:
            for check in _CHECKS:
                yield from check(source)
            yield from published(config, connection)
        except psycopg.OperationalError as error:
            raise Unreachable(f"PostgreSQL went away while it was looked at: {error}") from error


def _finding(check: str, weight: Weight, what: str, why: str, *mend: str) -> Finding:
    return Finding("postgresql", check, weight, what, why, mend)


def _set(name: str, value: str, *, restart: bool) -> tuple[str, str]:
    return (
        f"ALTER SYSTEM SET {name} = {value};",
        "-- and restart PostgreSQL" if restart else "SELECT pg_reload_conf();",
    )


def _is_primary(source: Source) -> Iterator[Finding]:
    if source.ask("SELECT pg_catalog.pg_is_in_recovery()") == [(True,)]:
        yield _finding(
            "standby",
            Weight.SHOULD,
            "the server is a standby",
            "prepared transactions are decoded at PREPARE on the primary alone; a publication and a failover slot are made there",
            "point source.dsn to the primary (several hosts and target_session_attrs=read-write find it)",
        )


def _version(source: Source) -> Iterator[Finding]:
    major, minor = divmod(source.number("server_version_num"), 10_000)
    floor = FLOORS.get(major, 0)
    if minor < floor:
        yield _finding(
            "version",
            Weight.NOTE,
            f"PostgreSQL {major}.{minor} has known bugs in two-phase decoding",
            "the outcome of an empty prepared transaction may come without its PREPARE, or the reverse; Twofold copes, others may not",
            f"upgrade to {major}.{floor} or later",
        )


def _wal_level(source: Source) -> Iterator[Finding]:
    if source.settings["wal_level"] != "logical":
        yield _finding(
            "wal_level",
            Weight.MUST,
            f"wal_level is {source.settings['wal_level']}",
            "the WAL does not hold what decoding needs; no logical slot can be made",
            *_set("wal_level", "'logical'", restart=True),
        )


def _role(source: Source) -> Iterator[Finding]:
    rows = source.ask(
        "SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = current_user AND NOT rolreplication AND NOT rolsuper"
    )
    for (name,) in rows:
        yield _finding(
            "role",
            Weight.MUST,
            f"role {name} may not replicate",
            "PostgreSQL refuses the stream",
            f"ALTER ROLE {_quoted(source, str(name))} REPLICATION;",
        )


def _prepared_max(source: Source) -> Iterator[Finding]:
    if source.config.source.two_phase and source.number("max_prepared_transactions") == 0:
        yield _finding(
            "max_prepared_transactions",
            Weight.NOTE,
            "max_prepared_transactions is 0",
            "PREPARE TRANSACTION is refused: there will be nothing two-phase to carry",
            *_set("max_prepared_transactions", "100", restart=True),
        )


def _room(source: Source) -> Iterator[Finding]:
    slots, slots_max = (
        source.ask("SELECT count(*) FROM pg_catalog.pg_replication_slots")[0][0],
        source.number("max_replication_slots"),
    )
    if source.slot is None and isinstance(slots, int) and slots >= slots_max:
        yield _finding(
            "max_replication_slots",
            Weight.MUST,
            f"all {slots_max} replication slots are taken",
            "twofold init cannot make its own; a slot that nobody reads also holds WAL and dead rows",
            *_set("max_replication_slots", str(slots_max + 10), restart=True),
        )
    senders, senders_max = (
        source.ask("SELECT count(*) FROM pg_catalog.pg_stat_replication")[0][0],
        source.number("max_wal_senders"),
    )
    held = source.slot is not None and source.slot.active_pid is not None
    if not held and isinstance(senders, int) and senders >= senders_max:
        yield _finding(
            "max_wal_senders",
            Weight.MUST,
            f"all {senders_max} WAL senders are in use",
            "the stream cannot start",
            *_set("max_wal_senders", str(senders_max + 10), restart=True),
        )


def _sender_timeout(source: Source) -> Iterator[Finding]:
    timeout_ms = source.number("wal_sender_timeout")
    if timeout_ms == 0 or timeout_ms < KEEPALIVE_MS_MIN:
        why = (
            "a connector whose machine vanished holds the slot for ever, and its standby waits as long"
            if timeout_ms == 0
            else "a pause of the connector's machine that is longer ends the stream, and recovery starts over"
        )
        yield _finding(
            "wal_sender_timeout",
            Weight.SHOULD,
            f"wal_sender_timeout is {timeout_ms} ms",
            why,
            *_set("wal_sender_timeout", "'60s'", restart=False),
        )


def _wal_keep(source: Source) -> Iterator[Finding]:
    keep_mb = source.number("max_slot_wal_keep_size")
    if keep_mb < 0:
        return
    open_now = source.ask("SELECT count(*) FROM pg_catalog.pg_prepared_xacts")[0][0]
    yield _finding(
        "max_slot_wal_keep_size",
        Weight.SHOULD,
        f"max_slot_wal_keep_size is {keep_mb} MB, and {open_now} transactions are prepared now",
        "a prepared transaction holds WAL until its outcome, however well the connector keeps up: past this size the slot is invalidated and the tables must be loaded anew",
        *_set("max_slot_wal_keep_size", "-1", restart=False),
    )


def _idle_timeout(source: Source) -> Iterator[Finding]:
    if source.settings.get("idle_replication_slot_timeout", "0") not in {"0", ""}:
        yield _finding(
            "idle_replication_slot_timeout",
            Weight.SHOULD,
            f"idle_replication_slot_timeout is {source.settings['idle_replication_slot_timeout']} s",
            "a connector that is stopped for longer loses its slot, and the tables must be loaded anew",
            *_set("idle_replication_slot_timeout", "0", restart=False),
        )


def _synchronous(source: Source) -> Iterator[Finding]:
    names, name = source.settings["synchronous_standby_names"], source.config.name
    named = name in names.replace('"', " ").replace(",", " ").replace("(", " ").replace(")", " ").split()
    if named and source.slot is None:
        yield _finding(
            "synchronous_deadlock",
            Weight.MUST,
            f"synchronous_standby_names names {name}, and its slot does not exist",
            "every commit waits for a connector that cannot start, the one that makes its slot included",
            "ALTER SYSTEM RESET synchronous_standby_names;",
            "SELECT pg_reload_conf();",
            "-- then twofold init and twofold run, and only then name it again",
        )
    if source.config.prepared.synchronous and not named:
        yield _finding(
            "synchronous",
            Weight.SHOULD,
            f"prepared.synchronous is on, and synchronous_standby_names does not name {name}",
            "PREPARE TRANSACTION returns without waiting for Kafka",
            *_set("synchronous_standby_names", f"'{name}'", restart=False),
        )


def _slot(source: Source) -> Iterator[Finding]:
    slot, config = source.slot, source.config
    if slot is None:
        yield _finding(
            "slot",
            Weight.NOTE,
            f"slot {config.slot} does not exist",
            "nothing is carried before it does",
            "twofold init",
        )
        return
    if slot.lost:
        yield _finding(
            "slot_lost",
            Weight.MUST,
            f"slot {slot.name} was invalidated ({slot.invalidation_reason or 'its WAL was removed'})",
            "the changes since its last confirmed position can no longer be streamed",
            "twofold reset",
            "twofold init",
        )
    if slot.plugin != "pgoutput" or slot.database != source.connection.info.dbname:
        yield _finding(
            "slot_foreign",
            Weight.MUST,
            f"slot {slot.name} is for {slot.plugin or 'physical replication'} in database {slot.database or '(none)'}",
            "slots have one namespace in the whole server, and this one is another program's",
            f'source.slot = "{slot.name}_twofold"',
        )
    elif slot.two_phase != config.source.two_phase:
        made = str(slot.two_phase).lower()
        yield _finding(
            "slot_two_phase",
            Weight.MUST,
            f"slot {slot.name} was made with two_phase {made}, the configuration says otherwise",
            "it is fixed when a slot is made, and twofold run refuses",
            f"source.two_phase = {made}",
        )


def _slot_idle(source: Source) -> Iterator[Finding]:
    slot = source.slot
    if (
        slot is None
        or slot.active_pid is not None
        or slot.lost
        or source.ask("SELECT pg_catalog.pg_is_in_recovery()") == [(True,)]
    ):
        return
    held = source.ask(
        "SELECT pg_catalog.pg_current_wal_lsn() - %s::pg_catalog.pg_lsn",
        f"{slot.restart >> 32:X}/{slot.restart & 0xFFFFFFFF:X}",
    )[0][0]
    heavy = int(str(held)) > IDLE_HELD_BYTES
    yield _finding(
        "slot_idle",
        Weight.SHOULD if heavy else Weight.NOTE,
        f"nobody reads slot {slot.name}; it holds {int(str(held)) / 1048576:.0f} MiB of WAL",
        "the WAL stays on the server's disk until a connector reads it",
        "twofold run",
    )


def _in_doubt(source: Source) -> Iterator[Finding]:
    limit_s = source.config.prepared.doubt_warning
    for prepared in identity.prepared_transactions(source.config.conninfo, all_databases=source.slot is None):
        gid = prepared.gid.replace("'", "''")
        outcome = (
            f"COMMIT PREPARED '{gid}';",
            f"ROLLBACK PREPARED '{gid}';",
            f"-- one of the two, in database {prepared.database}, as its coordinator decides",
        )
        age = f"prepared transaction {prepared.gid} of {prepared.owner} (database {prepared.database}) is {prepared.age.total_seconds():.0f} s old"
        if source.slot is None:
            yield _finding(
                "init_waits",
                Weight.SHOULD,
                age,
                "twofold init waits for it: a slot is made when all older transactions have ended, in every database",
                *outcome,
            )
        elif prepared.age.total_seconds() > limit_s:
            yield _finding(
                "in_doubt", Weight.SHOULD, age, "it holds its locks, dead rows and WAL until its outcome", *outcome
            )


def _failover(source: Source) -> Iterator[Finding]:
    wanted, version = source.config.source.failover, source.number("server_version_num")
    if wanted and version < 170_000:
        yield _finding(
            "failover",
            Weight.MUST,
            f"source.failover is on, and PostgreSQL {version // 10_000} has no failover slots",
            "twofold init cannot make such a slot",
            "source.failover = false",
        )
    elif wanted and not source.settings.get("synchronized_standby_slots"):
        yield _finding(
            "synchronized_standby_slots",
            Weight.SHOULD,
            "the slot is a failover slot, and synchronized_standby_slots is empty",
            "the connector may publish what the standby has not received; after its promotion twofold run refuses",
            *_set("synchronized_standby_slots", "'<the standby''s physical slot>'", restart=False),
        )


def _quoted(source: Source, name: str) -> str:
    return sql.Identifier(name).as_string(source.connection)


_CHECKS: tuple[Callable[[Source], Iterator[Finding]], ...] = (
    _is_primary,
    _wal_level,
    _role,
    _room,
    _slot,
    _slot_idle,
    _synchronous,
    _wal_keep,
    _idle_timeout,
    _sender_timeout,
    _in_doubt,
    _failover,
    _prepared_max,
    _version,
)
