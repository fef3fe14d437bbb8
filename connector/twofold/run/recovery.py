"""Recovery: the one way into a run, after a start, a restart, a failover and every error.

Five steps, in this order:

1. Take the slot: its holder is the one connector. Keepalives are answered from here on.

2. Fence every predecessor, and 3. read what it left (`kafka.fencing`).

4. Check that slot, server, progress, commit records, tables and topics agree.

5. Stream: `assembly` makes the run.

Each question is asked once. A step that fails closes what earlier steps opened. A stop ends
recovery at once (`StopRequested`).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from twofold import failpoints
from twofold.config import Config
from twofold.errors import UsageError
from twofold.group.member_commits import require_members
from twofold.inspect.checks import check, slot_gone
from twofold.inspect.status_report import read_progress_if_any
from twofold.kafka.fencing import Fencing, fence
from twofold.kafka.kafka_settings import bookkeeping, kafka_settings, names_of, open_registry, topic_policy
from twofold.kafka.progress import RecoveredState
from twofold.kafka.registrar import Registrar
from twofold.kafka.schema_registry import Registry, register_fixed
from twofold.kafka.topics import Topics
from twofold.kafka.watch import Watch
from twofold.lives.skipped_rows import SkipCommand, SkipCommands
from twofold.run import last_refusal
from twofold.run.assembly import Recovered, RecoveredTables, assemble
from twofold.run.lookback import check_recent_commits
from twofold.run.next_run import NextRun
from twofold.run.run import Run, StopRequested
from twofold.run.source_settings import source_use, wants_messages
from twofold.source import ddl_messages, readiness
from twofold.source.catalog import Catalog
from twofold.source.connection import connect
from twofold.source.diagnosis import SlotGone
from twofold.source.flaws import refusal_of
from twofold.source.identity import SourceFacts, read_facts
from twofold.source.session import ReplicationSession, SessionOptions
from twofold.source.standby import require_for_run
from twofold.source.table_descriptions import describe_published
from twofold.tables.data_policy import DataPolicy
from twofold.tables.tables import Tables
from twofold_avro.names import topic_of
from twofold_avro.records import Progress
from twofold_common.positions import Lsn, format_lsn

_log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.2
_T = TypeVar("_T")


def recover(next_run: NextRun, stop: threading.Event, opened: ExitStack) -> Run:
    """Take all steps up to the last; `opened` closes what the steps opened."""
    config, lookback = next_run.config, next_run.lookback
    step = InterruptibleStep(stop, opened)
    session = step(lambda: _take_slot_or_tell(config, opened))
    step.tend = session.tend
    failpoints.hit("after_start_replication")

    registry, topics = open_registry(config), Topics(kafka_settings(config), topic_policy(config))
    source = step(lambda: read_facts(config.conninfo, config.slot))
    confirmed = source.slot.confirmed_flush
    fencing = step(lambda: _fence(next_run, registry, topics, opened, confirmed))
    progress = step(lambda: _check(config, source, fencing.recovered))
    failpoints.hit("after_checks")

    published = step(lambda: _find_tables(config, source, fencing.recovered, registry, topics, opened))
    published.tables.skips = _read_skip_commands(fencing, source.slot.restart)
    if lookback is not None:
        step(functools.partial(check_recent_commits, config, registry, fencing.recovered, lookback, published.topics))
    forgotten = step(lambda: _forgotten_topics(published, fencing.recovered))
    restarts = {*fencing.recovered.to_reload, *next_run.restart.choose(fencing.recovered.pins), *forgotten}
    step(lambda: _make_ready(config, published, restarts))
    # These questions would keep the processor and the registry from those of the steps.
    published.registrar.ask_ahead(
        (each, pin) for each, pin in fencing.recovered.pins.items() if each in published.topics
    )
    recovered = Recovered(session, source, fencing.publisher, fencing.recovered, progress, published, registry)
    return assemble(config, recovered, stop, opened, upto=next_run.upto)


def _take_slot_or_tell(config: Config, opened: ExitStack) -> ReplicationSession:
    """Take step 1. If the slot is gone, Kafka knows whether `init` is missing."""
    try:
        return take_slot(config, opened)
    except SlotGone:
        recovered = read_progress_if_any(config)
        progress = recovered.progress if recovered else None
        if progress is None or not progress.applied_lsn:
            raise
        raise slot_gone(config.slot, config.prefix, Lsn(progress.applied_lsn)) from None


def take_slot(config: Config, opened: ExitStack) -> ReplicationSession:
    """Take step 1. SlotBusy: another instance is the connector now."""
    # Values in text: some types of extensions and arrays have no binary form of PostgreSQL's own.
    options = SessionOptions(
        two_phase=config.source.two_phase,
        streaming=config.source.streaming,
        binary=False,
        messages=wants_messages(config),
    )
    session = ReplicationSession(
        config.conninfo, slot=config.slot, publication=config.publication, application_name=config.name, options=options
    )
    session.open()
    opened.callback(session.close)
    return session


def _fence(next_run: NextRun, registry: Registry, topics: Topics, opened: ExitStack, confirmed: Lsn) -> Fencing:
    config = next_run.config
    settings, names = kafka_settings(config), names_of(config)
    limits = topics.broker_limits()
    bound_s = limits.transaction_timeout_s
    if config.kafka.transaction_timeout > bound_s:
        raise UsageError(
            f"kafka.transaction_timeout ({config.kafka.transaction_timeout:g} s) is above the brokers' transaction.max.timeout.ms ({bound_s:g} s): lower it and"
            " prepared.hold, or raise the brokers' limit"
        )
    if limits.request_bytes is not None and settings.record_bytes > limits.request_bytes:
        raise UsageError(
            f"message.max.bytes in kafka.options is {settings.record_bytes}, and the brokers close a connection that sends more than {limits.request_bytes}"
            " (socket.request.max.bytes): lower the first, or raise the second in server.properties of every broker and restart it"
        )
    longest_ms = int(min(bound_s, config.kafka.transaction_timeout * next_run.patience) * 1000)
    settings = replace(settings, transaction_timeout_ms=longest_ms, retry_factor=next_run.ends.retry_factor)
    topics.ensure(bookkeeping(config, pinned=True))
    if config.group.name:
        require_members(settings, config.group.members)
    watch = Watch()
    opened.callback(watch.close)
    fencing = fence(
        settings,
        names,
        registry,
        register_fixed(registry, names, in_group=config.group.name is not None),
        pool=config.prepared.pool,
        watch=watch,
        confirmed=confirmed,
    )
    opened.callback(fencing.publisher.close)
    return fencing


def _check(config: Config, source: SourceFacts, recovered: RecoveredState) -> Progress:
    """Take step 4 for what the servers have; return the progress to continue from."""
    _note_version(source.server.version_num)
    if refusal := last_refusal.recall(config, recovered):
        _log.warning("the last run ended by itself, %s", refusal)
    if source.server.is_standby:
        with connect(config.conninfo) as connection:
            require_for_run(config.conninfo, connection, source_use(config))
    return check(recovered, *source, prefix=config.prefix, two_phase=config.source.two_phase)


@functools.cache
def _note_version(version: int) -> None:
    """Log what is to know of the server's version, once for each server."""
    for finding in readiness.version_advice(version):
        _log.warning("%s", finding)


