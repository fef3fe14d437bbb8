"""One step of the bridge: an event comes in, the next state and what is to be done go out.

Deterministic and without side effects. The time a step takes grows with the prepared transactions that are outstanding, never with what a turn holds.
"""

from __future__ import annotations

from twofold.bridge import events, feedback, group, prepared
from twofold.bridge.actions import Action
from twofold.bridge.events import Event
from twofold.bridge.state import State


def step(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """Take the event, then do what has become possible: open what is due, close the group, report positions."""
    out: list[Action] = []
    state = _take(state, event, out)
    if state.due:
        state = prepared.open_due(state, out)
    if state.closing and group.may_close(state):
        state = group.close(state, out)
    state = feedback.report(state, out)
    return state, tuple(out)


def _take(state: State, event: Event, out: list[Action]) -> State:
    match event:
        case events.PlainRead() | events.MessageRead() | events.Passed() | events.PlainUnfinished():
            return _take_plain(state, event)
        case events.PrepareRead():
            return prepared.stage(state, event, out)
        case events.CommitPreparedRead():
            return prepared.commit(state, event, out)
        case events.RollbackPreparedRead():
            return prepared.rollback(state, event, out)
        case events.MainCommitted() | events.PreparedCommitted() | events.PreparedOpened() | events.PreparedAborted():
            return _take_answer(state, event, out)
        case _:
            return _take_due(state, event, out)


def _take_plain(
    state: State, event: events.PlainRead | events.MessageRead | events.Passed | events.PlainUnfinished
) -> State:
    match event:
        case events.PlainRead(transactions, rows, end_lsn, unfinished):
            return group.join(state, end_lsn, transactions=transactions, rows=rows)._replace(unfinished=unfinished)
        case events.MessageRead(end_lsn):
            return group.join(state, end_lsn, rows=1)
        case events.Passed(lsn):
            return group.read_to(state, lsn)
        case events.PlainUnfinished():
            return state._replace(unfinished=True)


Answer = events.MainCommitted | events.PreparedCommitted | events.PreparedOpened | events.PreparedAborted


def _take_answer(state: State, event: Answer, out: list[Action]) -> State:
    match event:
        case events.MainCommitted(applied_lsn):
            return group.answered(state, applied_lsn, None)
        case events.PreparedCommitted(identity, applied_lsn):
            return prepared.committed(state, identity, applied_lsn, out)
        case events.PreparedOpened(identity):
            return prepared.opened(state, identity)
        case events.PreparedAborted(identity):
            return prepared.aborted(state, identity)


def _take_due(
    state: State,
    event: events.Drained | events.TurnFull | events.OpenDue | events.ParkDue | events.ChunkDue | events.IdleDue,
    out: list[Action],
) -> State:
    match event:
        case events.Drained(young):
            due = prepared.all_due(state).due
            return group.ask_to_close(state._replace(due=tuple(e for e in due if e in state.due or e not in young)))
        case events.TurnFull():
            return group.ask_to_close(state)._replace(full=state.group is not None)
        case events.IdleDue():
            return group.ask_to_close(group.follow(state))
        case events.OpenDue(identity):
            return prepared.due(state, identity)
        case events.ParkDue(identity, why):
            return prepared.park(state, identity, why, out)
        case events.ChunkDue():
            return group.chunk(state, out)
