"""The two positions that PostgreSQL may be told. Both only grow.

`flush` decides which WAL the server may forget, and what it sends again after a restart. `write` is
the position that a coordinator waits for under synchronous prepare.
"""

from __future__ import annotations

from twofold.bridge.actions import Action, Report
from twofold.bridge.events import NO_FLOOR
from twofold.bridge.state import State
from twofold_common.positions import Lsn


def report(state: State, out: list[Action]) -> State:
    """Report the positions if one of them has grown."""
    flush = max(state.flush, flush_position(state))
    write = max(state.write, write_position(state))
    if (write, flush) == (state.write, state.flush):
        return state
    out.append(Report(write, flush))
    return state._replace(write=write, flush=flush)


def flush_position(state: State) -> Lsn:
    """Return the least of: applied, read in this session, every prepare without an outcome in
    Kafka.
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

    A restart needs its rows once more.
    """
    group = state.group.floor if state.group else NO_FLOOR
    return min([group, *(flight.floor for flight in state.in_flight)])


def write_position(state: State) -> Lsn:
    """Return the position that a synchronous standby has "written".

    Without synchronous prepare it is the position that was read, as PostgreSQL's own subscribers
    report it: a session that waits for remote_write in its PREPARE would otherwise wait for its own
    outcome. With synchronous prepare, Kafka has accepted everything up to it: outcomes are
    committed, and prepares are open or parked by a rule.
    """
    if not state.policy.synchronous:
        return state.read_lsn
    if state.in_flight:
        reachable = state.in_flight[0].since
    elif state.group:
        reachable = state.group.since
    else:
        reachable = state.read_lsn
    if reachable <= state.write:
        return state.write
    return min(reachable, oldest_unacknowledged(state))


def oldest_unacknowledged(state: State) -> Lsn:
    """Return the oldest prepare that Kafka has not accepted, of those beyond what was reported."""
    beyond = state.prepared.since(state.write)
    first = next((each.prepare_lsn for each in beyond if not each.acknowledged), NO_FLOOR)
    return min(first, state.unannounced)
