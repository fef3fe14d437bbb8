"""Checks PostgreSQL: the server, the role, the slot, transactions in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twofold.config import Config
from twofold.doctor import outbox, policy, settings
from twofold.doctor.finding import Finder, Finding, Severity, start_over
from twofold.doctor.settings import Source
from twofold.doctor.tables import published
from twofold.errors import SetupError, TwofoldError, Unreachable
from twofold.inspect.in_doubt import from_postgres
from twofold.inspect.status_report import lacking_tables, read_progress, stale_tables
from twofold.run.source_settings import source_use, wanted_publication
from twofold.source import ddl_messages, identity, publishable, standby
from twofold.source.connection import PAST_THE_POOLER, connect
from twofold.source.diagnosis import INTO_UTF8
from twofold.source.primary import is_standby
from twofold.source.published_tables import publication_exists, published_in
from twofold.source.readiness import (
    MINIMUM_MINORS,
    NEWEST_TRIED,
    NO_ENCODING,
    POOLER,
    unreached_settings,
    version_advice,
)
from twofold.source.service import MAY_REPLICATE, ask
from twofold_common.gids import describe
from twofold_common.table_names import sql_identifier

_SETTINGS = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY (%s)"
_OTHER_NAMES = ("server_version_num", "effective_wal_level", "synchronous_standby_names")
_NAMES = [*_OTHER_NAMES, *(rule.setting for rule in settings.RULES)]
IDLE_HELD_BYTES = 1 << 30
_finding = Finder("postgresql")


def examine(config: Config) -> Iterator[Finding]:
    """Run all checks in one session."""
    with connect(config.conninfo) as connection:
        source = Source(
            config,
            connection,
            dict(connection.execute(_SETTINGS, (_NAMES,)).fetchall()),
            identity.slot_state(config.conninfo, config.slot),
            ask(connection),
            is_standby(connection),
        )
        for check in _CHECKS:
            yield from check(source)
        yield from published(config, connection)
        if publication_exists(connection, config.publication):
            relations = published_in(connection, config.publication)
            yield from outbox.examine(config, connection, relations)
            yield from policy.examine(config, relations, initialised=source.slot is not None)
        if source.slot is not None:
            yield from find_stale(config)
        wanted = wanted_publication(config)
        if wanted and (left_out := publishable.find_left_out(connection, config.publication, wanted)):
            yield _finding.should("publishable", left_out.what, "their changes are not sent", left_out.remedy)
    if source.slot is None and wanted is not None:
        for found in publishable.examine(config.conninfo, config.publication, wanted):
            severity = Severity.MUST if found.must else Severity.SHOULD
            yield _finding(
                "publishable", severity, found.what, "twofold init cannot make the publication", found.remedy
            )


def _service(source: Source) -> Iterator[Finding]:
    if source.service.is_managed:
        yield _finding.note(
            "service",
            f"the server is {source.service.name}, by what it says of itself",
            "its settings and rights are changed in the service's way, which the remedies name; nobody has tried Twofold with it",
            f"-- see {source.service.page}",
        )


def _standby(source: Source) -> Iterator[Finding]:
    if not source.is_standby:
        return
    yield _finding.note(
        "standby",
        "the server is a standby",
        "the slot lives and dies with it: another standby, or its primary, cannot continue the stream",
        "-- if that is not meant, point source.dsn to the primary (several hosts and target_session_attrs=read-write find it)",
    )
    config = source.config
    flaws = standby.examine(config.conninfo, source.connection, source_use(config), slot_exists=source.slot is not None)
    for flaw in flaws:
        severity = Severity.SHOULD if flaw.stops is standby.Stops.NOTHING else Severity.MUST
        yield _finding(flaw.check, severity, flaw.what, flaw.why, *flaw.remedy)


def _version(source: Source) -> Iterator[Finding]:
    major, minor = divmod(source.number("server_version_num"), 10_000)
    if major > NEWEST_TRIED:
        (advice,) = version_advice(source.number("server_version_num"))
        yield _finding.should(
            "version",
            advice.what,
            "its catalog or its stream may differ from what Twofold expects: topics may differ from tables, and no test has compared them",
            advice.remedy,
        )
    minimum = MINIMUM_MINORS.get(major, 0)
    if minor < minimum:
        yield _finding.note(
            "version",
            f"PostgreSQL {major}.{minor} has known bugs in two-phase decoding",
            "the outcome of an empty prepared transaction may come without its PREPARE, or the reverse; Twofold copes, others may not",
            f"upgrade to {major}.{minimum} or later",
        )


def _pooler(source: Source) -> Iterator[Finding]:
    if lost := unreached_settings(source.connection):
        yield _finding.must(
            "pooler",
            f"{POOLER} ({', '.join(lost)})",
            "values would be copied as other bytes than they are streamed, and replication does not pass through a pooler",
            PAST_THE_POOLER,
        )


def _encoding(source: Source) -> Iterator[Finding]:
    if source.ask("SELECT current_setting('server_encoding')") == [("SQL_ASCII",)]:
        yield _finding.must("encoding", "the database's encoding is SQL_ASCII", NO_ENCODING, *INTO_UTF8)


def _role(source: Source) -> Iterator[Finding]:
    if source.ask(MAY_REPLICATE) != [(False,)]:
        return
    name = str(source.ask("SELECT current_user::text")[0][0])
    role, service = sql_identifier(name), source.service
    remedy = f"-- {service.let_replicate(role)}" if service.is_managed else f"{service.let_replicate(role)};"
    yield _finding.must("role", f"role {name} may not replicate", "PostgreSQL refuses the stream", remedy)


def _synchronous(source: Source) -> Iterator[Finding]:
    name = source.config.name
    if source.slot is None and settings.names(source):
        yield _finding.must(
            "synchronous_deadlock",
            f"synchronous_standby_names names {name}, and its slot does not exist",
            "every commit waits for a connector that cannot start, the one that makes its slot included",
            "ALTER SYSTEM RESET synchronous_standby_names;",
            "SELECT pg_reload_conf();",
            "-- then twofold init and twofold run, and only then name it again",
        )


def _slot(source: Source) -> Iterator[Finding]:
    slot, config = source.slot, source.config
    if slot is None:  # `connector` tells what that means
        return
    if slot.lost:
        yield _finding.must(
            "slot_lost",
            f"slot {slot.name} was invalidated ({slot.invalidation_reason or 'its WAL was removed'})",
            "the changes since its last confirmed position can no longer be streamed",
            *start_over(config.prefix),
        )
    if slot.plugin != "pgoutput" or slot.database != source.connection.info.dbname:
        yield _finding.must(
            "slot_foreign",
            f"slot {slot.name} is for {slot.plugin or 'physical replication'} in database {slot.database or '(none)'}",
            "slots have one namespace in the whole server, and this one is another program's",
            f'source.slot = "{slot.name}_twofold"',
        )
    elif slot.two_phase != config.source.two_phase:
        made = str(slot.two_phase).lower()
        yield _finding.must(
            "slot_two_phase",
            f"slot {slot.name} was made with two_phase {made}, the configuration says otherwise",
            "it is fixed when a slot is made, and twofold run refuses",
            f"source.two_phase = {made}",
        )


def _slot_idle(source: Source) -> Iterator[Finding]:
    slot = source.slot
    if slot is None or slot.active_pid is not None or slot.lost:
        return
    end = "pg_last_wal_replay_lsn" if source.is_standby else "pg_current_wal_lsn"
    held = source.ask(
        f"SELECT pg_catalog.{end}() - %s::pg_catalog.pg_lsn", f"{slot.restart >> 32:X}/{slot.restart & 0xFFFFFFFF:X}"
    )[0][0]
    heavy = int(str(held)) > IDLE_HELD_BYTES
    yield _finding(
        "slot_idle",
        Severity.SHOULD if heavy else Severity.NOTE,
        f"no connector reads slot {slot.name}; it holds {int(str(held)) / 1048576:.0f} MiB of WAL",
        "the WAL stays on the server's disk until a connector reads it",
        "twofold run  # one that runs already waits for a server, which its log names",
    )


def _in_doubt(source: Source) -> Iterator[Finding]:
    try:
        found = identity.prepared_transactions(source.config.conninfo, all_databases=source.slot is None)
    except (SetupError, Unreachable) as error:
        if not source.is_standby:
            raise
        what, _, remedy = str(error).partition("; remedy: ")
        yield _finding.note(
            "in_doubt_unknown",
            f"prepared transactions are not known: {what}",
            "one that stays in doubt holds its locks, dead rows and WAL",
            remedy or "-- on the primary, SELECT * FROM pg_prepared_xacts",
        )
        return
    for each in (from_postgres(source.config, prepared) for prepared in found):
        age = f"prepared transaction {describe(each.gid)} of {each.owner} (database {each.database}) is {each.age_s:.0f} s old"
        decides = f"-- one outcome, in database {each.database}, as its coordinator decides"
        if source.slot is None:
            yield _finding.should(
                "init_waits",
                age,
                "twofold init waits for it: a slot is made when all older transactions have ended, in every database",
                *each.statements,
                decides,
            )
        elif each.too_long:
            yield _finding.should(
                "in_doubt",
                age,
                "it holds its locks, dead rows and WAL until its outcome",
                *(each.statements or ("twofold prepared list",)),
                f"{decides}; twofold prepared list says what other branches have done",
            )


def _failover(source: Source) -> Iterator[Finding]:
    slot, version = source.slot, source.number("server_version_num")
    if not source.config.source.failover:
        return
    if slot is not None and slot.failover is False:
        alter = f"ALTER_REPLICATION_SLOT {slot.name} (FAILOVER true)"
        yield _finding.should(
            "slot_failover",
            f"source.failover is on, and slot {slot.name} is no failover slot",
            "a standby that is promoted does not have it, and the connector starts over there: init makes a slot with the setting of its day",
            f"psql 'dbname={slot.database} replication=database' -c '{alter}'",
            "-- as the connector's role, while no connector runs",
        )
    if version < 170_000:
        yield _finding.must(
            "failover",
            f"source.failover is on, and PostgreSQL {version // 10_000} has no failover slots",
            "twofold init cannot make such a slot",
            "source.failover = false",
        )


def _ddl_messages(source: Source) -> Iterator[Finding]:
    if source.slot is None:
        return
    if not source.config.source.ddl_messages:
        yield _finding.note(
            "ddl_messages",
            "source.ddl_messages is off: of a definition that was changed and changed back, only what the catalog keeps is noticed",
            "a column that is renamed, written and renamed back between two comparisons leaves stale rows; event triggers put each change into the stream",
            "source.ddl_messages = true",
            "twofold init",
        )
        return
    if not (flaws := ddl_messages.flaws_in(source.connection)):
        return
    yield _finding.should(
        "ddl_messages",
        f"source.ddl_messages is on, and not each change of a table's definition is in the stream: {'; '.join(flaws)}",
        "definitions of tables are asked of the catalog of now: a key that was away for a time, and a column that was exchanged twice, are noticed late or not at all",
        "twofold init",
    )


_CHECKS: tuple[Callable[[Source], Iterator[Finding]], ...] = (
    _service,
    _pooler,
    settings.examine,
    _standby,
    _encoding,
    _role,
    _slot,
    _slot_idle,
    _synchronous,
    _in_doubt,
    _failover,
    _version,
    _ddl_messages,
)


def find_stale(config: Config) -> Iterator[Finding]:
    """Name tables whose topics may lack what PostgreSQL did not send, or lack a skipped row, by the
    connector's pins.

    Yield nothing where Kafka's records cannot be read: Kafka's own part says why.
    """
    try:
        recovered = read_progress(config)
    except TwofoldError:
        return
    for each in stale_tables(recovered):
        yield _finding.should(
            "stale",
            f"the topic of table {each.table} may be stale: {each.reason}",
            "its readers, and every mirror, may have rows that the table does not have",
            each.repair,
        )
    for lacking in lacking_tables(recovered):
        yield _finding.note(
            "skipped",
            f"the topic of table {lacking.table} lacks {lacking.description}",
            "its readers and every mirror lack it too",
            "-- write the row again in the source; or, once every row can be published, load the table:",
            lacking.repair,
        )
