"""The batch: outcomes gathered for the main producer's next commit, the commits in progress, and
the positions that are reported to PostgreSQL.

Commits are serial, in the order of the source. Both positions only grow. `flush` says which WAL the
server may forget, and what the server sends again after a restart. `write` is the position that a
coordinator waits for under synchronous prepare.
"""

from __future__ import annotations

from twofold.bridge.actions import Action, CommitChunk, CommitMain, LedgerState, NoteInDoubt, Report
from twofold.bridge.events import NO_PREPARE
from twofold.bridge.sorted_map import SortedMap
from twofold.bridge.state import Batch, Phase, State, UnansweredCommit
from twofold.errors import RunEnded
from twofold_common.positions import Lsn, PreparedIdentity


def join(
    state: State, end_lsn: Lsn, *, transactions: int = 0, rows: int = 0, oldest_prepare: Lsn = NO_PREPARE
) -> State:
    """Add outcomes that end at `end_lsn` to the batch.

    `oldest_prepare`: the oldest prepare that these outcomes resolve.
    """
    batch = state.batch or Batch(
        since=state.read_lsn, applied_lsn=state.read_lsn, oldest_prepare=NO_PREPARE, transactions=0, rows=0
    )
    joined = Batch(
        batch.since,
        end_lsn,
        min(batch.oldest_prepare, oldest_prepare),
        batch.transactions + transactions,
        batch.rows + rows,
    )
    return state._replace(batch=joined, read_lsn=max(state.read_lsn, end_lsn))


def read_to(state: State, end_lsn: Lsn) -> State:
    """Note that the stream has reached `end_lsn`.

    The position never goes back: a transaction that was prepared before two_phase_at comes with its
    old positions.
    """
    return state._replace(read_lsn=max(state.read_lsn, end_lsn))


def close(state: State, out: list[Action]) -> State:
    """Give out the batch's commit, and the entries that the ledger lacks."""
    if state.batch is None:
        return state
    state = _note_in_ledger(state, out)
    assert state.batch is not None
    batch, sequence = state.batch, state.sequence + (1 if state.batch.rows else 0)
    out.append(CommitMain(sequence, batch.applied_lsn, batch.transactions, batch.rows))
    commit = UnansweredCommit(batch.since, batch.applied_lsn, batch.oldest_prepare, None)
    return state._replace(
        batch=None, sequence=sequence, unanswered=(*state.unanswered, commit), closing=False, full=False
    )


def _note_in_ledger(state: State, out: list[Action]) -> State:
    if not state.unnoted:
        return state
    ledger = state.ledger
    for identity in state.unnoted.values():
        entry = state.find(identity)
        parked = entry is not None and entry.phase is Phase.PARKED
        out.append(NoteInDoubt(identity, LedgerState.PARKED if parked else LedgerState.OPEN))
        ledger = ledger.put(identity, None)
    return state._replace(unnoted=SortedMap(), ledger=ledger)


def may_close(state: State) -> bool:
    """Whether the batch may close: no commit is in progress, and no source transaction would be
    torn.
    """
    return not state.unanswered and not state.unfinished


def commit_chunk(state: State, out: list[Action]) -> State:
    """Give out a chunk's own commit, behind everything that was read. It moves no position."""
    if state.unfinished or not state.caught_up:
        raise RunEnded(
            "a chunk of a backfill came while the main producer held half a transaction, or before the stream had caught up"
        )
    state = close(state, out)
    applied_lsn = state.unanswered[-1].applied_lsn if state.unanswered else state.applied_lsn
    sequence = state.sequence + 1
    out.append(CommitChunk(sequence, applied_lsn))
    commit = UnansweredCommit(state.read_lsn, applied_lsn, NO_PREPARE, None)
    return state._replace(sequence=sequence, unanswered=(*state.unanswered, commit))


def ask_to_close(state: State) -> State:
    """Close the batch as soon as it may close."""
    return state._replace(closing=state.batch is not None)


def advance_progress(state: State) -> State:
    """Begin a batch without rows, so that progress reaches the stream's position.

    That is done if the server can then forget WAL, or if the ledger lacks an entry.
    """
    oldest = state.prepared.oldest
    reachable = min(state.read_lsn, state.unannounced, oldest.prepare_lsn if oldest else NO_PREPARE)
    if not state.caught_up or not may_close(state) or (reachable <= state.flush and not state.unnoted):
        return state
    return join(state, state.read_lsn)


def commit_answered(state: State, applied_lsn: Lsn, identity: PreparedIdentity | None) -> State:
    """Note that the oldest commit in progress is committed in Kafka."""
    commit = state.unanswered[0] if state.unanswered else None
    if commit is None or (commit.applied_lsn, commit.identity) != (applied_lsn, identity):
        raise RunEnded(
            f"the worker says that {identity or 'the main producer'} has committed up to {applied_lsn}, but the outstanding commit is {commit}"
        )
    return state._replace(unanswered=state.unanswered[1:], applied_lsn=applied_lsn)


def report(state: State, out: list[Action]) -> State:
    """Report both positions if one of them has grown."""
    flush = max(state.flush, flush_position(state))
    write = max(state.write, write_position(state))
    if (write, flush) == (state.write, state.flush):
        return state
    out.append(Report(write, flush))
    return state._replace(write=write, flush=flush)


def flush_position(state: State) -> Lsn:
    """Return the least of three positions: applied, read in this session, and every prepare without
    an outcome in Kafka.
    """
    reachable = min(state.applied_lsn, state.read_lsn)
    if reachable <= state.flush:
        return state.flush
    return min(reachable, oldest_unresolved(state), oldest_uncommitted(state))


def oldest_unresolved(state: State) -> Lsn:
    """Return the oldest prepare without an outcome, announced or not."""
    oldest = state.prepared.oldest
    return state.unannounced if oldest is None else min(state.unannounced, oldest.prepare_lsn)


def oldest_uncommitted(state: State) -> Lsn:
    """Return the oldest prepare whose outcome was read and is not committed in Kafka.

    A restart needs the rows of that prepare once more.
    """
    batch = state.batch.oldest_prepare if state.batch else NO_PREPARE
    return min([batch, *(commit.oldest_prepare for commit in state.unanswered)])


def write_position(state: State) -> Lsn:
    """Return the position that a synchronous standby has "written".

    Without synchronous prepare this is the position that was read, as PostgreSQL's own subscribers
    report it. Otherwise a session that waits for remote_write in its PREPARE would wait for its own
    outcome. With synchronous prepare, Kafka has accepted everything up to this position: outcomes
    are committed, and prepares are open or parked by a rule.
    """
    if not state.policy.synchronous:
        return state.read_lsn
    if state.unanswered:
        reachable = state.unanswered[0].since
    elif state.batch:
        reachable = state.batch.since
    else:
        reachable = state.read_lsn
    if reachable <= state.write:
        return state.write
    return min(reachable, oldest_unacknowledged(state))


def oldest_unacknowledged(state: State) -> Lsn:
    """Return the oldest prepare beyond the reported `write` that Kafka has not accepted."""
    beyond = state.prepared.since(state.write)
    first = next((each.prepare_lsn for each in beyond if not each.acknowledged), NO_PREPARE)
    return min(first, state.unannounced)
