"""Records the work of a running connector for metrics and the status page: counts, positions,
tables, prepared transactions, and a journal.

It is the run's Observer, called a few times a turn, and is read by other threads; a lock keeps
the two apart, and no call waits for a server. Memory is bounded. A kill -9 loses all of it: it
describes this process, and whatever must outlive the process is in Kafka and PostgreSQL.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from twofold.bridge import Event, State, actions, events
from twofold.errors import Refused, TwofoldError
from twofold.run.observer import BackfillProgress, Observer
from twofold.watch.activity_view import LATENCY_BOUNDS_S, ActivityView, Kind, Outage, Phase, Positions, Totals
from twofold.watch.in_doubt_log import InDoubtLog, InDoubtSpan
from twofold.watch.journal import Journal
from twofold.watch.table_counts import TableCount, TableCounts
from twofold_avro.records import Commit, Pin
from twofold_common.gids import describe
from twofold_common.printable import counted


class Activity(Observer):
    """The activity of this process. `clock` gives the time of day."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._phase: Phase = "starting"
        self._since = self._started_at = clock()
        self._detail = ""
        self._turned = 0.0
        self._state: State | None = None
        self._totals = Totals()
        self._commits = UnansweredCommits()
        self._in_doubt = InDoubtLog(self._tell_parked)
        self._tables = TableCounts()
        self._backfills: tuple[BackfillProgress, ...] = ()
        self._journal = Journal()
        self._outage: Outage | None = None
        self._stream_id = ""

    def recovering(self) -> None:
        with self._lock:
            self._enter("recovering", "")

    def standing_by(self, why: str) -> None:
        """Note that another instance has the slot, and forget this one's run: what was in doubt or
        behind in it ages here, whatever the other instance does.
        """
        with self._lock:
            self._state, self._stream_id, self._outage = None, "", None
            self._tables = TableCounts()
            self._forget_unfinished()
            self._enter("standby", why)
            self._journal.write(self._clock(), "standby", "standing by", why)

    def recovered(self, state: State, stream_id: str = "") -> None:
        with self._lock:
            self._stream_id = stream_id
            self._turned = time.monotonic()
            self._forget_unfinished()
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
                    self._commits.answer(self._totals, self._clock())
                case events.PlainRead() | events.MessageRead():
                    self._commits.gather(at_us)
                case _:
                    pass
            for action in decided:
                self._decided(action, at_us)
            self._in_doubt.follow(event, decided, state, self._totals.prepared, self._clock())
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
        """Return the activity as it is. `reset_peak`: the worst latency counts from now on."""
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
                stale_tables=self._tables.stale,
                journal=self._journal.lines,
                latency_max_s=self._commits.latency_max_s,
                outage=self._outage,
                unanswered_since=self._commits.unanswered_since,
            )
            if reset_peak:
                self._commits.latency_max_s = 0.0
            return view

    def tables(self) -> list[TableCount]:
        """Return what was published of each table. `view` leaves the tables out, because a database
        may have tens of thousands.
        """
        with self._lock:
            return self._tables.copy()

    def _positions(self) -> Positions:
        state = self._state
        if state is None:
            return Positions()
        gathered = state.batch.transactions if state.batch else 0
        return Positions(
            state.read_lsn,
            state.applied_lsn,
            state.flush,
            state.sequence,
            self._commits.transactions + gathered,
            self._stream_id,
        )

    def _forget_unfinished(self) -> None:
        self._commits.clear()
        self._in_doubt.clear()
        self._backfills = ()

    def _enter(self, phase: Phase, detail: str) -> None:
        self._phase, self._detail, self._since = phase, detail, self._clock()

    def _silent_since(self, now: float) -> float:
        """Return when the trouble that ended a run began: with the oldest unanswered commit."""
        since = self._commits.unanswered_since
        return now if since is None else since

    def _decided(self, action: actions.Action, at_us: int) -> None:
        now = self._clock()
        match action:
            case actions.AppendStaged():
                self._commits.gather(at_us)
            case actions.CommitMain(_, _, transactions, rows):
                self._commits.give_batch(transactions, rows, now)
            case actions.CommitChunk():
                self._commits.give_chunk(now)
            case actions.CommitOpenPrepared(identity):
                self._commits.give_prepared(self._in_doubt.rows(identity), at_us, now)
            case _:
                pass

    def _tell_parked(self, span: InDoubtSpan, now: float) -> None:
        text = (
            f"{describe(span.identity.gid)} (xid {span.identity.xid}), {counted(span.rows, 'row')}: {span.park_reason}"
        )
        self._journal.write(now, "parked", "parked", text)


@dataclass(frozen=True, slots=True)
class _UnansweredCommit:
    kind: Kind
    transactions: int
    rows: int
    oldest_us: int
    given_at: float


class UnansweredCommits:
    """The Kafka transactions of one run that Kafka has not answered yet, oldest first."""

    def __init__(self) -> None:
        self._commits: deque[_UnansweredCommit] = deque()
        self._oldest_us = 0
        self.latency_max_s = 0.0

    def clear(self) -> None:
        """Forget the commits of an ended run."""
        self._commits.clear()
        self._oldest_us = 0

    @property
    def transactions(self) -> int:
        return sum(commit.transactions for commit in self._commits)

    @property
    def unanswered_since(self) -> float | None:
        """The time when the oldest unanswered commit was given to Kafka."""
        return self._commits[0].given_at if self._commits else None

    def gather(self, at_us: int) -> None:
        """Note that rows of this commit time joined the batch."""
        self._oldest_us = self._oldest_us or at_us

    def give_batch(self, transactions: int, rows: int, now: float) -> None:
        self._commits.append(
            _UnansweredCommit("main" if rows else "progress", transactions, rows, self._oldest_us, now)
        )
        self._oldest_us = 0

    def give_chunk(self, now: float) -> None:
        self._commits.append(_UnansweredCommit("backfill", 0, 0, 0, now))

    def give_prepared(self, rows: int, at_us: int, now: float) -> None:
        self._commits.append(_UnansweredCommit("prepared", 1, rows, at_us, now))

    def answer(self, totals: Totals, now: float) -> None:
        """Count the oldest as committed: answers come in the order of the commits."""
        commit = self._commits.popleft()
        totals.commits[commit.kind] += 1
        totals.transactions += commit.transactions
        totals.rows += commit.rows
        if commit.oldest_us:
            late_s = max(0.0, now - commit.oldest_us / 1e6)
            totals.latencies[bisect_left(LATENCY_BOUNDS_S, late_s)] += 1
            totals.latency_s += late_s
            self.latency_max_s = max(self.latency_max_s, late_s)
