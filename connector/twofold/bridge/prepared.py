"""A prepared transaction's life: staged, then open or parked, then committed, aborted or forgotten.

A prepared transaction is resolved by its outcome alone. The position of the prepare decides
nothing: it may lie before the confirmed or the applied position.

`stream.collector` makes the events, `run.executor` executes the actions.
"""

from __future__ import annotations

from twofold.bridge.actions import (
    AbortPrepared,
    Action,
    AppendStaged,
    CommitOpenPrepared,
    Forget,
    LedgerState,
    NoteInDoubt,
    OpenPrepared,
    Refuse,
)
from twofold.bridge.batch import close, commit_answered, join, may_close, read_to
from twofold.bridge.events import CommitPreparedRead, PrepareRead, RollbackPreparedRead
from twofold.bridge.state import Phase, Prepared, State, UnansweredCommit
from twofold_common.positions import Lsn, PreparedIdentity, format_lsn


def stage(state: State, event: PrepareRead, out: list[Action]) -> State:
    """Stage a PREPARE, or park the transaction if a rule says so.

    The transaction is opened only after the stream has caught up: until then Kafka may already have
    the outcome.
    """
    if state.find(event.identity) or state.prepared.has_prepare(event.prepare_lsn):
        out.append(_prepared_twice(event))
        return state
    staged = Prepared(event.identity, event.prepare_lsn, event.rows, Phase.STAGED, acknowledged=not event.rows)
    state = state._replace(prepared=state.prepared.joined_by(staged), read_lsn=max(state.read_lsn, event.end_lsn))
    if event.park_reason is not None:
        return park(state, event.identity, event.park_reason, out)
    return due(state, event.identity) if state.policy.open_at_once or state.policy.synchronous else state


def due(state: State, identity: PreparedIdentity) -> State:
    """Note that the transaction is to be opened as soon as possible."""
    entry = state.find(identity)
    if entry is None or entry.phase is not Phase.STAGED or not entry.rows:
        return state
    return state._replace(due=state.due.put(entry.prepare_lsn, identity))


def may_open(state: State) -> bool:
    """Whether a transaction may open: Kafka does not have its outcome, and no earlier transaction
    is half published.
    """
    return state.caught_up and not state.unfinished


def is_turn(state: State) -> bool:
    """Whether a transaction can be opened without closing a batch early: there is no batch, or the
    batch may close.

    Otherwise a commit is in progress, and each batch that closes behind it for an open would be one
    more commit.
    """
    return state.batch is None or may_close(state)


def open_due(state: State, out: list[Action]) -> State:
    """Open the transactions that are due, all behind one batch; park them if the pool is full.

    The outcome that would free a slot number comes later in the same stream, so waiting could last
    for ever. Under synchronous prepare the transaction waits.
    """
    while (identity := state.due.first) and may_open(state) and (state.free or not state.policy.synchronous):
        if state.free and not is_turn(state):
            break
        state = open_one(state, identity, out) if state.free else park(state, identity, "the pool is full", out)
    return state


def open_one(state: State, identity: PreparedIdentity, out: list[Action]) -> State:
    """Open the transaction after the main producer's rows: rows of two producers never interleave
    in a partition.
    """
    entry = state.find(identity)
    assert entry is not None
    state = close(state, out)
    slot, *free = state.free
    out.append(OpenPrepared(identity, slot))
    state = state.moved(entry, Phase.OPENING, acknowledged=False)
    return state._replace(
        free=tuple(free),
        slots_in_use=(*state.slots_in_use, (identity, slot)),
        due=state.due.without(entry.prepare_lsn),
        unnoted=state.unnoted.put(entry.prepare_lsn, identity),
    )


def opened(state: State, identity: PreparedIdentity) -> State:
    """Note that Kafka has the rows, although the transaction may be about to be parked."""
    entry = state.find(identity)
    if entry is None:
        return state
    return state.moved(entry, Phase.OPEN if entry.is_open else entry.phase, acknowledged=True)


def park(state: State, identity: PreparedIdentity, why: str, out: list[Action]) -> State:
    """Let the rows wait for the outcome outside Kafka, so that readers continue.

    The transaction stays parked.
    """
    entry = state.find(identity)
    if entry is None or entry.phase is Phase.PARKED or not entry.rows:
        return state
    if entry.is_open:
        out.append(AbortPrepared(identity, _slot(state, identity), why))
    return _parked(state, entry)


def _parked(state: State, entry: Prepared) -> State:
    state = state.moved(entry, Phase.PARKED, acknowledged=entry.acknowledged or not entry.is_open)
    unnoted = state.unnoted.put(entry.prepare_lsn, entry.identity)
    return state._replace(unnoted=unnoted, due=state.due.without(entry.prepare_lsn))


def aborted(state: State, identity: PreparedIdentity) -> State:
    """Note that the transaction's Kafka transaction has ended.

    If no action asked for that, Kafka has timed the Kafka transaction out: the transaction is
    parked, as after `prepared.hold`.
    """
    entry = state.find(identity)
    if entry and entry.is_open:
        state = _parked(state, entry)
    return release(state, identity)


