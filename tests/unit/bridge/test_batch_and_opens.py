"""A prepared transaction whose outcome may be on its way is not opened for a moment's silence."""

from __future__ import annotations

import pytest

from twofold.bridge import Event, State, actions, events, initial, step
from twofold.bridge.state import Policy
from twofold_common.positions import Lsn, PreparedIdentity

A, B = PreparedIdentity(1, "a"), PreparedIdentity(2, "b")


def prepare(identity: PreparedIdentity, at: int) -> events.PrepareRead:
    return events.PrepareRead(identity, Lsn(at), Lsn(at + 5), rows=4)


def run(state: State, *happened: Event) -> tuple[State, list[actions.Action]]:
    done: list[actions.Action] = []
    for event in happened:
        state, decided = step(state, event)
        done += [action for action in decided if not isinstance(action, actions.Report)]
    return state, done


@pytest.fixture
def start() -> State:
    return initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=6, pool=1)


def test_an_empty_socket_opens_nothing_by_itself(start: State) -> None:
    state, done = run(start, prepare(A, 110), events.PlainRead(1, 2, Lsn(130)), events.Drained())
    assert done == [actions.CommitMain(7, Lsn(130), 1, 2)]
    state, done = run(state, events.CommitPreparedRead(A, Lsn(140), Lsn(150)), events.MainCommitted(Lsn(130)))
    assert done == [actions.AppendStaged(A, Lsn(140))]
    assert run(state, events.Drained())[1] == [actions.CommitMain(8, Lsn(150), 1, 4)]


def test_one_that_waits_for_a_place_goes_on_waiting() -> None:
    """Under synchronous prepare they are to be opened from the start."""
    policy = Policy(synchronous=True)
    state = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=6, pool=1, policy=policy)
    state, done = run(state, prepare(A, 110), prepare(B, 120), events.Drained())
    assert done == [actions.OpenPrepared(A, 0)]
    assert [*state.due.values()] == [B]
