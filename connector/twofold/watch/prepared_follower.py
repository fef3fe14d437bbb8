"""Follows prepared transactions through the bridge's steps, for the page and the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from twofold.bridge import Event, State, actions, events
from twofold.bridge.in_doubt import Phase as PreparedPhase
from twofold.bridge.in_doubt import Prepared, TransactionsInDoubt
from twofold.bridge.sorted_map import SortedMap
from twofold.watch.in_doubt_log import InDoubtLog, InDoubtSpan, InDoubtState
from twofold_common.positions import Lsn, PreparedIdentity


class PreparedFollower:
    """The prepared transactions of one run. `tell_parked` is called for each that is parked."""

    def __init__(self, tell_parked: Callable[[InDoubtSpan, float], None]) -> None:
        self.log = InDoubtLog()
        self._tell_parked = tell_parked
        self._seen = TransactionsInDoubt()
        self._due: SortedMap[Lsn, PreparedIdentity] = SortedMap()

    def clear(self) -> None:
        """Forget those of an ended run."""
        self.log.clear()
        self._seen, self._due = TransactionsInDoubt(), SortedMap()

    def rows(self, identity: PreparedIdentity) -> int:
        span = self.log.live.get(identity)
        return span.rows if span else 0

    def follow(
        self, event: Event, decided: Sequence[actions.Action], state: State, count: Counter[str], now: float
    ) -> None:
        """Note what a step has made of them, and count it."""
        log = self.log
        why = (
            {each.identity: each.why for each in decided if isinstance(each, actions.AbortPrepared)} if decided else {}
        )
        match event:
            case events.PrepareRead(identity, park_reason=reason) if reason:
                why[identity] = reason
            case events.CommitPreparedRead(identity, _, end_lsn):
                count["committing"] += log.resolve(identity, end_lsn)
            case events.PlainRead(end_lsn=end_lsn, committed=committed, rolled_back=rolled_back):
                if committed or rolled_back:
                    count["staged"] += committed + rolled_back
                    count["committing"] += committed
                    count["rolled back"] += rolled_back
                    log.resolve_unannounced(committed, end_lsn)
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

    def _moved(self, event: Event, state: State) -> list[Prepared]:
        """Return those that the step may have moved: the one that the event names, and those that
        were due.
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
        """Yield those that were due before the step: the bridge takes the oldest first."""
        for prepare_lsn, identity in self._due.items():
            if prepare_lsn in state.due:
                return
            yield identity


def _state_of(phase: PreparedPhase) -> InDoubtState:
    match phase:
        case PreparedPhase.STAGED | PreparedPhase.OPENING:
            return "staged"
        case PreparedPhase.OPEN:
            return "open"
        case PreparedPhase.PARKED:
            return "parked"