def committed(state: State, identity: PreparedIdentity, applied_lsn: Lsn, out: list[Action]) -> State:
    """Note that the transaction's own Kafka transaction is committed, and drop the rows."""
    out.append(Forget(identity))
    return release(commit_answered(state, applied_lsn, identity), identity)


def release(state: State, identity: PreparedIdentity) -> State:
    """Free the transaction's slot number."""
    freed = tuple(slot for holder, slot in state.slots_in_use if holder == identity)
    return state._replace(
        free=state.free + freed, slots_in_use=tuple(each for each in state.slots_in_use if each[0] != identity)
    )


def commit(state: State, event: CommitPreparedRead, out: list[Action]) -> State:
    """Decide at COMMIT PREPARED.

    An open transaction commits its own Kafka transaction, after the batch. A staged or parked
    transaction joins the batch.
    """
    entry = state.find(event.identity)
    if state.is_applied(event.commit_lsn):
        return read_to(_discard(state, entry, out) if entry else state, event.end_lsn)
    if entry is None:
        return _commit_unknown(state, event, out)
    if entry.is_open:
        return _commit_open(state.without(entry), entry, event, out)
    state = _resolved(state.without(entry), entry.identity, LedgerState.COMMITTED, out)
    out.append(AppendStaged(entry.identity, event.commit_lsn) if entry.rows else Forget(entry.identity))
    return join(
        state, event.end_lsn, transactions=1 if entry.rows else 0, rows=entry.rows, oldest_prepare=entry.prepare_lsn
    )


def _commit_open(state: State, entry: Prepared, event: CommitPreparedRead, out: list[Action]) -> State:
    identity, since = entry.identity, state.read_lsn
    state = close(state, out)
    sequence = state.sequence + 1
    out.append(
        CommitOpenPrepared(
            identity, _slot(state, identity), sequence, event.end_lsn, event.commit_lsn, identity in state.ledger
        )
    )
    commit = UnansweredCommit(since, event.end_lsn, entry.prepare_lsn, identity)
    ledger = state.ledger.without(identity)
    state = state._replace(sequence=sequence, unanswered=(*state.unanswered, commit), ledger=ledger)
    return read_to(state, event.end_lsn)


def _commit_unknown(state: State, event: CommitPreparedRead, out: list[Action]) -> State:
    """Decide at a COMMIT PREPARED without its prepare.

    Either the transaction is empty, which some servers announce so, or the server will never send
    the rows again, and a reload must bring them.
    """
    if event.identity in state.reloaded:
        return join(_resolved(state, event.identity, LedgerState.COMMITTED, out), event.end_lsn)
    if event.identity in state.ledger or state.policy.may_lack_prepares:
        out.append(_rows_lost(event))
        return state
    return join(state, event.end_lsn)


def rollback(state: State, event: RollbackPreparedRead, out: list[Action]) -> State:
    """Decide at ROLLBACK PREPARED: nothing was ever visible.

    The rollback is an outcome all the same: flush stays before the prepare until Kafka has the
    progress.
    """
    entry = state.find(event.identity)
    if state.is_applied_upto(event.end_lsn):
        return read_to(_discard(state, entry, out) if entry else state, event.end_lsn)
    state = _resolved(state, event.identity, LedgerState.ROLLED_BACK, out)
    if entry is None:
        return join(state, event.end_lsn)
    return join(_discard(state, entry, out), event.end_lsn, oldest_prepare=entry.prepare_lsn)


def _resolved(state: State, identity: PreparedIdentity, how: LedgerState, out: list[Action]) -> State:
    """End the ledger's entry in the Kafka transaction that carries the outcome."""
    if identity not in state.ledger:
        return state
    out.append(NoteInDoubt(identity, how))
    return state._replace(ledger=state.ledger.without(identity))


def _discard(state: State, entry: Prepared, out: list[Action]) -> State:
    if entry.is_open:
        out.append(AbortPrepared(entry.identity, _slot(state, entry.identity), "rolled back"))
    out.append(Forget(entry.identity))
    return state.without(entry)


def _slot(state: State, identity: PreparedIdentity) -> int:
    return next(slot for holder, slot in state.slots_in_use if holder == identity)


def _prepared_twice(event: PrepareRead) -> Refuse:
    name = f"transaction {event.identity.xid} ({event.identity.gid!r})"
    return Refuse(
        f"PostgreSQL sent PREPARE of {name} at {format_lsn(event.prepare_lsn)} while the same transaction is still without an outcome",
        at_stake="which of the two the next COMMIT PREPARED or ROLLBACK PREPARED speaks of",
        repair="restart; if the message appears again, report it with the server's version and `twofold status`",
    )


def _rows_lost(event: CommitPreparedRead) -> Refuse:
    return Refuse(
        f"PostgreSQL sent COMMIT PREPARED of transaction {event.identity.xid} ({event.identity.gid!r}) at {format_lsn(event.commit_lsn)} without its PREPARE",
        at_stake="its rows: they are committed in the source, and this server will not send them again (a promoted PostgreSQL 17 forgets transactions that were prepared before)",
        repair="twofold backfill start {tables}, then restart the connector",
        lost=event.identity,
    )
