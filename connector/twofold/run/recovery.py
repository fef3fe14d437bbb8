"""Recovery: the one way into a run, after a start, a restart, a failover and every error.

Five steps, in this order:

1. Take the slot: its holder is the one connector. Keepalives are answered from here on.

2. Fence every predecessor, and 3. read what it left (`sink.fencing`).

4. Check that slot, server, progress and commit records agree (`inspect.checks`).

5. Stream.

A step that fails closes what earlier steps opened. A stop ends recovery at once (`StopRequested`).
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace

from twofold import failpoints
from twofold.bridge import Policy, State, initial
from twofold.config import Config
from twofold.errors import Unreachable, UsageError
from twofold.gids import parser
from twofold.group.frontier_asks import FrontierAsks
from twofold.group.member_commits import MemberCommits, require_members
from twofold.inspect.checks import check, slot_gone
from twofold.inspect.status_report import read_progress_if_any
from twofold.kafka.backfill_commands import BackfillCommands
from twofold.kafka.fencing import Fencing, fence
from twofold.kafka.kafka_settings import bookkeeping, kafka_settings, names_of, registry_settings, topic_policy
from twofold.kafka.registrar import Registrar
from twofold.kafka.schema_registry import Registry, register_fixed
from twofold.kafka.topics import Topics
from twofold.kafka.watch import Watch
from twofold.loads.envelope_reader import EnvelopeReader
from twofold.loads.gate import Gate
from twofold.loads.load_pool import LoadPool
from twofold.loads.loader import Load
from twofold.loads.reader import Reader
from twofold.run import last_refusal
from twofold.run.doubt_warnings import InDoubtWarnings
from twofold.run.executor import ActionExecutor, ReportedPositions
from twofold.run.interruptible import InterruptibleStep
from twofold.run.loading import Loading
from twofold.run.lookback import LookbackWindow, check_recent_commits
from twofold.run.run import Run
from twofold.run.source_settings import make_tables, require_fit_standby
from twofold.run.timers import Timers
from twofold.run.worker import Worker
from twofold.source import ddl_messages, identity, readiness
from twofold.source.catalog import Catalog
from twofold.source.diagnosis import SlotGone
from twofold.source.flaws import refusal_of
from twofold.source.session import ReplicationSession, SessionOptions
from twofold.source.table_descriptions import describe_published
from twofold.source.wal_end import WalEnd
from twofold.spool import Spool
from twofold.stream.bookkeeping_records import ConnectorOrigin, FrontierOrigin, Ledger
from twofold.stream.collector import Collector
from twofold.stream.stream_order import StreamOrder
from twofold.tables.column_policy import ColumnPolicy
from twofold.tables.data_policy import DataPolicy
from twofold.tables.joined_tables import JoinedTables
from twofold.tables.tables import Tables
from twofold_avro.names import topic_of
from twofold_avro.records import Pin, Progress
from twofold_common.positions import Lsn, PreparedIdentity, format_lsn

_log = logging.getLogger(__name__)

CLOSE_WAIT_S = 5.0


def recover(
    config: Config,
    stop: threading.Event,
    opened: ExitStack,
    *,
    patience: int = 1,
    retry_factor: int = 1,
    upto: Lsn | None = None,
    lookback: LookbackWindow | None = None,
    choose_restarts: Callable[[Mapping[str, Pin]], Collection[str]] = lambda _: (),
) -> Run:
    """Take all steps up to the last; `opened` closes what they opened.

    Kafka transactions may take `patience` times as long as configured, and their ends
    `retry_factor` times as long as usual. The run ends before `upto`.
    `lookback` says how much of the recent writes is compared with the commit records before
    anything is sent; None compares nothing. `choose_restarts` says, by the pins in Kafka, which
    topics are restarted.
    """
    interruptible = InterruptibleStep(stop, opened)
    session = interruptible(lambda: _take_slot_or_tell(config, opened))
    interruptible.tend = session.tend
    failpoints.hit("after_start_replication")
    registry = Registry(registry_settings(config))
    topics = Topics(kafka_settings(config), topic_policy(config))
    slot, server, history = interruptible(lambda: read_source_facts(config))
    fencing = interruptible(
        lambda: _fence(config, registry, topics, opened, (patience, retry_factor), slot.confirmed_flush)
    )
    recovered = fencing.recovered
    _note_known_bugs(server.version_num)
    if refusal := last_refusal.recall(config, recovered):
        _log.warning("the last run ended by itself, %s", refusal)
    if server.is_standby:
        interruptible(lambda: require_fit_standby(config))
    progress = check(recovered, slot, server, history, prefix=config.prefix, two_phase=config.source.two_phase)
    failpoints.hit("after_checks")

    tables, registrar = interruptible(
        lambda: _tables(config, server.database, recovered.pins, registry, topics, opened)
    )
    described = interruptible(lambda: describe_published(config.conninfo, config.publication))
    if described.flaws:
        raise refusal_of(described.flaws)
    published = described.relations
    in_use = {topic_of(config.prefix, each.schema, each.table) for each in published}
    registrar.ask_ahead((topic, pin) for topic, pin in recovered.pins.items() if topic in in_use)
    if lookback is not None:
        interruptible(functools.partial(check_recent_commits, config, registry, recovered, lookback, in_use))
    tables.events.require_published(published, config.publication)
    tables.restart_topics({*recovered.to_reload, *choose_restarts(recovered.pins)}, published)
    interruptible(lambda: tables.check(published))
    interruptible(lambda: tables.announce(published))
    state = _state(config, fencing, progress, slot, server)
    spool = Spool(config.spool.folder / config.name, memory_max=config.spool.memory, disk_max=config.spool.disk)
    opened.callback(spool.close)
    worker = Worker()
    opened.callback(worker.close, config.kafka.call_timeout + CLOSE_WAIT_S)
    _log.info(
        "recovered: Kafka holds everything up to %s, commit record %d; %d in doubt",
        format_lsn(state.applied_lsn),
        state.sequence,
        len(recovered.unresolved),
    )
    envelopes = EnvelopeReader(registry.schema)
    gate = Gate(fencing.publisher, pins=tables.pins.all, envelopes=envelopes, spool=spool)
    commands = BackfillCommands(
        kafka_settings(config), names_of(config), found=recovered.commands, offset=recovered.progress_end
    )
    opened.callback(commands.close)
    joined_tables = JoinedTables(config.conninfo, config.publication, config.backfill.notice, found=described)
    opened.callback(joined_tables.close)
    executor = ActionExecutor(
        worker=worker,
        publisher=fencing.publisher,
        gate=gate,
        tables=tables,
        origin=ConnectorOrigin(server, slot.name, config.prepared.pool, progress.stream_id),
        reported=ReportedPositions(state.write, state.flush),
        ledger=Ledger(recovered.unresolved.values(), recovered.ended),
        tend=session.tend,
        frontiers=FrontierOrigin(config.group.name, parser(config.prepared.gid_patterns))
        if config.group.name
        else None,
    )
    return Run(
        state=state,
        session=session,
        collector=_collector(config, state, tables, spool, executor, upto, _stream_order(config, server, opened)),
        executor=executor,
        worker=worker,
        loading=Loading(
            _loads(config, executor, spool, opened),
            tables,
            executor,
            commands,
            joined_tables,
            reload_up_to=config.source.reload_up_to,
        ),
        timers=Timers(
            open_within_s=config.prepared.open_within,
            pool=config.prepared.pool,
            hold_s=config.prepared.hold,
            idle_s=config.turn.idle_progress,
            now=time.monotonic(),
        ),
        doubt_warnings=InDoubtWarnings(server.database, config.prepared.doubt_warning),
        limits=config.turn,
        registrar=registrar,
        stop=stop,
        frontiers=_frontier_asks(config, opened) if config.group.name else None,
    )


def _tables(
    config: Config, database: str, pins: dict[str, Pin], registry: Registry, topics: Topics, opened: ExitStack
) -> tuple[Tables, Registrar]:
    """Return the tables as the pins in Kafka have them, and what registers their schemas."""
    rules, catalog = DataPolicy(config), Catalog(config.conninfo)
    opened.callback(catalog.close)
    registrar = Registrar(registry, topics, config.prefix, rules.require_rules)
    opened.callback(registrar.close)
    policy = ColumnPolicy(rules, catalog, config.publication)
    is_told = config.source.ddl_messages and ddl_messages.flaws(config.conninfo) == ()
    tables = make_tables(config, database, pins, catalog=catalog, registrar=registrar, policy=policy, is_told=is_told)
    return tables, registrar


def _collector(
    config: Config,
    state: State,
    tables: Tables,
    spool: Spool,
    executor: ActionExecutor,
    upto: Lsn | None,
    order: StreamOrder,
) -> Collector:
    """Return what makes whole transactions of the stream.

    It asks the state in which the run begins: where a run resumed, and what the ledger had then,
    does not change in the run.
    """
    return Collector(
        tables=tables,
        spool=spool,
        skips=state.skips,
        has=state.has,
        knows=lambda identity: identity in state.ledger or executor.keeps(identity),
        parks=config.prepared.parks,
        hold_s=0.0 if config.prepared.synchronous else config.prepared.open_within,
        pool=config.prepared.pool,
        parse_gid=parser(config.prepared.gid_patterns),
        upto=upto,
        order=order,
    )


def _stream_order(config: Config, server: identity.ServerIdentity, opened: ExitStack) -> StreamOrder:
    """Return the order that the stream must keep.

    A standby's primary may not be there to ask.
    """
    if server.is_standby:
        return StreamOrder(server.xlogpos)
    wal_end = WalEnd(config.conninfo)
    opened.callback(wal_end.close)
    return StreamOrder(server.xlogpos, wal_end.end)


def _frontier_asks(config: Config, opened: ExitStack) -> FrontierAsks:
    def follow() -> MemberCommits:
        return MemberCommits(kafka_settings(config), Registry(registry_settings(config)), config.group.members)

    asks = FrontierAsks(config.prefix, follow, WalEnd(config.conninfo))
    opened.callback(asks.close)
    return asks


def _loads(config: Config, executor: ActionExecutor, spool: Spool, opened: ExitStack) -> LoadPool:
    def reader(load: Load) -> Reader:
        return Reader(
            config.conninfo,
            config.publication,
            topic=load.topic,
            schema=load.schema,
            table=load.table,
            chunk_rows=config.backfill.chunk_rows,
            chunk_bytes=config.backfill.chunk_bytes,
            spool=spool,
        )

    loads = LoadPool(config.backfill, make_reader=reader, delivered=executor.delivered)
    opened.callback(loads.close)
    return loads


def _take_slot_or_tell(config: Config, opened: ExitStack) -> ReplicationSession:
    """Take step 1; where the slot is gone, Kafka knows whether `init` or a person has to act."""
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
        messages=config.source.messages or config.source.ddl_messages,
    )
    session = ReplicationSession(
        config.conninfo,
        slot=config.slot,
        publications=[config.publication],
        application_name=config.name,
        options=options,
    )
    session.open()
    opened.callback(session.close)
    return session


def _fence(
    config: Config,
    registry: Registry,
    topics: Topics,
    opened: ExitStack,
    allowed: tuple[int, int],
    confirmed: Lsn,
) -> Fencing:
    patience, retry_factor = allowed
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
    longest_ms = int(min(bound_s, config.kafka.transaction_timeout * patience) * 1000)
    settings = replace(settings, transaction_timeout_ms=longest_ms, retry_factor=retry_factor)
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


@functools.cache
def _note_known_bugs(version: int) -> None:
    """Log the server's known bugs: once in the process's life, and again for another server."""
    for finding in readiness.known_bugs(version):
        _log.warning("%s", finding)


def read_source_facts(
    config: Config,
) -> tuple[identity.SlotState, identity.ServerIdentity, tuple[identity.TimelineSwitch, ...]]:
    """Return the facts of the source that step 4 compares."""
    slot = identity.slot_state(config.conninfo, config.slot)
    if slot is None:  # dropped within this moment: the next try finds out what that means
        raise Unreachable(f"PostgreSQL does not know slot {config.slot} any more")
    server = identity.identify(config.conninfo)
    return slot, server, identity.timeline_history(config.conninfo, server.timeline)


def _state(
    config: Config, fencing: Fencing, progress: Progress, slot: identity.SlotState, server: identity.ServerIdentity
) -> State:
    recovered = fencing.recovered
    ledger = {PreparedIdentity(entry.xid, entry.gid): entry for entry in recovered.unresolved.values()}
    to_reload = recovered.to_reload
    reloaded = frozenset(
        identity for identity, entry in ledger.items() if entry.topics and to_reload >= {*entry.topics}
    )
    promoted = server.timeline != progress.timeline
    policy = Policy(
        synchronous=config.prepared.synchronous,
        open_at_once=config.prepared.open_within == 0,
        may_lack_prepares=promoted and server.version_num // 10000 == 17 and len(reloaded) < len(ledger),
    )
    return initial(
        applied_lsn=Lsn(progress.applied_lsn),
        confirmed_lsn=slot.confirmed_flush,
        sequence=progress.sequence,
        pool=config.prepared.pool,
        in_doubt=frozenset(ledger),
        reloaded=reloaded,
        policy=policy,
    )
