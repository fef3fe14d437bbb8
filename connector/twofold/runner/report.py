"""What can be said of the connector from outside: read from PostgreSQL and Kafka, whether it runs or not. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from twofold.backfill.place import Place
from twofold.config import Config
from twofold.errors import Unreachable, UsageError
from twofold.positions import Lsn
from twofold.runner.doubt import statements
from twofold.runner.ground import kafka_settings, names_of, registry_settings
from twofold.sink.progress import ProgressReader, Recovered
from twofold.sink.registry import Registry
from twofold.source import identity, locks
from twofold.source.copying import outlook
from twofold.source.published import published_tables
from twofold_avro.names import topic_of
from twofold_avro.records import Prepared

TwoPhase = Literal["disabled", "pending", "enabled"]


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A prepared transaction without an outcome, as PostgreSQL and the ledger know it."""

    xid: int
    gid: str
    owner: str
    database: str
    age_s: float
    too_long: bool
    """Older than prepared.doubt_warning."""
    wal_bytes: int | None
    """WAL since its prepare: at least so much stays on the server for it."""
    in_kafka: Literal["open", "parked", "not yet read"]
    rows: int | None
    topics: tuple[str, ...]
    global_id: str | None
    branch: str | None
    statements: tuple[str, str]
    """The two that end it; a person's to run."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where the connector stands."""

    name: str
    slot: str
    initialised: bool
    held_by_pid: int | None
    two_phase: TwoPhase
    source_lsn: Lsn
    confirmed_lsn: Lsn | None
    applied_lsn: Lsn | None
    sequence: int | None
    behind_bytes: int | None
    """WAL between what is in Kafka and the source's end; what is not published counts as well until progress has followed."""
    wal_status: str | None
    in_doubt: tuple[InDoubt, ...]
    backfilling: tuple[str, ...]
    waits_for: tuple[str, ...]
    """Whom the connector's sessions in PostgreSQL wait for, each with the lock that it holds."""


def look(config: Config) -> Status:
    """One look at both sides."""
    try:
        slot = identity.slot_state(config.conninfo, config.slot)
    except Unreachable as error:
        if keepers := locks.who_keeps_out(config.conninfo):
            raise Unreachable(f"{error}; no session can begin: {'; '.join(map(str, keepers))}") from error
        raise
    server = identity.identify(config.conninfo)
    recovered = read_progress(config)
    progress = recovered.progress
    applied = Lsn(progress.applied_lsn) if progress else None
    backfilling = tuple(topic for topic, pin in recovered.pins.items() if pin.backfill != "ready")
    return Status(
        name=config.name,
        slot=config.slot,
        initialised=slot is not None and bool(applied),
        held_by_pid=slot.active_pid if slot else None,
        two_phase="disabled" if not slot or not slot.two_phase else "pending" if backfilling else "enabled",
        source_lsn=server.xlogpos,
        confirmed_lsn=slot.confirmed_flush if slot else None,
        applied_lsn=applied,
        sequence=progress.sequence if progress else None,
        behind_bytes=max(0, server.xlogpos - applied) if applied else None,
        wal_status=slot.wal_status if slot else None,
        in_doubt=in_doubt(config, recovered.unresolved.values()),
        backfilling=backfilling,
        waits_for=tuple(map(str, locks.waits(config.conninfo, slot=config.slot, application_name=config.name))),
    )


@dataclass(frozen=True, slots=True)
class Backfill:
    """A table that is not ready."""

    table: str
    topic: str
    state: str
    rows: int
    size: int
    estimate: int
    """How many rows the planner believes the table to have; 0: not known."""
    per_second: float
    """Rows, on the average while it was read; 0: not known."""
    left_s: float | None
    """How long it will go on at that; None: not known."""
    words: str
    """The same for people."""
    waits_for: tuple[str, ...]
    """Who holds a lock under which its rows are written: none of them may be left before its load begins."""


def backfills(config: Config) -> tuple[Backfill, ...]:
    """All tables that are not ready."""
    found = []
    for topic, pin in read_progress(config).pins.items():
        if pin.backfill == "ready":
            continue
        place = Place.from_bytes(pin.bound)
        estimate, holders = outlook(config.conninfo, config.publication, pin.schema, pin.table)
        waiting = pin.backfill != "paused" and not place.rows
        found.append(
            Backfill(
                table=f"{pin.schema}.{pin.table}",
                topic=topic,
                state=pin.backfill,
                rows=place.rows,
                size=place.size,
                estimate=estimate,
                per_second=round(place.per_second, 1),
                left_s=place.left_s(estimate),
                words=place.words(estimate),
                waits_for=tuple(map(str, holders)) if waiting else (),
            )
        )
    return tuple(found)


def topics_of(config: Config, tables: Iterable[str]) -> list[str]:
    """The topics of published tables."""
    known = {
        f"{r.schema}.{r.table}": topic_of(config.prefix, r.schema, r.table)
        for r in published_tables(config.conninfo, config.publication)
    }
    if unknown := [table for table in tables if table not in known]:
        raise UsageError(
            f"not published: {', '.join(unknown)}; the publication {config.publication} has {', '.join(known) or 'no table'}"
        )
    return [known[table] for table in tables]


def read_progress(config: Config) -> Recovered:
    """What Kafka holds of the connector."""
    return ProgressReader(kafka_settings(config), names_of(config), Registry(registry_settings(config))).read()


def in_doubt(config: Config, ledger: Iterable[Prepared]) -> tuple[InDoubt, ...]:
    """Oldest first."""
    source_lsn = identity.identify(config.conninfo).xlogpos
    entries: dict[tuple[int, str], Prepared] = {(e.xid, e.gid): e for e in ledger}
    found = []
    for prepared in identity.prepared_transactions(config.conninfo, all_databases=False):
        entry = entries.get((prepared.xid, prepared.gid))
        found.append(
            InDoubt(
                xid=prepared.xid,
                gid=prepared.gid,
                owner=prepared.owner,
                database=prepared.database,
                age_s=prepared.age.total_seconds(),
                too_long=prepared.age.total_seconds() > config.prepared.doubt_warning,
                wal_bytes=max(0, source_lsn - entry.prepare_lsn) if entry else None,
                in_kafka="not yet read" if entry is None else "open" if entry.state == "open" else "parked",
                rows=entry.rows if entry else None,
                topics=entry.topics if entry else (),
                global_id=entry.global_id if entry else None,
                branch=entry.branch if entry else None,
                statements=statements(prepared.gid),
            )
        )
    return tuple(found)
