"""Single cases of the bridge that a reader should see by themselves; that they hold in every order
is the model checker's (tests/model).
"""

from __future__ import annotations

import pytest

from twofold.bridge import Event, Policy, State, initial, step
from twofold.bridge.actions import (
    AbortPrepared,
    Action,
    AppendStaged,
    CommitMain,
    CommitOpenPrepared,
    Forget,
    LedgerState,
    NoteInDoubt,
    OpenPrepared,
    Refuse,
    Report,
)
from twofold.bridge.events import (
    CommitPreparedRead,
    Drained,
    IdleDue,
    MainCommitted,
    MessageRead,
    OpenDue,
    ParkDue,
    Passed,
    PlainRead,
    PlainUnfinished,
    PreparedAborted,
    PreparedCommitted,
    PreparedOpened,
    PrepareRead,
    RollbackPreparedRead,
    TurnFull,
)
from twofold.errors import RunEnded
from twofold_common.positions import Lsn, PreparedIdentity

A, B = PreparedIdentity(1, "gid"), PreparedIdentity(2, "gid")


def start(pool: int = 2, applied: int = 100, confirmed: int = 100, **more: object) -> State:
    return initial(applied_lsn=Lsn(applied), confirmed_lsn=Lsn(confirmed), sequence=7, pool=pool, **more)  # type: ignore[arg-type]


def run(state: State, *happened: Event) -> tuple[State, list[Action]]:
    """All that is done, without the reports."""
    done: list[Action] = []
    for event in happened:
        state, actions = step(state, event)
        done += [each for each in actions if not isinstance(each, Report)]
    return state, done


def plain(end: int) -> PlainRead:
    return PlainRead(1, 1, Lsn(end))


def prepare(identity: PreparedIdentity, start_lsn: int, rows: int = 1, park: str | None = None) -> PrepareRead:
    return PrepareRead(identity, Lsn(start_lsn), Lsn(start_lsn + 10), rows, park)


def commit(identity: PreparedIdentity, start_lsn: int) -> CommitPreparedRead:
    return CommitPreparedRead(identity, Lsn(start_lsn), Lsn(start_lsn + 10))


def committed(lsn: int) -> MainCommitted:
    return MainCommitted(Lsn(lsn))


def test_open_one_commits_by_itself_behind_the_batch() -> None:
    state, done = run(start(), plain(110), prepare(A, 110), OpenDue(A))
    assert done == [CommitMain(8, Lsn(110), 1, 1), OpenPrepared(A, 0)]
    state, done = run(state, committed(110), PreparedOpened(A), plain(130), commit(A, 130))
    assert done == [CommitMain(9, Lsn(130), 1, 1), CommitOpenPrepared(A, 0, 10, Lsn(140), Lsn(130), in_ledger=False)]
    state, done = run(state, committed(130), PreparedCommitted(A, Lsn(140)))
    assert done == [Forget(A)]
    assert (state.flush, state.slots_in_use, len(state.prepared)) == (140, (), 0)


def test_outcome_read_before_the_opening_joins_the_batch() -> None:
    state, done = run(start(), prepare(A, 100), commit(A, 110), Drained())
    assert done == [AppendStaged(A, Lsn(110)), CommitMain(8, Lsn(120), 1, 1)]
    assert state.flush == 100
    assert run(state, committed(120))[0].flush == 120


def test_ledger_learns_only_of_those_that_stay() -> None:
    state, done = run(start(), prepare(A, 100, park="rule"), prepare(B, 110, park="rule"), commit(B, 120), Drained())
    assert done == [AppendStaged(B, Lsn(120)), NoteInDoubt(A, LedgerState.PARKED), CommitMain(8, Lsn(130), 1, 1)]
    _, done = run(state, committed(130), commit(A, 130))
    assert done == [NoteInDoubt(A, LedgerState.COMMITTED), AppendStaged(A, Lsn(130))]


def test_while_a_commit_is_in_progress_no_batch_closes_for_an_open() -> None:
    """Two that are due meanwhile follow one batch, and not one each."""
    state, _ = run(start(), plain(110), Drained(), prepare(A, 110), plain(130), prepare(B, 130))
    state, done = run(state, OpenDue(A), OpenDue(B))
    assert done == []
    state, done = run(state, committed(110))
    assert done == [CommitMain(9, Lsn(130), 1, 1), OpenPrepared(A, 0), OpenPrepared(B, 1)]


