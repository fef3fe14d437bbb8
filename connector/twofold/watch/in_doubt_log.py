"""Prepared transactions as the page's bars: when each was read, opened, parked, and how it ended.

`InDoubtLog` changes in place, one identity at a time: the cost of a step does not grow with the
transactions in doubt. `view` gives a copy that no later call changes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from twofold_common.positions import Lsn, PreparedIdentity

ENDED_MAX = 40
InDoubtState: TypeAlias = Literal["staged", "open", "parked", "committing"]
Outcome: TypeAlias = Literal["committed", "rolled back"]


class InDoubtSpan(NamedTuple):
    """One prepared transaction. Times are times of day at which this process saw it: after a
    restart all are read again.
    """

    identity: PreparedIdentity
    rows: int
    state: InDoubtState
    read_at: float
    opened_at: float | None = None
    parked_at: float | None = None
    park_reason: str = ""
    ended_at: float | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class InDoubtView:
    """Those without an outcome in Kafka, and the last ones with one."""

    live: dict[PreparedIdentity, InDoubtSpan]
    past: tuple[InDoubtSpan, ...]


class InDoubtLog:
    """One a process; not for two threads at once."""

    def __init__(self) -> None:
        self.live: dict[PreparedIdentity, InDoubtSpan] = {}
        self._past: deque[InDoubtSpan] = deque(maxlen=ENDED_MAX)
        self._committing: deque[tuple[Lsn, PreparedIdentity]] = deque()
        self._unannounced: deque[tuple[Lsn, int]] = deque()

    def view(self) -> InDoubtView:
        """Return both as they are now."""
        return InDoubtView(self.live.copy(), tuple(self._past))

    def clear(self) -> None:
        """Forget those without an outcome: the stream brings them to a new run again."""
        self.live.clear()
        self._committing.clear()
        self._unannounced.clear()

    def note(self, identity: PreparedIdentity, rows: int, state: InDoubtState, now: float, why: str) -> bool:
        """Record the state. Return False if it was already recorded."""
        known = self.live.get(identity)
        if known is not None and known.state == state:
            return False
        span = known._replace(state=state) if known else InDoubtSpan(identity, rows, state, now)
        if state == "open" and span.opened_at is None:
            span = span._replace(opened_at=now)
        if state == "parked" and span.parked_at is None:
            span = span._replace(parked_at=now, park_reason=why or "no place in the pool")
        self.live[identity] = span
        return True

    def resolve(self, identity: PreparedIdentity, end_lsn: Lsn) -> bool:
        """Record that its COMMIT PREPARED was read.

        Return False if the transaction is not known.
        """
        span = self.live.get(identity)
        if span is None:
            return False
        self.live[identity] = span._replace(state="committing")
        self._committing.append((end_lsn, identity))
        return True

    def resolve_unannounced(self, count: int, end_lsn: Lsn) -> None:
        """Record that so many were committed up to there whose prepare was never announced.

        They were in doubt for less than a read of the socket and have no bar.
        """
        self._unannounced.append((end_lsn, count))

    def end(self, identity: PreparedIdentity, outcome: Outcome, now: float) -> bool:
        """Record the outcome that is in Kafka. Return False if the transaction is not known."""
        span = self.live.pop(identity, None)
        if span is None:
            return False
        self._past.append(span._replace(ended_at=now, outcome=outcome))
        return True

    def end_up_to(self, applied_lsn: Lsn, now: float) -> int:
        """Record as committed what ends up to there, and return how many those are. Outcomes are
        read in the order of their ends.
        """
        committed = 0
        while self._committing and self._committing[0][0] <= applied_lsn:
            committed += self.end(self._committing.popleft()[1], "committed", now)
        while self._unannounced and self._unannounced[0][0] <= applied_lsn:
            committed += self._unannounced.popleft()[1]
        return committed
