"""One run, from recovery's end to its own: the turn, again and again.

    read -> collect whole transactions -> the bridge decides -> the worker publishes and commits
    -> positions are reported

This thread reads, encodes and asks the bridge; the worker's thread speaks to Kafka. While Kafka
commits, the next turn is read. The run ends at a stop or by an exception: everything in memory is
dropped, and recovery starts from the state of Kafka and PostgreSQL.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from twofold import failpoints
from twofold.bridge import Event, State, actions, events, frontier, step
from twofold.config import TurnConfig
from twofold.errors import MalformedMessage, Refused, RunEnded
from twofold.group.frontier_asks import FrontierAsks
from twofold.kafka.record_sizes import RecordTooLarge
from twofold.kafka.registrar import Registrar
from twofold.run.doubt_warnings import InDoubtWarnings
from twofold.run.executor import ActionExecutor, ReportedPositions
from twofold.run.loading import Loading
from twofold.run.observer import BackfillProgress, Observer
from twofold.run.worker import Worker
from twofold.source.decoder import described_relations
from twofold.source.session import Keepalive, ReplicationSession
from twofold.stream.collector import Collector
from twofold.stream.gathered_outcomes import OpeningDelay
from twofold.stream.source_transaction import CollectedEvent
from twofold.tables.topic_mismatch import TopicRestart
from twofold_avro.errors import MalformedRow
from twofold_common.positions import Lsn, PreparedIdentity, format_lsn

_log = logging.getLogger(__name__)

READ_ROWS_MAX = 5_000
READ_BYTES_MAX = 4 << 20
ANSWER_WAIT_S = 0.001
"""The longest wait for an answer of Kafka before the socket is read again."""
STOP_CHECK_S = 0.5
"""How soon an idle run notices a stop."""
ROWS_FACTOR = 4
"""While Kafka commits a turn, the next turn may have this many times `turn.rows`."""
LOAD_CHECK_S = 0.005
"""How soon an idle run takes the offers of a backfill's readers."""
FRONTIER_CHECK_S = 0.05
"""How soon an idle run of a source group takes the answers that a frontier needs."""
OUTCOMES_BYTES = 1 << 20
"""The most bytes of outcomes in one commit record; beyond it the turn is full. One read adds at
most `READ_ROWS_MAX` outcomes, and all of them fit into `COMMIT_RECORD_BYTES`.
"""
STOP_WAIT_S = 10.0
"""How long a stopping run waits for the jobs that it has given to the worker."""
OPEN_AFTER_S = 0.01
"""No prepared transaction is opened before this time is over, because most outcomes follow their
prepare at once.

A Kafka transaction for each would cost more than everything else that is done for it, and show
nothing sooner.
"""


class StopRequested(Exception):
    """A stop was requested during recovery, or while actions were being executed."""


class RefusedBehind(RunEnded):
    """A refusal, or a topic restart, behind whole transactions that are not published.

    The next run publishes these transactions, and then raises the refusal. Otherwise the
    transactions would be sent again at each start, and refused once the repair is done: rows with a
    table's old key behind the new key.
    """

    def __init__(self, refusal: Refused | TopicRestart, at: Lsn) -> None:
        what = refusal.what if isinstance(refusal, Refused) else refusal
        super().__init__(f"what lies before {format_lsn(at)} is published first, for there {what}")
        self.refusal = refusal
        self.at = at


