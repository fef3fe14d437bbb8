"""The connector's status from PostgreSQL and Kafka, whether it runs or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

from twofold.config import Config
from twofold.errors import Refused, SetupError, Unreachable, UsageError
from twofold.inspect.in_doubt import InDoubt, add_branches, read_in_doubt
from twofold.kafka.kafka_settings import kafka_settings, names_of, open_registry, topic_policy
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.progress import ProgressReader, RecoveredState
from twofold.kafka.topic_reader import TopicReader
from twofold.kafka.topic_rules import RequiredTopic
from twofold.kafka.topics import Topics
from twofold.lives.load_progress import LoadProgress
from twofold.source import ddl_messages, identity, locks
from twofold.source.load_estimates import estimate_loads
from twofold.source.primary import NoPrimary
from twofold.source.published_tables import published_tables
from twofold_avro.names import topic_of
from twofold_avro.records import Pin
from twofold_common.positions import Lsn, format_lsn
from twofold_common.table_names import reload_command, split_table_name, table_argument

ANSWER_S = 3.0
NAMED_MAX = 10
TwoPhase = Literal["disabled", "pending", "enabled"]


@dataclass(frozen=True, slots=True)
class StaleTable:
    """A table whose topic may lack what PostgreSQL did not send."""

    table: str
    topic: str
    reason: str
    repair: str
    """The command that reloads it."""


@dataclass(frozen=True, slots=True)
class LackingTable:
    """A table whose topic lacks rows that a person had skipped."""

    table: str
    topic: str
    lacks: tuple[str, ...]
    """The rows' positions in the write-ahead log."""
    repair: str
    """The command that brings all rows again, once none of them stops the connector."""

    @property
    def description(self) -> str:
        """Say which rows are missing."""
        rows = "the row" if len(self.lacks) == 1 else f"{len(self.lacks)} rows,"
        return f"{rows} at {_some(self.lacks)}, which a person had skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The connector's status."""

    name: str
    slot: str
    initialised: bool | None
    """None: Kafka did not answer."""
    held_by_pid: int | None
    two_phase: TwoPhase | None
    source_lsn: Lsn
    confirmed_lsn: Lsn | None
    applied_lsn: Lsn | None = None
    sequence: int | None = None
    stream_id: str = ""
    """The stream that position and sequence are of: topics that are made again are another one."""
    behind_bytes: int | None = None
    """At most so much WAL lies between Kafka and the source's end.

    Unpublished changes count until progress follows.
    """
    wal_status: str | None
    in_doubt: tuple[InDoubt, ...]
    backfilling: tuple[str, ...] = ()
    stale: tuple[StaleTable, ...] = ()
    """The tables whose topics may lack what PostgreSQL did not send, until they are reloaded."""
    lacking: tuple[LackingTable, ...] = ()
    """The tables whose topics lack rows that a person had skipped."""
    waits_for: tuple[str, ...]
    """The lock holders that the connector's sessions in PostgreSQL wait for."""
    ddl_flaws: tuple[str, ...] | None = None
    """Why event triggers do not tell each change; None: source.ddl_messages is off."""
    in_doubt_unknown: str = ""
    """Why `in_doubt` is not known: the primary of a standby cannot be asked."""

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {**asdict(self), "in_doubt": [each.to_json() for each in self.in_doubt]}


def read_source_status(config: Config) -> Status:
    """Read PostgreSQL's side; Kafka's stays unknown."""
    try:
        slot = identity.slot_state(config.conninfo, config.slot)
    except Unreachable as error:
        if keepers := locks.new_session_blockers(config.conninfo):
            raise Unreachable(f"{error}; no session can begin: {'; '.join(map(str, keepers))}") from error
        raise
    server = identity.identify(config.conninfo)
    prepared, unknown = _in_doubt_if_known(config, server)
    return Status(
        name=config.name,
        slot=config.slot,
        initialised=None if slot else False,
        held_by_pid=slot.active_pid if slot else None,
        two_phase=None if slot and slot.two_phase else "disabled",
        source_lsn=server.xlogpos,
        confirmed_lsn=slot.confirmed_flush if slot else None,
        wal_status=slot.wal_status if slot else None,
        in_doubt=prepared,
        in_doubt_unknown=unknown,
        ddl_flaws=ddl_messages.flaws(config.conninfo) if config.source.ddl_messages else None,
        waits_for=tuple(
            map(str, locks.connector_blockers(config.conninfo, slot=config.slot, application_name=config.name))
        ),
    )


