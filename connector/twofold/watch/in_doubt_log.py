"""The times of prepared transactions, as the page's bars: when each was read, opened, parked, and
how it ended.

`InDoubtLog` follows the bridge's steps and decides nothing. It changes in place, one identity at a
time: the cost of a step does not grow with the transactions in doubt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from twofold.bridge import Event, State, actions, events
from twofold.bridge.sorted_map import SortedMap
from twofold.bridge.state import Phase, Prepared, TransactionsInDoubt
from twofold_common.positions import Lsn, PreparedIdentity

ENDED_MAX = 40
InDoubtState: TypeAlias = Literal["staged", "open", "parked", "committing"]
Outcome: TypeAlias = Literal["committed", "rolled back"]
_STATES: Mapping[Phase, InDoubtState] = {
    Phase.STAGED: "staged",
    Phase.OPENING: "staged",
    Phase.OPEN: "open",
    Phase.PARKED: "parked",
}


class InDoubtSpan(NamedTuple):
    """A prepared transaction, with the times of day at which this process saw its states. After a
    restart the stream brings the transaction again, and the times are new.
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
    """The prepared transactions without an outcome in Kafka, and the last ones that got one."""

    live: dict[PreparedIdentity, InDoubtSpan]
    past: tuple[InDoubtSpan, ...]


class InDoubtLog:
    """The bars of this process; not for two threads at once. `tell_parked` is called for each
    transaction that is parked.
    """

    def __init__(self, tell_parked: Callable[[InDoubtSpan, float], None]) -> None:
        self._tell_parked = tell_parked
        self._live: dict[PreparedIdentity, InDoubtSpan] = {}
        self._past: deque[InDoubtSpan] = deque(maxlen=ENDED_MAX)
        self._committing: deque[tuple[Lsn, PreparedIdentity]] = deque()
        self._unannounced: deque[tuple[Lsn, int]] = deque()
        """Positions, each with the number of unannounced transactions that are committed up to it.
        Such a transaction was in doubt for less than a read of the socket, and has no bar.
        """
        self._seen = TransactionsInDoubt()
        self._due: SortedMap[Lsn, PreparedIdentity] = SortedMap()

    def view(self) -> InDoubtView:
        """Return a copy that no later call changes."""
        return InDoubtView(self._live.copy(), tuple(self._past))

    def clear(self) -> None:
        """Forget an ended run's transactions without an outcome: the stream brings them again."""
        self._live.clear()
        self._committing.clear()
        self._unannounced.clear()
        self._seen, self._due = TransactionsInDoubt(), SortedMap()

    def rows(self, identity: PreparedIdentity) -> int:
        span = self._live.get(identity)
        return span.rows if span else 0

    def follow(
        self, event: Event, decided: Sequence[actions.Action], state: State, count: Counter[str], now: float
    ) -> None:
        """Note what a step of the bridge has changed of prepared transactions; `count` counts the
        transactions that came into each state.
        """
        why = (
            {each.identity: each.why for each in decided if isinstance(each, actions.AbortPrepared)} if decided else {}
        )
        match event:
            case events.PrepareRead(identity, park_reason=reason) if reason:
                why[identity] = reason
            case events.CommitPreparedRead(identity, _, end_lsn):
                if span := self._live.get(identity):
                    self._live[identity] = span._replace(state="committing")
                    self._committing.append((end_lsn, identity))
                    count["committing"] += 1
            case events.PlainRead(end_lsn=end_lsn, committed=committed, rolled_back=rolled_back):
                if committed or rolled_back:
                    count["staged"] += committed + rolled_back
                    count["committing"] += committed
                    count["rolled back"] += rolled_back
                    self._unannounced.append((end_lsn, committed))
            case events.RollbackPreparedRead(identity):
                count["rolled back"] += self._end(identity, "rolled back", now)
            case _:
                pass
        if state.prepared is not self._seen:
            for each in self._moved(event, state):
                if span := self._note(each, why.get(each.identity, ""), now):
                    count[span.state] += 1
                    if span.state == "parked":
                        self._tell_parked(span, now)
            self._seen = state.prepared
        self._due = state.due
        count["committed"] += self._end_up_to(state.applied_lsn, now)

    def _moved(self, event: Event, state: State) -> list[Prepared]:
        """Return the prepared transactions whose state the step may have changed: the event names
        the transaction, or the transaction was due.
        """
        touched = dict.fromkeys(self._opened_or_parked(state))
        match event:
            case (
                events.PrepareRead()
                | events.PreparedOpened()
                | events.PreparedAborted()
                | events.PreparedCommitted()
                | events.OpenDue()
                | events.ParkDue()
            ):
                touched[event.identity] = None
            case _:
                pass
        return [entry for identity in touched if (entry := state.find(identity))]

    def _opened_or_parked(self, state: State) -> Iterator[PreparedIdentity]:
        """Yield the transactions that were due before the step and are not any more.

        The bridge takes the oldest first.
        """
        for prepare_lsn, identity in self._due.items():
            if prepare_lsn in state.due:
                return
            yield identity

    def _note(self, prepared: Prepared, why: str, now: float) -> InDoubtSpan | None:
        """Note the transaction's state, and return its span; None if the state was noted before."""
        known, state = self._live.get(prepared.identity), _STATES[prepared.phase]
        if known is not None and known.state == state:
            return None
        span = known._replace(state=state) if known else InDoubtSpan(prepared.identity, prepared.rows, state, now)
        if state == "open" and span.opened_at is None:
            span = span._replace(opened_at=now)
        if state == "parked" and span.parked_at is None:
            span = span._replace(parked_at=now, park_reason=why or "no place in the pool")
        self._live[prepared.identity] = span
        return span

    def _end(self, identity: PreparedIdentity, outcome: Outcome, now: float) -> bool:
        """Note the outcome that is in Kafka. Return False if the transaction is not known."""
        span = self._live.pop(identity, None)
        if span is None:
            return False
        self._past.append(span._replace(ended_at=now, outcome=outcome))
        return True

    def _end_up_to(self, applied_lsn: Lsn, now: float) -> int:
        """Note as committed every transaction whose outcome ends up to this position; return their
        number. Outcomes are read in the order of their ends.
        """
        committed = 0
        while self._committing and self._committing[0][0] <= applied_lsn:
            committed += self._end(self._committing.popleft()[1], "committed", now)
        while self._unannounced and self._unannounced[0][0] <= applied_lsn:
            committed += self._unannounced.popleft()[1]
        return committed
