"""Builds the `Run` object from what recovery found. This is recovery's last step.

The step opens clients and waits for none.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import filterfalse

from twofold.bridge import Policy, State, initial
from twofold.config import Config
from twofold.group.frontier_asks import FrontierAsks
from twofold.group.member_commits import MemberCommits
from twofold.kafka.backfill_commands import BackfillCommands
from twofold.kafka.kafka_settings import kafka_settings, names_of, open_registry
from twofold.kafka.progress import RecoveredState
from twofold.kafka.publisher import Publisher
from twofold.kafka.registrar import Registrar
from twofold.kafka.schema_registry import Registry
from twofold.loads.load_merger import LoadMerger
from twofold.loads.load_pool import LoadPool
from twofold.loads.loader import Load
from twofold.loads.reader import Reader
from twofold.loads.watched_topic import EnvelopeReader
from twofold.run.doubt_warnings import InDoubtWarnings
from twofold.run.executor import ActionExecutor, ReportedPositions
from twofold.run.loading import Loading
from twofold.run.run import Run, Timers
from twofold.run.source_settings import selection
from twofold.run.worker import Worker
from twofold.source.identity import SourceFacts
from twofold.source.session import ReplicationSession
from twofold.source.table_descriptions import DescribedTables, JoinedTables
from twofold.source.wal_end import WalEnd
from twofold.spool import Spool
from twofold.stream.bookkeeping_records import ConnectorOrigin, FrontierOrigin, Ledger
from twofold.stream.collector import Collector
from twofold.stream.stream_order import Outcome, PublishedStream, StreamOrder
from twofold.tables.tables import Tables
from twofold_avro.records import Progress
from twofold_common.gids import parser
from twofold_common.positions import Lsn, PreparedIdentity, format_lsn

_log = logging.getLogger(__name__)

CLOSE_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class RecoveredTables:
    """The published tables, with what registers their schemas."""

    tables: Tables
    registrar: Registrar
    described: DescribedTables
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The parts of a run that recovery has opened, read and checked."""

    session: ReplicationSession
    source: SourceFacts
    publisher: Publisher
    left: RecoveredState
    """The state that the last run left in Kafka."""
    progress: Progress
    published: RecoveredTables
    registry: Registry


def assemble(
    config: Config, recovered: Recovered, stop: threading.Event, opened: ExitStack, *, upto: Lsn | None
) -> Run:
    """Return the run that continues where Kafka ends, up to `upto`; `opened` closes its parts."""
    state = _state(config, recovered)
    spool = Spool(config.spool.folder / config.name, memory_max=config.spool.memory, disk_max=config.spool.disk)
    opened.callback(spool.close)
    worker = Worker()
    opened.callback(worker.close, config.kafka.call_timeout + CLOSE_WAIT_S)
    _log.info(
        "recovered: Kafka holds everything up to %s, commit record %d; %d in doubt",
        format_lsn(state.applied_lsn),
        state.sequence,
        len(recovered.left.unresolved),
    )
    order = _stream_order(config, recovered, opened)
    executor = _executor(config, recovered, state, spool, worker, order)
    return Run(
        state=state,
        session=recovered.session,
        collector=_collector(config, state, recovered.published.tables, spool, executor, upto, order),
        executor=executor,
        worker=worker,
        loading=_loading(config, recovered, executor, spool, opened),
        timers=Timers(
            open_within_s=config.prepared.open_within,
            pool=config.prepared.pool,
            hold_s=config.prepared.hold,
            idle_s=config.turn.idle_progress,
            now=time.monotonic(),
        ),
        doubt_warnings=InDoubtWarnings(recovered.source.server.database, config.prepared.doubt_warning),
        limits=config.turn,
        registrar=recovered.published.registrar,
        stop=stop,
        frontiers=_frontier_asks(config, opened) if config.group.name else None,
    )


def _state(config: Config, recovered: Recovered) -> State:
    """Return the bridge's first state."""
    progress, (slot, server, _) = recovered.progress, recovered.source
    ledger = {PreparedIdentity(entry.xid, entry.gid): entry for entry in recovered.left.unresolved.values()}
    to_reload, names = recovered.left.to_reload, names_of(config)
    # The refusal has said that no load brings events and messages.
    touched = {each: {*filterfalse(names.is_loaded_from_none, entry.topics)} for each, entry in ledger.items()}
    reloaded = frozenset(identity for identity, topics in touched.items() if topics and to_reload >= topics)
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