def test_an_open_follows_a_batch_that_closes_for_another_reason() -> None:
    state, _ = run(start(), prepare(A, 100), OpenDue(A), PreparedOpened(A), plain(120), Drained())
    state, done = run(state, prepare(B, 120), plain(140), OpenDue(B), commit(A, 140))
    assert [type(each) for each in done] == [CommitMain, CommitOpenPrepared, OpenPrepared]


def test_an_open_waits_for_no_commit_where_no_batch_is_gathered() -> None:
    _, done = run(start(), plain(110), Drained(), prepare(A, 110), OpenDue(A))
    assert done[1:] == [OpenPrepared(A, 0)]


def test_full_pool_parks() -> None:
    state, done = run(start(pool=1), prepare(A, 100), prepare(B, 110), OpenDue(A), OpenDue(B))
    assert done == [OpenPrepared(A, 0)]
    _, done = run(state, commit(B, 120))
    assert done == [AppendStaged(B, Lsn(120))]


def test_full_pool_holds_write_back_under_synchronous_prepare() -> None:
    state, done = run(
        start(pool=1, policy=Policy(synchronous=True)), prepare(A, 100), prepare(B, 110), PreparedOpened(A)
    )
    assert done == [OpenPrepared(A, 0)]
    assert state.write == 110
    state, done = run(state, RollbackPreparedRead(A, Lsn(130)), PreparedAborted(A))
    assert done[:2] == [AbortPrepared(A, 0, "rolled back"), Forget(A)]
    assert done[-1] == OpenPrepared(B, 0)
    assert state.write == 110
    assert run(state, PreparedOpened(B), committed(130))[0].write == 130


def test_one_that_waits_for_a_place_goes_on_waiting_under_synchronous_prepare() -> None:
    state, done = run(start(pool=1, policy=Policy(synchronous=True)), prepare(A, 110), prepare(B, 120), Drained())
    assert done == [OpenPrepared(A, 0)]
    assert [*state.due.values()] == [B]


def test_an_empty_socket_opens_nothing_by_itself() -> None:
    """The outcome may be on its way."""
    state, done = run(start(pool=1), prepare(A, 110, rows=4), plain(130), Drained())
    assert done == [CommitMain(8, Lsn(130), 1, 1)]
    state, done = run(state, commit(A, 140), committed(130))
    assert done == [AppendStaged(A, Lsn(140))]
    assert run(state, Drained())[1] == [CommitMain(9, Lsn(150), 1, 4)]


def test_held_too_long_is_parked_and_its_slot_rests() -> None:
    state, done = run(start(pool=1), prepare(A, 100), OpenDue(A), PreparedOpened(A), ParkDue(A, "held"))
    assert done[-1] == AbortPrepared(A, 0, "held")
    assert state.free == ()
    state, done = run(state, PreparedAborted(A), PreparedAborted(A), OpenDue(A), Drained())
    assert state.free == (0,)
    assert done == []


def test_timed_out_by_kafka_is_parked() -> None:
    state, _ = run(start(), prepare(A, 100), OpenDue(A), PreparedOpened(A), PreparedAborted(A))
    assert run(state, commit(A, 110))[1] == [AppendStaged(A, Lsn(110))]


def test_due_times_of_what_has_ended_are_harmless() -> None:
    state, _ = run(
        start(), prepare(A, 100), OpenDue(A), PreparedOpened(A), commit(A, 110), PreparedCommitted(A, Lsn(120))
    )
    for late in (ParkDue(A, "held"), OpenDue(A), PreparedAborted(A), PreparedOpened(A)):
        assert step(state, late) == (state, ())


def test_neighbours_share_a_boundary() -> None:
    state = start(applied=100)
    assert state.is_applied(Lsn(99))
    assert not state.is_applied(Lsn(100))


def test_nothing_is_opened_before_the_stream_has_caught_up() -> None:
    state, done = run(start(applied=200, confirmed=100), prepare(A, 100), Drained(), OpenDue(A), IdleDue())
    assert done == []
    assert run(state, commit(A, 190))[1] == [Forget(A)]
    assert run(state, Passed(Lsn(200)))[1] == [OpenPrepared(A, 0)]