def _in_doubt_if_known(config: Config, server: identity.ServerIdentity) -> tuple[tuple[InDoubt, ...], str]:
    """Return what is in doubt, or why that is not known: a standby's primary lists it."""
    try:
        return read_in_doubt(config, None), ""
    except (SetupError, Unreachable) as error:
        if not server.is_standby:
            raise
        return (), str(error)


def with_kafka(config: Config, source: Status, recovered: RecoveredState) -> Status:
    """Add Kafka's side to a status."""
    progress = recovered.progress
    applied = Lsn(progress.applied_lsn) if progress else None
    backfilling = tuple(_not_ready(recovered))
    return replace(
        source,
        initialised=source.initialised is None and bool(applied),
        two_phase=source.two_phase or ("pending" if backfilling else "enabled"),
        applied_lsn=applied,
        sequence=progress.sequence if progress else None,
        stream_id=progress.stream_id if progress else "",
        behind_bytes=max(0, source.source_lsn - applied) if applied else None,
        in_doubt=() if source.in_doubt_unknown else _in_doubt_here(config, recovered),
        backfilling=backfilling,
        stale=(*_lost_tables(config, recovered), *stale_tables(recovered)),
        lacking=lacking_tables(recovered),
    )


def _not_ready(recovered: RecoveredState) -> dict[str, Pin]:
    """Return the pins of the tables that are loaded or will be, by topic.

    A load that a person has asked for counts before it begins: whoever asks and then waits until
    nothing is loading waits for that load.
    """
    asked = recovered.to_reload
    return {topic: pin for topic, pin in recovered.pins.items() if pin.backfill != "ready" or topic in asked}


def held_tables(recovered: RecoveredState) -> tuple[str, ...]:
    """Return the tables without a key that are being loaded: until the end their rows wait, and
    progress passes them.
    """
    pins = recovered.pins.values()
    return tuple(f"{pin.schema}.{pin.table}" for pin in pins if pin.key_schema is None and pin.backfill != "ready")


def stale_tables(recovered: RecoveredState) -> tuple[StaleTable, ...]:
    """Return the tables whose topics may lack something, by Kafka's records of the connector."""
    return tuple(
        StaleTable(f"{pin.schema}.{pin.table}", topic, pin.stale, reload_command(pin.schema, pin.table))
        for topic, pin in recovered.pins.items()
        if pin.stale
    )


def find_lost_topics(config: Config, recovered: RecoveredState) -> list[tuple[str, Refused]]:
    """Return the pinned topics that are gone or were made again, each with its refusal.

    A reload that a person has asked for repairs its topic, and a table whose rows were passed over
    restarts by itself. A table that is not published needs no topic: PostgreSQL is asked for these
    only if a topic is lost, because a lock on its catalog may keep the answer.
    """
    pins = {topic: pin for topic, pin in recovered.pins.items() if topic not in recovered.to_reload}
    wanted = [RequiredTopic.of_pin(topic, pin) for topic, pin in pins.items() if not pin.is_passed_over]
    lost = Topics(kafka_settings(config), topic_policy(config)).lost(wanted) if wanted else []
    if not lost:
        return []
    try:
        published = published_tables(config.conninfo, config.publication)
    except Refused:  # there is no publication, which doctor and the next run tell by themselves
        return []
    tables = {(each.schema, each.table) for each in published} - {rule.name for rule in config.outbox}
    in_use = {topic_of(config.prefix, *table) for table in tables}
    return [each for each in lost if each[0] in in_use]


def _lost_tables(config: Config, recovered: RecoveredState) -> Iterable[StaleTable]:
    """Yield the tables whose topics were deleted: the present ones lack all earlier rows."""
    for topic, refusal in find_lost_topics(config, recovered):
        pin = recovered.pins[topic]
        yield StaleTable(f"{pin.schema}.{pin.table}", topic, refusal.what, refusal.repair)


def lacking_tables(recovered: RecoveredState) -> tuple[LackingTable, ...]:
    """Return the tables whose topics lack skipped rows, by Kafka's records of the connector."""
    return tuple(
        LackingTable(
            f"{pin.schema}.{pin.table}",
            topic,
            tuple(format_lsn(row.lsn) for row in pin.skipped),
            reload_command(pin.schema, pin.table),
        )
        for topic, pin in recovered.pins.items()
        if pin.skipped
    )


