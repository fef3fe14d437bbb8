"""A frontier is written when the stream has passed what was asked, with what is in doubt there."""

from __future__ import annotations

from twofold.bridge import State, actions, events, initial, step
from twofold.bridge.events import NO_PREPARE
from twofold_common.positions import Lsn, PreparedIdentity

START = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=7, pool=2)
ONE, TWO = PreparedIdentity(1, "one"), PreparedIdentity(2, "two")
SEEN = (events.MemberSeen("other", 41, "a stream"),)


def asked(end: int, *listed: PreparedIdentity) -> events.FrontierAsked:
    return events.FrontierAsked(SEEN, frozenset(listed), Lsn(end))


def run(state: State, *happened: events.Event) -> tuple[State, list[actions.Action]]:
    given: list[actions.Action] = []
    for event in happened:
        state, more = step(state, event)
        given += (each for each in more if not isinstance(each, actions.Report))
    return state, given


def test_an_idle_source_writes_one_in_a_commit_without_a_record() -> None:
    state, given = run(START, asked(100))
    assert given == [actions.WriteFrontier(7, Lsn(100), SEEN, frozenset()), actions.CommitMain(7, Lsn(100), 0, 0)]
    assert state.asked is None


def test_it_waits_until_the_stream_has_passed_the_end_of_the_wal() -> None:
    state, given = run(START, asked(130), events.PlainRead(1, 3, Lsn(120)), events.Drained())
    assert given == [actions.CommitMain(8, Lsn(120), 1, 3)]
    _, given = run(state, events.MainCommitted(Lsn(120)), events.PlainRead(1, 1, Lsn(130)))
    assert given[0] == actions.WriteFrontier(9, Lsn(130), SEEN, frozenset())


def test_it_names_what_is_in_doubt_and_has_rows_here() -> None:
    staged = events.PrepareRead(ONE, Lsn(100), Lsn(110), rows=2)
    empty = events.PrepareRead(TWO, Lsn(110), Lsn(120), rows=0)
    _, given = run(START, staged, empty, asked(120, ONE, TWO, PreparedIdentity(3, "before two_phase_at")))
    assert given[0] == actions.WriteFrontier(
        7, Lsn(120), SEEN, frozenset({ONE, PreparedIdentity(3, "before two_phase_at")})
    )


def test_one_that_ends_before_it_is_written_is_in_doubt_no_more() -> None:
    _, given = run(START, asked(120, ONE, TWO), events.RollbackPreparedRead(ONE, Lsn(120)))
    assert given[0] == actions.WriteFrontier(7, Lsn(120), SEEN, frozenset({TWO}))


def test_the_commit_of_an_open_one_is_never_between_its_frontier_and_its_number() -> None:
    """It closes the batch before its own number is given out."""
    state, _ = run(START, events.PrepareRead(ONE, Lsn(100), Lsn(110), rows=1), events.OpenDue(ONE))
    state, _ = run(state, events.PreparedOpened(ONE), events.PlainRead(1, 1, Lsn(120)), asked(130))
    state, given = run(state, events.CommitPreparedRead(ONE, Lsn(120), Lsn(130)))
    assert [type(each) for each in given] == [actions.CommitMain, actions.CommitOpenPrepared]
    _, given = run(state, events.MainCommitted(Lsn(120)), events.PreparedCommitted(ONE, Lsn(130)))
    assert actions.WriteFrontier(9, Lsn(130), SEEN, frozenset()) in given


def test_it_waits_for_a_transaction_that_is_half_read() -> None:
    state, given = run(START, events.PlainUnfinished(), asked(100))
    assert given == []
    _, given = run(state, events.PlainRead(1, 5, Lsn(120)))
    assert given == [actions.WriteFrontier(8, Lsn(120), SEEN, frozenset()), actions.CommitMain(8, Lsn(120), 1, 5)]


def test_it_waits_until_what_was_read_is_announced() -> None:
    """It may be a second branch here of a global transaction that the frontier's number shows."""
    held = events.Unannounced(Lsn(110))
    state, given = run(START, asked(110), held, events.PlainRead(1, 1, Lsn(130), committed=1), events.Drained())
    assert given == [actions.CommitMain(8, Lsn(130), 1, 1)]
    state, given = run(state, events.MainCommitted(Lsn(130)))
    assert given == []
    _, given = run(state, events.PrepareRead(TWO, Lsn(110), Lsn(120), rows=1), events.Unannounced(NO_PREPARE))
    assert given[0] == actions.WriteFrontier(8, Lsn(130), SEEN, frozenset({TWO}))
