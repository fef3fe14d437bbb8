"""The group: outcomes gathered for the main producer's next commit, and the commits that are on their way. Serial, in the order of the source."""

from __future__ import annotations

from twofold.bridge.actions import Action, CommitChunk, CommitMain, LedgerState, NoteInDoubt
from twofold.bridge.state import NO_FLOOR, Flight, Group, Phase, State
from twofold.errors import RunEnded
from twofold_common.positions import Lsn, PreparedIdentity


def join(state: State, end_lsn: Lsn, *, transactions: int = 0, rows: int = 0, floor: Lsn = NO_FLOOR) -> State:
    """Outcomes that end at `end_lsn` join the group; `floor` is the prepare that one of them resolves."""
    group = state.group or Group(
        since=state.read_lsn, applied_lsn=state.read_lsn, floor=NO_FLOOR, transactions=0, rows=0
    )
    joined = Group(group.since, end_lsn, min(group.floor, floor), group.transactions + transactions, group.rows + rows)
    return state._replace(group=joined, read_lsn=max(state.read_lsn, end_lsn))


def read_to(state: State, end_lsn: Lsn) -> State:
    """The stream has come to `end_lsn`. What was prepared before two_phase_at comes with its old positions: never go back."""
    return state._replace(read_lsn=max(state.read_lsn, end_lsn))


def close(state: State, out: list[Action]) -> State:
    """Give the group's commit out, and with it what the ledger does not know yet. No group: nothing to do."""
    if state.group is None:
        return state
    state = _tell_ledger(state, out)
    assert state.group is not None
    group, sequence = state.group, state.sequence + (1 if state.group.rows else 0)
    out.append(CommitMain(sequence, group.applied_lsn, group.transactions, group.rows))
    flight = Flight(group.since, group.applied_lsn, group.floor, None)
    return state._replace(
        group=None, sequence=sequence, in_flight=(*state.in_flight, flight), closing=False, full=False
    )


def _tell_ledger(state: State, out: list[Action]) -> State:
    if not state.unnoted:
        return state
    parked = {each.identity for each in state.prepared if each.phase is Phase.PARKED}
    out.extend(NoteInDoubt(each, LedgerState.PARKED if each in parked else LedgerState.OPEN) for each in state.unnoted)
    return state._replace(unnoted=(), ledger=state.ledger | set(state.unnoted))


def may_close(state: State) -> bool:
    """One main commit is on its way at most while the next group is gathered, and no source transaction is torn."""
    return not state.in_flight and not state.unfinished


def chunk(state: State, out: list[Action]) -> State:
    """A chunk's own commit, behind everything that was read: rows of no transaction move no position."""
    if state.unfinished or not state.caught_up:
        raise RunEnded(
            "a chunk of a backfill came while the main producer held half a transaction, or before the stream had caught up"
        )
    state = close(state, out)
    applied_lsn = state.in_flight[-1].applied_lsn if state.in_flight else state.applied_lsn
    sequence = state.sequence + 1
    out.append(CommitChunk(sequence, applied_lsn))
    flight = Flight(state.read_lsn, applied_lsn, NO_FLOOR, None)
    return state._replace(sequence=sequence, in_flight=(*state.in_flight, flight))


def ask_to_close(state: State) -> State:
    """Close the group as soon as may be."""
    return state._replace(closing=state.group is not None)


def follow(state: State) -> State:
    """A group without rows that takes progress to where the stream is, if that lets the server forget something or the ledger is behind."""
    oldest = state.prepared[0].prepare_lsn if state.prepared else NO_FLOOR
    if (
        not state.caught_up
        or not may_close(state)
        or (min(state.read_lsn, oldest) <= state.flush and not state.unnoted)
    ):
        return state
    return join(state, state.read_lsn)


def answered(state: State, applied_lsn: Lsn, identity: PreparedIdentity | None) -> State:
    """The oldest commit on its way is committed in Kafka."""
    flight = state.in_flight[0] if state.in_flight else None
    if flight is None or (flight.applied_lsn, flight.identity) != (applied_lsn, identity):
        raise RunEnded(
            f"the sink says that {identity or 'the main producer'} has committed up to {applied_lsn}, but what is outstanding is {flight}"
        )
    return state._replace(in_flight=state.in_flight[1:], applied_lsn=applied_lsn)