def _in_doubt_here(config: Config, recovered: RecoveredState) -> tuple[InDoubt, ...]:
    """Return what is in doubt; in a source group, with what waits for it if that can be read."""
    found = read_in_doubt(config, recovered)
    if config.group.name is not None:
        with suppress(Unreachable):
            return add_branches(config, found)[0]
    return found


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """A table that is not ready."""

    table: str
    topic: str
    state: str
    """The pin's word, or requested: a person has asked for the load, and it has not begun."""
    rows: int
    size: int
    estimate: int
    """The planner's estimate of the table's rows; 0 if it is not known."""
    per_second: float
    """Rows a second on average while it was read; 0 if it is not known."""
    left_s: float | None
    """The time left at that rate; None if it is not known."""
    words: str
    """The load's state as a sentence."""
    waits_for: tuple[str, ...]
    """Holders of a lock under which the table is written. The load begins when all have ended."""


def backfills(config: Config, recovered: RecoveredState) -> tuple[BackfillStatus, ...]:
    """Return all tables that are not ready, by Kafka's records of the connector."""
    pins = _not_ready(recovered)
    if not pins:
        return ()
    tables = [(pin.schema, pin.table) for pin in pins.values()]
    try:
        known = estimate_loads(config.conninfo, config.publication, tables)
    except NoPrimary:
        known = dict.fromkeys(tables, (0, ()))
    found = []
    for topic, pin in pins.items():
        is_requested = topic in recovered.to_reload
        place = LoadProgress() if is_requested else LoadProgress.from_bytes(pin.bound)
        estimate, holders = known[pin.schema, pin.table]
        waiting = (is_requested or pin.backfill != "paused") and not place.rows
        found.append(
            BackfillStatus(
                table=f"{pin.schema}.{pin.table}",
                topic=topic,
                state="requested" if is_requested else pin.backfill,
                rows=place.rows,
                size=place.size,
                estimate=estimate,
                per_second=round(place.per_second, 1),
                left_s=place.left_s(estimate),
                words="a running connector begins it" if is_requested else place.describe(estimate),
                waits_for=tuple(map(str, holders)) if waiting else (),
            )
        )
    return tuple(found)


def topics_of(config: Config, tables: Iterable[str]) -> list[str]:
    """Return the topics of tables that are or were published: unread rows may be there."""
    known = {
        (r.schema, r.table): topic_of(config.prefix, r.schema, r.table)
        for r in published_tables(config.conninfo, config.publication)
    }
    tables = tuple(tables)
    if not all(_find(name, known) for name in tables):
        pins = read_progress(config).pins
        known = {(pin.schema, pin.table): topic for topic, pin in pins.items()} | known
    return choose_topics(tables, known, config.publication)


def choose_topics(tables: Collection[str], known: Mapping[tuple[str, str], str], publication: str) -> list[str]:
    """Return the topics of the tables that a person has named, of those that are known."""
    found = [_find(name, known) for name in tables]
    if unknown := [name for name, topic in zip(tables, found, strict=True) if topic is None]:
        names = [table_argument(*table) for table in known]
        alike = [near for name in unknown for near in _alike(name, known) or get_close_matches(name, names, n=1)]
        hint = f"did you mean {' '.join(alike)}?" if alike else f"it has {_some(names)}"
        raise UsageError(f"not published: {_some(unknown)}; the publication is {publication}, {hint}")
    return [topic for topic in found if topic]


def _find(name: str, known: Mapping[tuple[str, str], str]) -> str | None:
    """Return the topic of the table that a person has named; None if there is none.

    A schema with a dot needs no quotes where nothing else has that name.
    """
    if (table := split_table_name(name)) in known and table is not None:
        return known[table]
    alike = [topic for (schema, table_), topic in known.items() if f"{schema}.{table_}" == name]
    return alike[0] if len(alike) == 1 else None


def _alike(name: str, known: Iterable[tuple[str, str]]) -> list[str]:
    """Return the tables of this name in any schema, as arguments of a command."""
    return [table_argument(schema, table) for schema, table in known if table == name]


def _some(names: Sequence[str]) -> str:
    """Return the first few, and the number of the others."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more}" if names else "no table"


def read_progress(config: Config) -> RecoveredState:
    """Read Kafka's records of the connector.

    A person waits, so absent brokers are given up soon.
    """
    settings = kafka_settings(config)
    ask_brokers(settings, ANSWER_S)
    return ProgressReader(TopicReader(settings), names_of(config), open_registry(config)).read()


def read_progress_if_any(config: Config) -> RecoveredState | None:
    """Read the same; None where `init` was never run: there are no topics."""
    settings, names = kafka_settings(config), names_of(config)
    _, metadata = ask_brokers(settings, ANSWER_S)
    if names.progress not in metadata.topics and Topics(settings, topic_policy(config)).missing([names.progress]):
        return None
    return read_progress(config)