class Run:
    """One run. Recovery makes it; it is used once."""

    def __init__(
        self,
        *,
        state: State,
        session: ReplicationSession,
        collector: Collector,
        executor: ActionExecutor,
        worker: Worker,
        loading: Loading,
        timers: Timers,
        doubt_warnings: InDoubtWarnings,
        limits: TurnConfig,
        registrar: Registrar,
        stop: threading.Event,
        frontiers: FrontierAsks | None = None,
    ) -> None:
        self.state = state
        self._session = session
        self._collector = collector
        self._executor = executor
        self._worker = worker
        self._loading = loading
        self._timers = timers
        self._doubt_warnings = doubt_warnings
        self._limits = limits
        self._registrar = registrar
        self._stop = stop
        self._frontiers = frontiers
        """None: the connector is in no source group."""
        self._executing = False
        """Whether actions of a step are being executed: no other step may come between them."""
        self._observer = Observer()
        self._shown: tuple[BackfillProgress, ...] = ()
        self._batch_since: float | None = None
        self._reported: ReportedPositions | None = None

    @property
    def stream_id(self) -> str:
        return self._executor.stream_id

    def go(self, observer: Observer) -> None:
        """Run until a stop; then commit and report what is gathered."""
        self._observer = observer
        observer.tables_known(self._executor.pins)
        self._executor.on_published = observer.published
        self._executor.begin()
        self._registrar.begin(self._while_waiting)
        try:
            self._turns()
        except StopRequested:
            if self._executing:  # some actions were not executed: nothing may be committed
                raise
        except MalformedRow as error:  # of a backfill's reader
            raise MalformedMessage(error.what, offset=error.offset) from error
        except RecordTooLarge as refusal:
            raise self._executor.offer_skip(refusal) from refusal
        self._finish()

    def _turns(self) -> None:
        drained = False
        while not self._stop.is_set() and not self._collector.reached:
            now = time.monotonic()
            self._observer.turned()
            busy = self._worker.busy  # before the answers are taken: one that comes behind them is not overslept
            self._step_all(self._worker.answers(ANSWER_WAIT_S if drained and busy else 0))
            self._step_all(self._timers.due(now, drained=drained, in_doubt=len(self.state.prepared)))
            if self._frontiers is not None:
                self._step_all(self._frontiers.take_due(self.state))
            self._report()
            self._doubt_warnings.warn_if_due(self._executor.prepared, self.state.read_lsn, time.time())
            if self.state.must_wait:
                self._session.tend()
                self._step_all(self._worker.answers(ANSWER_WAIT_S))
                continue
            if not self._collector.half_prepared:
                self._load()
            drained = self._read(now, drained=drained, busy=busy)

    def _load(self) -> None:
        """Take at most one chunk of a load between two reads: the stream goes first."""
        self._step_all(self._loading.turn())
        if due := self._loading.due(self.state):
            self._executor.stage_due(due)
            self._step_bridge(events.ChunkDue())
        if (progress := self._loading.progress()) != self._shown:
            self._shown = progress
            self._observer.loading(progress)

    def _read(self, now: float, *, drained: bool, busy: bool = False) -> bool:
        """Read the socket once. Return True if nothing more waits there, and the bridge knows that.

        `busy`: the worker may have answered since its answers were taken.
        """
        longest_s = LOAD_CHECK_S if self._loading.busy else FRONTIER_CHECK_S if self._frontiers else STOP_CHECK_S
        wait_s = min(longest_s, self._wait_s(now)) if drained and not (busy or self._worker.busy) else 0
        received = self._session.read(rows_max=READ_ROWS_MAX, bytes_max=READ_BYTES_MAX, wait_s=wait_s)
        if not received:
            self._announce_for_frontier()
            for collected in self._collector.announce_drained(time.time_ns() // 1_000_000, len(self.state.prepared)):
                self._take_collected(collected)
                drained = False
            if not drained:
                self._step_bridge(events.Drained())
            return True
        failpoints.hit("after_read")
        if self._registrar.is_asking_ahead:
            payloads = (each[1] for each in received if not isinstance(each, Keepalive))
            self._registrar.ask_first(described_relations(payloads))
        try:
            for collected in self._collector.collect(received, ts_ms=time.time_ns() // 1_000_000):
                self._take_collected(collected)
        except (Refused, TopicRestart) as refusal:
            if refusal is self._worker.failure:  # of an earlier batch, which no later run publishes either
                raise
            is_behind = self._collector.gathered or self.state.batch is not None or self.state.unanswered
            if is_behind and self._collector.at:  # without any commit there is nothing to publish first
                raise RefusedBehind(refusal, self._collector.at) from refusal
            raise
        failpoints.hit("after_decode")
        self._announce_for_frontier()
        self._end_turn_if_full()
        return False

    def _wait_s(self, now: float) -> float:
        """Return the time until something is due."""
        in_doubt = len(self.state.prepared)
        return min(self._timers.wait_s(now, in_doubt), self._collector.wait_s(time.time_ns() // 1_000_000, in_doubt))

    def _announce_for_frontier(self) -> None:
        """Announce all unannounced transactions: a frontier that is asked for waits for them."""
        if self._frontiers is not None and frontier.has_passed(self.state):
            for collected in self._collector.announce(time.time_ns() // 1_000_000):
                self._take_collected(collected)

    def _while_waiting(self) -> None:
        """Do what cannot wait while the registrar waits for a server.

        Between two events of the collector answers and due times may come, and everything before
        the wait is committed.
        """
        self._session.tend()
        self._observer.turned()
        if self._stop.is_set():
            raise StopRequested
        if self._executing:
            return
        now = time.monotonic()
        self._step_all(self._worker.answers())
        self._step_all(self._timers.due(now, drained=True, in_doubt=len(self.state.prepared)))
        self._step_bridge(events.Drained())
        self._report()

    def _take_collected(self, collected: CollectedEvent) -> None:
        match collected.event:
            case events.CommitPreparedRead(identity, commit_lsn) if not self.state.is_applied(commit_lsn):
                self._executor.register_committed(identity)
            case _:
                pass
        if collected.batch is not None:
            self._executor.produce(collected.batch)
        if (transaction := collected.transaction) is not None:
            if transaction.prepare is None:
                self._executor.produce_waited(transaction)
            else:
                self._executor.stage(transaction)
                failpoints.hit("after_staging")
        self._executor.resolve(collected.outcomes)
        if collected.tables or collected.ddl:
            self._executor.note_committed(collected.tables, collected.ddl)
        self._step_bridge(collected.event, collected.at_us)
        if isinstance(collected.event, events.PrepareRead):
            since = time.monotonic() - collected.waited_ms / 1000
            self._timers.staged(collected.event.identity, since, len(self.state.prepared))

    def _end_turn_if_full(self) -> None:
        now = time.monotonic()
        if self.state.batch is None:
            self._batch_since = None
            return
        self._batch_since = self._batch_since or now
        limits, rows = self._limits, self._executor.batch_records
        if self.state.unanswered:  # Kafka is the slower one: larger batches cost it less, and it could not take one yet
            full = rows >= limits.rows * ROWS_FACTOR
        else:
            full = rows >= limits.rows or now - self._batch_since >= limits.time
        outcomes_full = self._executor.batch_outcome_bytes >= OUTCOMES_BYTES
        if full or outcomes_full or self._executor.batch_bytes >= limits.bytes:
            self._step_bridge(events.TurnFull())

    def _step_all(self, happened: Iterable[Event]) -> None:
        for event in happened:
            self._step_bridge(event)

    def _step_bridge(self, event: Event, at_us: int = 0) -> None:
        self.state, decided = step(self.state, event)
        self._observer.stepped(event, decided, self.state, at_us)
        match event:
            case events.PreparedOpened(identity):
                begun = self._executor.begun(identity)
                if self.state.find(identity):
                    self._timers.opened(identity, begun)
            case events.CommitPreparedRead(identity) | events.RollbackPreparedRead(identity):
                self._timers.ended(identity)
            case events.PlainRead() | events.MessageRead():
                self._executor.joins(at_us)
            case _:
                pass
        self._executing = True
        for action in decided:
            if isinstance(action, actions.CommitMain):
                self._batch_since = None
            self._executor.execute(action, at_us)
        self._executing = False

    def _report(self) -> None:
        if self._executor.positions != self._reported:
            failpoints.hit("before_feedback")
            self._reported = self._executor.positions
            self._session.report(write=self._reported.write, flush=self._reported.flush)
            failpoints.hit("after_feedback")

    def _finish(self) -> None:
        """Stop cleanly: commit what is gathered unless a transaction is half read, then report.

        Everything else is left for the next run.
        """
        deadline = time.monotonic() + STOP_WAIT_S
        if not self.state.unfinished:
            self._step_bridge(events.TurnFull())
        while (self.state.unanswered or self._worker.busy) and time.monotonic() < deadline:
            self._session.tend()
            self._step_all(self._worker.answers(ANSWER_WAIT_S))
        self._report()
        _log.info("stopped")


class Timers:
    """The clock of the run: when a staged transaction must be opened, an open one parked, and an
    idle position brought up to date.

    The bridge knows no time; the run turns time into the bridge's events. Deadlines are monotonic.
    The delay of a kind is constant, so transactions fall due in the order in which they came. A
    transaction whose outcome was read has no more events; the bridge would ignore them, at the
    price of a step.

    `in_doubt`: the number of transactions in doubt, as the bridge has it.
    """

    def __init__(self, *, open_within_s: float, hold_s: float, idle_s: float, pool: int, now: float) -> None:
        self._delay = OpeningDelay(open_within_s, pool)
        self._hold_s = hold_s
        self._idle_s = idle_s
        self._idle_at = now + idle_s
        self._soonest: OrderedDict[PreparedIdentity, float] = OrderedDict()
        self._staged: OrderedDict[PreparedIdentity, float] = OrderedDict()
        self._opened: OrderedDict[PreparedIdentity, float] = OrderedDict()

    def staged(self, identity: PreparedIdentity, now: float, in_doubt: int) -> None:
        if self._delay.open_within_s > OPEN_AFTER_S and not self._delay.exceeds_pool(in_doubt):
            self._soonest[identity] = now + OPEN_AFTER_S
        self._staged[identity] = now

    def opened(self, identity: PreparedIdentity, begun: float) -> None:
        """Note when the transaction's Kafka transaction began."""
        self._opened[identity] = begun + self._hold_s

    def ended(self, identity: PreparedIdentity) -> None:
        """Note that the transaction's outcome was read."""
        for deadlines in (self._soonest, self._staged, self._opened):
            deadlines.pop(identity, None)

    def due(self, now: float, *, drained: bool, in_doubt: int) -> list[Event]:
        """Return the events whose time has come.

        `drained`: nothing waits to be read, so a transaction is opened after `OPEN_AFTER_S`.
        """
        due: list[Event] = []
        if drained:
            due += map(events.OpenDue, self._past(self._soonest, now))
        due += map(events.OpenDue, self._past(self._staged, now - self._delay.wait_s(in_doubt)))
        held = f"open for {self._hold_s:g} s (prepared.hold)"
        due += (events.ParkDue(identity, held) for identity in self._past(self._opened, now))
        if now >= self._idle_at:
            self._idle_at = now + self._idle_s
            due.append(events.IdleDue())
        return due

    def wait_s(self, now: float, in_doubt: int) -> float:
        """Return the time until the next deadline."""
        kinds = ((self._soonest, 0.0), (self._staged, self._delay.wait_s(in_doubt)), (self._opened, 0.0))
        firsts = (next(iter(deadlines.values())) + more_s for deadlines, more_s in kinds if deadlines)
        return max(0.0, min([self._idle_at, *firsts]) - now)

    @staticmethod
    def _past(deadlines: OrderedDict[PreparedIdentity, float], now: float) -> Iterator[PreparedIdentity]:
        """Remove and yield the transactions whose deadline is over."""
        while deadlines and next(iter(deadlines.values())) <= now:
            yield deadlines.popitem(last=False)[0]