def test_flush_waits_for_what_this_session_has_not_read() -> None:
    state, _ = run(start(applied=200, confirmed=100), Passed(Lsn(150)))
    assert state.flush == 150


def test_empty_prepared_transaction_takes_neither_slot_nor_number() -> None:
    _, done = run(start(), prepare(A, 100, rows=0, park="rule"), Drained(), commit(A, 110), Drained())
    assert done == [Forget(A), CommitMain(7, Lsn(120), 0, 0)]


def test_commit_without_prepare() -> None:
    assert run(start(), commit(A, 100), Drained())[1] == [CommitMain(7, Lsn(110), 0, 0)]
    assert isinstance(run(start(in_doubt=frozenset({A})), commit(A, 100))[1][0], Refuse)
    assert isinstance(run(start(policy=Policy(may_lack_prepares=True)), commit(A, 100))[1][0], Refuse)


def test_commit_without_prepare_is_taken_if_its_tables_are_reloaded() -> None:
    state = start(in_doubt=frozenset({A, B}), reloaded=frozenset({A}))
    state, done = run(state, commit(A, 100), Drained())
    assert done == [NoteInDoubt(A, LedgerState.COMMITTED), CommitMain(7, Lsn(110), 0, 0)]
    assert isinstance(run(state, commit(B, 120))[1][0], Refuse)


def test_commit_that_is_applied_is_skipped_even_if_the_ledger_lags() -> None:
    assert run(start(applied=200, in_doubt=frozenset({A})), commit(A, 190))[1] == []


def test_rollback_without_prepare_ends_its_ledger_entry() -> None:
    _, done = run(start(in_doubt=frozenset({A})), RollbackPreparedRead(A, Lsn(110)), Drained())
    assert done == [NoteInDoubt(A, LedgerState.ROLLED_BACK), CommitMain(7, Lsn(110), 0, 0)]


def test_prepared_twice_is_refused_and_a_gid_used_again_is_not() -> None:
    assert isinstance(run(start(), prepare(A, 100), prepare(A, 110))[1][0], Refuse)
    assert run(start(), prepare(A, 100), prepare(B, 110))[1] == []


def test_one_commit_on_its_way_while_the_next_batch_gathers() -> None:
    state, done = run(start(), plain(110), Drained(), plain(120), Drained())
    assert done == [CommitMain(8, Lsn(110), 1, 1)]
    assert not state.must_wait
    state, _ = run(state, TurnFull())
    assert state.must_wait
    state, done = run(state, committed(110))
    assert done == [CommitMain(9, Lsn(120), 1, 1)]
    assert not state.must_wait


def test_a_transaction_is_never_torn() -> None:
    state, done = run(start(), prepare(A, 100), plain(120), PlainUnfinished(), Drained(), TurnFull(), OpenDue(A))
    assert done == []
    assert not state.must_wait
    assert run(state, plain(130))[1] == [CommitMain(8, Lsn(130), 2, 2), OpenPrepared(A, 0)]


def test_idle_progress_follows_the_keepalives() -> None:
    state, done = run(start(), Passed(Lsn(500)), Drained(), IdleDue())
    assert done == [CommitMain(7, Lsn(500), 0, 0)]
    state, done = run(state, committed(500), IdleDue())
    assert (state.flush, done) == (500, [])


def test_message_is_applied_at_its_end_and_what_starts_there_is_new() -> None:
    _, done = run(start(), MessageRead(Lsn(110)), Drained())
    assert done == [CommitMain(8, Lsn(110), 0, 1)]
    recovered = start()
    assert recovered.is_applied_upto(Lsn(100))
    assert not recovered.is_applied_upto(Lsn(101))
    assert not recovered.is_applied(Lsn(100))


def test_answer_that_nobody_waits_for_ends_the_run() -> None:
    with pytest.raises(RunEnded, match="outstanding"):
        step(start(), committed(110))


def test_state_does_not_grow_with_the_batch() -> None:
    one, _ = run(start(), plain(110))
    many, _ = run(start(), *(plain(110 + n) for n in range(1000)))
    assert len(repr(many)) < len(repr(one)) + 20
    assert hash(many) != hash(one)
