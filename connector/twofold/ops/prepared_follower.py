"""Follows prepared transactions through the bridge's steps, for the page and the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from twofold.bridge import Event, State, actions, events
from twofold.bridge.state import Phase as PreparedPhase
from twofold.bridge.state import Prepared
from twofold.ops.in_doubt_log import InDoubtLog, InDoubtSpan, InDoubtState
from twofold_common.positions import PreparedIdentity


class PreparedFollower:
    """The prepared transactions of one run. `tell_parked` is called for each that is parked."""

    def __init__(self, tell_parked: Callable[[InDoubtSpan, float], None]) -> None:
        self.log = InDoubtLog()
        self._tell_parked = tell_parked
        self._seen: tuple[Prepared, ...] = ()
        self._due: tuple[PreparedIdentity, ...] = ()

    def clear(self) -> None:
        """Forget those of an ended run."""
        self.log.clear()
        self._seen, self._due = (), ()

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
