"""Checks PostgreSQL's settings by a table of what each must be, why, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psycopg import sql

from twofold.config import Config
from twofold.doctor.finding import Finder, Finding, Severity
from twofold.source.connection import PlainConnection
from twofold.source.identity import SlotState
from twofold.source.readiness import allows_decoding
from twofold.source.service import Service

KEEPALIVE_MS_MIN = 10_000
ROOM = 10
SQL_QUOTE = "'"
_finding = Finder("postgresql")


@dataclass(frozen=True, slots=True)
class Source:
    """PostgreSQL as the checks see it."""

    config: Config
    connection: PlainConnection
    settings: dict[str, str]
    """The settings that the server's version knows."""
    slot: SlotState | None
    service: Service
    is_standby: bool

    def number(self, setting: str) -> int:
        return int(self.settings[setting])

    def ask(self, query: str, *values: object) -> list[tuple[object, ...]]:
        return self.connection.execute(query, values or None).fetchall()

    def count(self, view: str) -> int:
        """Return the number of rows of one of the server's views."""
        query = sql.SQL("SELECT count(*) FROM pg_catalog.{}").format(sql.Identifier(view))
        row = self.connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the table.

    `what` and `wanted` may name `{value}`, the setting's present value, `{name}`, the connector's,
    and `{more}`, the value with room added.
    """

    setting: str
    severity: Severity
    broken: Callable[[Source], bool]
    what: str
    why: str
    wanted: str
    restart: bool = False
    check: str = ""
    """The finding's word, if it is not the setting's name."""


def examine(source: Source) -> Iterator[Finding]:
    for rule in RULES:
        if not rule.broken(source):
            continue
        value = source.settings.get(rule.setting, "")
        words = {"value": value, "name": source.config.name, "more": int(value) + ROOM if value.isdecimal() else ""}
        words["prepared"] = source.count("pg_prepared_xacts")
        remedy = _remedy(source.service, rule, rule.wanted.format(**words))
        yield _finding(rule.check or rule.setting, rule.severity, rule.what.format(**words), rule.why, *remedy)


def _remedy(service: Service, rule: Rule, wanted: str) -> tuple[str, ...]:
    if service.is_managed:
        return (f"-- {service.set(rule.setting, wanted.strip(SQL_QUOTE), restart=rule.restart)}",)
    reload = "-- and restart PostgreSQL" if rule.restart else "SELECT pg_reload_conf();"
    return (f"ALTER SYSTEM SET {rule.setting} = {wanted};", reload)


def names(source: Source) -> bool:
    """Whether synchronous_standby_names names the connector."""
    listed = source.settings["synchronous_standby_names"]
    return source.config.name in listed.translate(str.maketrans('",()', "    ")).split()


def _no_slot_left(source: Source) -> bool:
    return source.slot is None and source.count("pg_replication_slots") >= source.number("max_replication_slots")


def _no_sender_left(source: Source) -> bool:
    held = source.slot is not None and source.slot.active_pid is not None
    return not held and source.count("pg_stat_replication") >= source.number("max_wal_senders")


RULES = (
    Rule(
        "wal_level",
        Severity.MUST,
        lambda s: not allows_decoding(s.settings["wal_level"], s.settings.get("effective_wal_level")),
        "wal_level is {value}",
        "the WAL does not hold what decoding needs; no logical slot can be made",
        "'logical'",
        restart=True,
    ),
    Rule(
        "max_replication_slots",
        Severity.MUST,
        _no_slot_left,
        "all {value} replication slots are taken",
        "twofold init cannot make its own; a slot that nobody reads also holds WAL and dead rows",
        "{more}",
        restart=True,
    ),
    Rule(
        "max_wal_senders",
        Severity.MUST,
        _no_sender_left,
        "all {value} WAL senders are in use",
        "the stream cannot start",
        "{more}",
        restart=True,
    ),
    Rule(
        "synchronous_standby_names",
        Severity.SHOULD,
        lambda s: s.config.prepared.synchronous and not names(s),
        "prepared.synchronous is on, and synchronous_standby_names does not name {name}",
        "PREPARE TRANSACTION returns without waiting for Kafka",
        "'{name}'",
        check="synchronous",
    ),
    Rule(
        "max_slot_wal_keep_size",
        Severity.SHOULD,
        lambda s: s.number("max_slot_wal_keep_size") >= 0,
        "max_slot_wal_keep_size is {value} MB, and {prepared} transactions are prepared now",
        "a prepared transaction holds WAL until its outcome, however well the connector keeps up: past this size the slot is invalidated and all tables must be reloaded",
        "-1",
    ),
    Rule(
        "idle_replication_slot_timeout",
        Severity.SHOULD,
        lambda s: s.settings.get("idle_replication_slot_timeout", "0") not in {"0", ""},
        "idle_replication_slot_timeout is {value} s",
        "a connector that is stopped for longer loses its slot, and all tables must be reloaded",
        "0",
    ),
    Rule(
        "wal_sender_timeout",
        Severity.SHOULD,
        lambda s: s.number("wal_sender_timeout") == 0,
        "wal_sender_timeout is 0",
        "a connector whose machine vanished holds the slot for ever, and its standby waits as long",
        "'60s'",
    ),
    Rule(
        "wal_sender_timeout",
        Severity.SHOULD,
        lambda s: 0 < s.number("wal_sender_timeout") < KEEPALIVE_MS_MIN,
        "wal_sender_timeout is {value} ms",
        "a pause of the connector's machine that is longer ends the stream, and recovery starts over",
        "'60s'",
    ),
    Rule(
        "synchronized_standby_slots",
        Severity.SHOULD,
        lambda s: s.config.source.failover and s.settings.get("synchronized_standby_slots") == "",
        "the slot is a failover slot, and synchronized_standby_slots is empty",
        "the connector may publish what the standby has not received; after its promotion twofold run refuses",
        "'<the standby''s physical slot>'",
    ),
    Rule(
        "max_prepared_transactions",
        Severity.NOTE,
        lambda s: s.config.source.two_phase and s.number("max_prepared_transactions") == 0,
        "max_prepared_transactions is 0",
        "PREPARE TRANSACTION is refused: there are no prepared transactions to publish",
        "100",
        restart=True,
    ),
)
