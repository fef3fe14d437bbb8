"""What a running connector has done, as metrics and the status page show it: counts, positions,
tables, prepared transactions, and a journal.

It is the runner's Observer, called a few times a turn, and is read by other threads; a lock keeps
the two apart, and no call waits for a server. Memory is bounded. A kill -9 loses all of it: it
describes this process, and whatever must outlive the process is in Kafka and PostgreSQL.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from twofold.bridge import Event, State, actions, events
from twofold.bridge.state import Phase as PreparedPhase
from twofold.bridge.state import Prepared
from twofold.errors import Refused, TwofoldError
from twofold.gids import describe
from twofold.ops.in_doubt_log import InDoubtLog, InDoubtSpan, InDoubtState, InDoubtView
from twofold.ops.journal import Journal, JournalLine
from twofold.ops.table_counts import TableCount, TableCounts
from twofold.runner.observer import BackfillProgress
from twofold_avro.records import Commit, Pin
from twofold_common.positions import NO_LSN, Lsn, PreparedIdentity

Phase = Literal["starting", "recovering", "standby", "running", "waiting", "refused", "failed", "stopped"]
Kind = Literal["main", "prepared", "progress", "backfill"]

LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Outage:
    """What runs and recoveries have failed of since the last recovery that succeeded."""

    since: float
    error: str
    """The class of the last error."""
    text: str


@dataclass(slots=True)
class Totals:
    """Counts since the process began; they only grow."""

    rows: int = 0
    transactions: int = 0
    commits: Counter[Kind] = field(default_factory=Counter)
    prepared: Counter[str] = field(default_factory=Counter)
    recoveries: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    latency_s: float = 0.0
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))


@dataclass(frozen=True, slots=True)
class Positions:
    """How far each part of the path has come; 0 is not known."""

    read: Lsn = NO_LSN
    applied: Lsn = NO_LSN
    flushed: Lsn = NO_LSN
    sequence: int = 0
    waiting: int = 0
    """Transactions that were read and are not yet committed in Kafka."""

    @property
    def handled(self) -> Lsn:
        """Everything up to here that must go to Kafka is there: with nothing waiting, all that was
        read.
        """
        return self.applied if self.waiting else max(self.applied, self.read)


@dataclass(frozen=True, slots=True)
class ActivityView:
    """All of it at one moment."""

    phase: Phase
    since: float
    detail: str
    started_at: float
    last_turn_s: float | None
    """Seconds since the loop came round; None if it does not run."""
    positions: Positions
    totals: Totals
    in_doubt: InDoubtView
    backfills: tuple[BackfillProgress, ...]
    journal: tuple[JournalLine, ...]
    latency_max_s: float
    """The worst since `view` was called with `reset_peak`."""
    outage: Outage | None
    unanswered_since: float | None
    """When the oldest commit was given to Kafka that it has not answered."""


@dataclass(frozen=True, slots=True)
class _Flight:
    kind: Kind
    transactions: int
    rows: int
    oldest_us: int
    given_at: float


class Activity:
    """One a process. `clock` gives the time of day."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._phase: Phase = "starting"
        self._since = self._started_at = clock()
        self._detail = ""
        self._turned = 0.0
        self._state: State | None = None
        self._totals = Totals()
        self._flights: deque[_Flight] = deque()
        self._oldest_us = 0
        self._seen: tuple[Prepared, ...] = ()
        self._due: tuple[PreparedIdentity, ...] = ()
        self._in_doubt = InDoubtLog()
        self._tables = TableCounts()
        self._backfills: tuple[BackfillProgress, ...] = ()
        self._journal = Journal()
        self._outage: Outage | None = None
        self._latency_max_s = 0.0

    def recovering(self) -> None:
        with self._lock:
            self._enter("recovering", "")

    def standing_by(self, why: str) -> None:
        with self._lock:
            self._enter("standby", why)
            self._journal.write(self._clock(), "standby", "standing by", why)

    def recovered(self, state: State) -> None:
        with self._lock:
            self._turned = time.monotonic()
            self._flights.clear()
            self._oldest_us = 0
            self._in_doubt.clear()
            self._backfills = ()
            self._seen, self._due = (), ()
            self._state = state
            self._totals.recoveries += 1
            self._outage = None
            self._enter("running", "")
            self._journal.write(self._clock(), "recovered", "recovered", f"commit record {state.sequence}")

    def tables_known(self, pins: Mapping[str, Pin]) -> None:
        with self._lock:
            self._tables.know(pins)

    def published(self, commit: Commit | None, pins: Mapping[str, Pin]) -> None:
        with self._lock:
            now = self._clock()
            for change in self._tables.repin(pins):
                self._journal.write(now, "load" if change.is_load else "table", change.what, change.text)
            if commit is not None:
                self._tables.count(commit.ranges, now)

    def turned(self) -> None:
        self._turned = time.monotonic()

    def stepped(self, event: Event, decided: Sequence[actions.Action], state: State, at_us: int) -> None:
        with self._lock:
            match event:
                case events.MainCommitted() | events.PreparedCommitted():
                    self._committed()
                case events.PlainRead() | events.MessageRead():
                    self._oldest_us = self._oldest_us or at_us
                case _:
                    pass
            for action in decided:
                self._decided(action, at_us)
            self._follow(event, decided, state)
            self._state = state

    def loading(self, backfills: tuple[BackfillProgress, ...]) -> None:
        with self._lock:
            self._backfills = backfills

    def ended(self, error: TwofoldError, wait_s: float) -> None:
        with self._lock:
            self._totals.ends[type(error).__name__] += 1
            name, now = type(error).__name__, self._clock()
            self._outage = Outage(self._outage.since if self._outage else self._silent_since(now), name, str(error))
            self._enter("waiting", str(error))
            self._tables.blame(str(error))
            self._journal.write(
                now, "ended", "the run ended", f"{error}\nThe next recovery begins in {wait_s:.1f} s.", name
            )

    def given_up(self, error: TwofoldError) -> None:
        """Note that the process ends with this error: a person has to act."""
        with self._lock:
            is_refused, name = isinstance(error, Refused), type(error).__name__
            self._totals.ends[name] += 1
            self._enter("refused" if is_refused else "failed", str(error))
            self._tables.blame(str(error))
            self._journal.write(
                self._clock(), "refused" if is_refused else "ended", "the process ends", str(error), name
            )

    def stopped(self) -> None:
        """Note that its operator ended the process."""
        with self._lock:
            self._enter("stopped", "")

    def view(self, *, reset_peak: bool = False) -> ActivityView:
        """Return all of it. `reset_peak`: the worst latency counts from here on."""
        with self._lock:
            totals = self._totals
            view = ActivityView(
                phase=self._phase,
                since=self._since,
                detail=self._detail,
                started_at=self._started_at,
                last_turn_s=time.monotonic() - self._turned if self._phase == "running" else None,
                positions=self._positions(),
                totals=replace(
                    totals,
                    commits=totals.commits.copy(),
                    prepared=totals.prepared.copy(),
                    ends=totals.ends.copy(),
                    latencies=totals.latencies.copy(),
                ),
                in_doubt=self._in_doubt.view(),
                backfills=self._backfills,
                journal=self._journal.lines,
                latency_max_s=self._latency_max_s,
                outage=self._outage,
                unanswered_since=self._flights[0].given_at if self._flights else None,
            )
            if reset_peak:
                self._latency_max_s = 0.0
            return view

    def tables(self) -> list[TableCount]:
        """Return what was published of each table. Apart from `view`, because there may be tens of
        thousands.
        """
        with self._lock:
            return self._tables.copy()

    def _positions(self) -> Positions:
        state = self._state
        if state is None:
            return Positions()
        waiting = sum(flight.transactions for flight in self._flights)
        gathered = state.group.transactions if state.group else 0
        return Positions(state.read_lsn, state.applied_lsn, state.flush, state.sequence, waiting + gathered)

    def _enter(self, phase: Phase, detail: str) -> None:
        self._phase, self._detail, self._since = phase, detail, self._clock()

    def _silent_since(self, now: float) -> float:
        """When the trouble began that has ended a run: with the commit that was not answered, if
        there is one.
        """
        return self._flights[0].given_at if self._flights else now

    def _decided(self, action: actions.Action, at_us: int) -> None:
        now = self._clock()
        match action:
            case actions.AppendStaged():
                self._oldest_us = self._oldest_us or at_us
            case actions.CommitMain(_, _, transactions, rows):
                self._flights.append(_Flight("main" if rows else "progress", transactions, rows, self._oldest_us, now))
                self._oldest_us = 0
            case actions.CommitChunk():
                self._flights.append(_Flight("backfill", 0, 0, 0, now))
            case actions.CommitOpenPrepared(identity):
                span = self._in_doubt.live.get(identity)
                self._flights.append(_Flight("prepared", 1, span.rows if span else 0, at_us, now))
            case _:
                pass

    def _committed(self) -> None:
        # Answers to commits come in the order in which the commits were given out.
        flight, totals = self._flights.popleft(), self._totals
        totals.commits[flight.kind] += 1
        totals.transactions += flight.transactions
        totals.rows += flight.rows
        if flight.oldest_us:
            late_s = max(0.0, self._clock() - flight.oldest_us / 1e6)
            totals.latencies[bisect_left(LATENCY_BOUNDS_S, late_s)] += 1
            totals.latency_s += late_s
            self._latency_max_s = max(self._latency_max_s, late_s)

    def _follow(self, event: Event, decided: Sequence[actions.Action], state: State) -> None:
        now, log, count = self._clock(), self._in_doubt, self._totals.prepared
        why = (
            {each.identity: each.why for each in decided if isinstance(each, actions.AbortPrepared)} if decided else {}
        )
        match event:
            case events.PrepareRead(identity, park_reason=reason) if reason:
                why[identity] = reason
            case events.CommitPreparedRead(identity, _, end_lsn):
                count["committing"] += log.resolve(identity, end_lsn)
            case events.RollbackPreparedRead(identity):
                count["rolled back"] += log.end(identity, "rolled back", now)
            case _:
                pass
        if state.prepared is not self._seen:
            for each in self._moved(event, state):
                stands = _state_of(each.phase)
                if log.note(each.identity, each.rows, stands, now, why.get(each.identity, "")):
                    count[stands] += 1
                    if stands == "parked":
                        self._tell_parked(log.live[each.identity], now)
            self._seen = state.prepared
        self._due = state.due
        count["committed"] += log.end_up_to(state.applied_lsn, now)

    def _tell_parked(self, span: InDoubtSpan, now: float) -> None:
        text = f"{describe(span.identity.gid)} (xid {span.identity.xid}), {span.rows} row{'s' * (span.rows != 1)}: {span.park_reason}"
        self._journal.write(now, "parked", "parked", text)

    def _moved(self, event: Event, state: State) -> Sequence[Prepared]:
        """Return those that the step may have moved.

        A backlog has thousands in doubt and a step for each. All are looked at only after an event
        that names none.
        """
        match event:
            case events.CommitPreparedRead() | events.RollbackPreparedRead() | events.MainCommitted():
                touched = set(self._due)
            case (
                events.PrepareRead()
                | events.PreparedOpened()
                | events.PreparedAborted()
                | events.PreparedCommitted()
                | events.OpenDue()
                | events.ParkDue()
            ):
                touched = {event.identity, *self._due}
            case _:
                return state.prepared
        found: list[Prepared] = []
        for each in reversed(state.prepared):
            if not touched:
                break
            if each.identity in touched:
                touched.discard(each.identity)
                found.append(each)
        return found


def _state_of(phase: PreparedPhase) -> InDoubtState:
    match phase:
        case PreparedPhase.STAGED | PreparedPhase.OPENING:
            return "staged"
        case PreparedPhase.OPEN:
            return "open"
        case PreparedPhase.PARKED:
            return "parked"