def _executor(
    config: Config, recovered: Recovered, state: State, spool: Spool, worker: Worker, order: StreamOrder
) -> ActionExecutor:
    tables, publisher = recovered.published.tables, recovered.publisher
    envelopes = EnvelopeReader(recovered.registry.schema)
    origin = ConnectorOrigin(
        recovered.source.server,
        recovered.source.slot.name,
        config.prepared.pool,
        recovered.progress.stream_id,
        selection(config, recovered.source.server.version_num),
        order.last_up_to,
    )
    group = config.group.name
    return ActionExecutor(
        worker=worker,
        publisher=publisher,
        merger=LoadMerger(publisher, pins=tables.pins.all, envelopes=envelopes, spool=spool),
        tables=tables,
        origin=origin,
        reported=ReportedPositions(state.write, state.flush),
        ledger=Ledger(recovered.left.unresolved.values(), recovered.left.ended),
        tend=recovered.session.tend,
        frontiers=FrontierOrigin(group, config.prepared.gid_patterns) if group else None,
    )


def _collector(
    config: Config,
    state: State,
    tables: Tables,
    spool: Spool,
    executor: ActionExecutor,
    upto: Lsn | None,
    order: StreamOrder,
) -> Collector:
    """Return the collector.

    The collector uses the first state of the run: where the run resumed, and what the ledger had
    then, do not change during the run.
    """
    return Collector(
        tables=tables,
        spool=spool,
        is_applied=state.is_applied,
        is_applied_upto=state.is_applied_upto,
        knows=lambda identity: identity in state.ledger or executor.keeps(identity),
        parks=config.prepared.parks,
        open_within_s=0.0 if config.prepared.synchronous else config.prepared.open_within,
        pool=config.prepared.pool,
        parse_gid=parser(config.prepared.gid_patterns),
        upto=upto,
        order=order,
    )


def _stream_order(config: Config, recovered: Recovered, opened: ExitStack) -> StreamOrder:
    """Return the order that the stream must keep.

    For a standby the end of the WAL is not asked, because the primary may not be reachable.
    """
    server = recovered.source.server
    if server.is_standby:
        return StreamOrder(server.xlogpos, published=_published(config, recovered))
    wal_end = WalEnd(config.conninfo)
    opened.callback(wal_end.close)
    return StreamOrder(server.xlogpos, wal_end.end, published=_published(config, recovered))


def _published(config: Config, recovered: Recovered) -> PublishedStream | None:
    """Return the part of the WAL that Kafka has, if the server must send the same again.

    On another timeline the server's history has proved it, and a promoted PostgreSQL 17 may leave
    out an outcome.
    """
    progress, (slot, server, _) = recovered.progress, recovered.source
    if (server.timeline, selection(config, server.version_num)) != (progress.timeline, progress.selection):
        return None
    if progress.outcome_lsn is None or progress.outcome_at is None:
        return None
    last = Outcome(Lsn(progress.outcome_lsn), progress.outcome_at)
    return PublishedStream(Lsn(progress.applied_lsn), last, comes_again=slot.confirmed_flush < last.end_lsn)


def _loading(
    config: Config, recovered: Recovered, executor: ActionExecutor, spool: Spool, opened: ExitStack
) -> Loading:
    left, published = recovered.left, recovered.published
    commands = BackfillCommands(kafka_settings(config), names_of(config), found=left.commands, offset=left.progress_end)
    opened.callback(commands.close)
    joined_tables = JoinedTables(config.conninfo, config.publication, config.backfill.notice, found=published.described)
    opened.callback(joined_tables.close)
    loads = _loads(config, executor, spool, opened)
    return Loading(loads, published.tables, executor, commands, joined_tables, reload_up_to=config.source.reload_up_to)


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


def _frontier_asks(config: Config, opened: ExitStack) -> FrontierAsks:
    def follow() -> MemberCommits:
        return MemberCommits(kafka_settings(config), open_registry(config), config.group.members)

    asks = FrontierAsks(config.prefix, follow, WalEnd(config.conninfo))
    opened.callback(asks.close)
    return asks
