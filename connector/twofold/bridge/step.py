"""One step of the bridge: take an event, return the next state and the actions.

Deterministic, and without side effects. The time of a step grows neither with the outstanding
prepared transactions nor with the size of a turn.
"""

from __future__ import annotations

from twofold.bridge import batch, events, frontier, prepared
from twofold.bridge.actions import Action
from twofold.bridge.events import Event
from twofold.bridge.state import State


def step(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """Apply the event, then do everything that the event made possible: open, write a frontier,
    close the batch, report.
    """
    out: list[Action] = []
    state = apply(state, event, out)
    if state.due:
        state = prepared.open_due(state, out)
    if state.asked is not None:
        state = frontier.begin(state)
    if state.closing and batch.may_close(state):
        state = batch.close(frontier.write(state, out), out)
    state = batch.report(state, out)
    return state, tuple(out)


def apply(state: State, event: Event, out: list[Action]) -> State:  # noqa: C901, PLR0911, PLR0912  (one flat dispatch)
    """Apply the event: each event has one function that decides."""
    match event:
        case events.PlainRead(transactions, rows, end_lsn, unfinished, oldest_prepare):
            joined = batch.join(state, end_lsn, transactions=transactions, rows=rows, oldest_prepare=oldest_prepare)
            return joined._replace(unfinished=unfinished)
        case events.MessageRead(end_lsn):
            return batch.join(state, end_lsn, rows=1)
        case events.Passed(lsn):
            return batch.read_to(state, lsn)
        case events.PlainUnfinished():
            return state._replace(unfinished=True)
        case events.PrepareRead():
            return prepared.stage(state, event, out)
        case events.Unannounced(prepare_lsn):
            return state._replace(unannounced=prepare_lsn)
        case events.CommitPreparedRead(identity):
            return prepared.commit(frontier.note_outcome(state, identity), event, out)
        case events.RollbackPreparedRead(identity):
            return prepared.rollback(frontier.note_outcome(state, identity), event, out)
        case events.MainCommitted(applied_lsn):
            return batch.commit_answered(state, applied_lsn, None)
        case events.PreparedCommitted(identity, applied_lsn):
            return prepared.committed(state, identity, applied_lsn, out)
        case events.PreparedOpened(identity):
            return prepared.opened(state, identity)
        case events.PreparedAborted(identity):
            return prepared.aborted(state, identity)
        case events.Drained():
            return batch.ask_to_close(state)
        case events.TurnFull():
            return batch.ask_to_close(state)._replace(full=state.batch is not None)
        case events.IdleDue():
            return batch.ask_to_close(batch.advance_progress(state))
        case events.OpenDue(identity):
            return prepared.due(state, identity)
        case events.ParkDue(identity, why):
            return prepared.park(state, identity, why, out)
        case events.FrontierAsked():
            return frontier.ask(state, event)
        case events.ChunkDue():
            return batch.commit_chunk(state, out)