def _find_tables(
    config: Config,
    source: SourceFacts,
    recovered: RecoveredState,
    registry: Registry,
    topics: Topics,
    opened: ExitStack,
) -> RecoveredTables:
    """Return the published tables, as the pins in Kafka have them, with what registers their
    schemas. Tables that cannot be published are refused.
    """
    rules, catalog = DataPolicy(config), Catalog(config.conninfo)
    opened.callback(catalog.close)
    registrar = Registrar(registry, topics, config.prefix, rules.require_rules)
    opened.callback(registrar.close)
    tables = Tables(
        config,
        source.server.database,
        recovered.pins,
        catalog=catalog,
        registrar=registrar,
        policy=rules,
        has_ddl_messages=config.source.ddl_messages and ddl_messages.flaws(config.conninfo) == (),
    )
    described = describe_published(config.conninfo, config.publication)
    if described.flaws:
        raise refusal_of(described.flaws)
    in_use = frozenset(topic_of(config.prefix, each.schema, each.table) for each in described.relations)
    return RecoveredTables(tables, registrar, described, in_use)


def _read_skip_commands(fencing: Fencing, restart: Lsn) -> SkipCommands:
    """Return people's commands that may still name a row.

    PostgreSQL sends no row from before the slot's restart position again: a command for such a row
    is removed with the first commit.
    """
    pins, given = fencing.recovered.pins, [SkipCommand(*each) for each in fencing.recovered.skips]
    for each in given:
        place = f"row {each.row} of {each.topic} at {format_lsn(Lsn(each.lsn))}"
        if each.lsn < restart:
            _log.warning("a person's command to skip %s is dropped: such a row did not come, and cannot come", place)
            fencing.publisher.remove_skip_command(*each)
        else:
            _log.warning("a person has commanded to skip %s", place)
    lacking = (topic for topic, pin in pins.items() if pin.skipped)
    return SkipCommands((each for each in given if each.lsn >= restart), lacking)


def _forgotten_topics(published: RecoveredTables, recovered: RecoveredState) -> Collection[str]:
    """Return the topics that may have rows, and whose pins may be gone: they start over.

    Taken for a new one, such a topic would get the rows that it has a second time, and nobody knows
    what else the pin said.
    """
    if not recovered.progress_begin:
        return ()
    tables, relations = published.tables, published.described.relations
    topics = tables.pins.topics_of(each for each in relations if tables.is_loadable(each)) - recovered.pins.keys()
    if topics:
        _log.warning(
            "records of the progress topic were deleted, and none is there of %s: these topics start over",
            ", ".join(sorted(topics)),
        )
    return topics


def _make_ready(config: Config, published: RecoveredTables, restarts: Collection[str]) -> None:
    """Take step 4 for the tables: their topics are there and unchanged, or made."""
    tables, relations = published.tables, published.described.relations
    tables.events.require_published(relations, config.publication)
    tables.restart_topics(restarts, relations)
    tables.check(relations)
    tables.announce(relations)


class InterruptibleStep:
    """Runs the steps of one recovery on another thread: `interruptible(step)` returns the step's
    result.

    PostgreSQL's keepalives are answered meanwhile, and a stop is noticed at once. A step that still
    works at a stop is abandoned. An abandoned step does no more harm than a connector that is
    killed a moment later: it closes what it opens after the stop.

    `opened` closes what steps opened; `tend` is called now and then.
    """

    def __init__(self, stop: threading.Event, opened: ExitStack) -> None:
        self._stop = stop
        self._opened = opened
        self.tend: Callable[[], None] = lambda: None

    def __call__(self, step: Callable[[], _T]) -> _T:
        done: Future[_T] = Future()
        left = threading.Event()

        def work() -> None:
            try:
                done.set_result(step())
            except BaseException as error:
                done.set_exception(error)
            if left.is_set():
                self._opened.close()

        threading.Thread(target=work, name="recovery", daemon=True).start()
        while not wait((done,), CHECK_INTERVAL_S).done:
            if self._stop.is_set():
                left.set()
                raise StopRequested
            self.tend()
        return done.result()
