"""The values that show a running connector's activity. Everything is frozen except the counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from twofold.run.observer import BackfillProgress
from twofold.watch.in_doubt_log import InDoubtView
from twofold.watch.journal import JournalLine
from twofold_common.positions import NO_LSN, Lsn

Phase = Literal["starting", "recovering", "standby", "running", "waiting", "refused", "failed", "stopped"]
Kind = Literal["main", "prepared", "progress", "backfill"]

LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Outage:
    """The errors of runs and recoveries since the last recovery that succeeded."""

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
    stream_id: str = ""

    @property
    def handled(self) -> Lsn:
        """Kafka has everything up to here: with nothing waiting, all that was read."""
        return self.applied if self.waiting else max(self.applied, self.read)


@dataclass(frozen=True, slots=True)
class ActivityView:
    """The state of the process at one moment."""

    phase: Phase
    since: float
    detail: str
    started_at: float
    last_turn_s: float | None
    """Seconds since the run's last turn; None if no run is in progress."""
    positions: Positions
    totals: Totals
    in_doubt: InDoubtView
    backfills: tuple[BackfillProgress, ...]
    stale_tables: int
    journal: tuple[JournalLine, ...]
    latency_max_s: float
    """The worst latency since `view` was called with `reset_peak`."""
    outage: Outage | None
    unanswered_since: float | None
    """The time when the oldest unanswered commit was given to Kafka."""

    @property
    def of_run(self) -> Positions:
        """The positions of the run that is in progress. Those of a run that has ended may be of
        another history than the source that answers next.
        """
        return self.positions if self.phase == "running" else Positions()
