"""The frontier: when it is written, and what it says. docs/inside/group.md has the reasons.

The caller has asked first how far all members' commit records are visible, then which transactions
are prepared here, then where this source's WAL ends. The frontier is written in the batch's Kafka
transaction, when three things are true: the stream has passed that end; everything before the end
is in this batch or in an earlier commit; every prepared transaction that was read is announced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from twofold.bridge.actions import Action, WriteFrontier
from twofold.bridge.batch import ask_to_close, join
from twofold.bridge.events import FrontierAsked
from twofold.bridge.state import State
from twofold_common.positions import PreparedIdentity

ORDER = FrontierAsked._fields
"""The order of the caller's questions.

`end_lsn` is last: whoever sees a branch committed knows that all branches were prepared before, so
the stream brings this source's branch before that position. `listed` is before `end_lsn`: a
transaction that is not listed any more has its outcome before that position.
"""


def is_needed(
    last: Mapping[str, int],
    asked: Mapping[str, int] | None,
    named: Collection[PreparedIdentity],
    listed: Collection[PreparedIdentity],
) -> bool:
    """Whether a frontier is to be asked for.

    `last`: the last visible commit record of each member, its own included, that has a branch or
    ends a load; a while after the last frontier, the last visible one of any kind. `asked`: how far
    each member was visible when the last frontier was asked for; None before the first.

    A frontier is also needed when PostgreSQL no longer lists a transaction that the last frontier
    names. A branch that only read ends without a trace in the stream, and a rollback has no commit
    record: without a new frontier readers would wait for the ended branch.
    """
    return (
        asked is None
        or any(sequence > asked[prefix] for prefix, sequence in last.items())
        or any(each not in listed for each in named)
    )


def ask(state: State, event: FrontierAsked) -> State:
    """Keep the caller's answers until the stream has passed the asked end of the WAL."""
    assert state.asked is None, "one frontier is asked for at a time"
    return state._replace(asked=event)


def note_outcome(state: State, identity: PreparedIdentity) -> State:
    """Note that a transaction that PostgreSQL listed as prepared has its outcome in the stream."""
    if state.asked is None or identity not in state.asked.listed:
        return state
    return state._replace(asked=state.asked._replace(listed=state.asked.listed - {identity}))


def is_due(state: State) -> bool:
    """Whether the stream has passed the asked end of the WAL, and every transaction that was read
    is announced.

    An unannounced prepared transaction may be this source's second branch of a global transaction
    whose first branch is committed within the frontier's number, and PostgreSQL's list may be older
    than the transaction. The stream has also caught up then: the end that this run asked for lies
    behind everything that earlier runs applied.
    """
    return has_passed(state) and state.unannounced >= state.read_lsn


def has_passed(state: State) -> bool:
    """Whether the stream has passed the asked end of the WAL: the collector should announce its
    prepared transactions.
    """
    return state.asked is not None and state.read_lsn >= state.asked.end_lsn


def begin(state: State) -> State:
    """Close the batch if a frontier is due, because the batch's commit carries it. Without a batch,
    begin and close a batch without rows.
    """
    if not is_due(state):
        return state
    return ask_to_close(state if state.batch is not None else join(state, state.read_lsn))


def write(state: State, out: list[Action]) -> State:
    """Give out a frontier that is due, for the batch that closes now.

    The batch must have every outcome so far: the commit of an open transaction closes the batch
    before that transaction has its own number.
    """
    if not is_due(state) or state.asked is None or state.batch is None:
        return state
    sequence = state.sequence + (1 if state.batch.rows else 0)
    named = in_doubt(state)
    out.append(WriteFrontier(sequence, state.read_lsn, state.asked.seen, named))
    return state._replace(asked=None, named=named)


def in_doubt(state: State) -> frozenset[PreparedIdentity]:
    """Return the transactions without an outcome that have rows here.

    Transactions that PostgreSQL lists and the stream has not brought are included: a transaction
    that was prepared before the slot's two_phase_at comes whole at its COMMIT PREPARED. A
    transaction whose outcome was not announced counts too, until the next frontier.
    """
    brought = {each.identity for each in state.prepared}
    listed = state.asked.listed if state.asked else frozenset()
    return frozenset(each.identity for each in state.prepared if each.rows) | (listed - brought)
