"""What the pipeline's loop makes of errors, where no server is needed to see it."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from twofold.bridge import Event, events, initial
from twofold.config import TurnConfig
from twofold.errors import MalformedMessage, Refused
from twofold.run import run as module
from twofold.run.observer import Observer
from twofold.run.run import OUTCOMES_BYTES, RefusedBehind, Run, StopRequested, Timers
from twofold.stream.source_transaction import CollectedEvent
from twofold_avro.errors import MalformedRow
from twofold_common.positions import Lsn, PreparedIdentity

NAMES = "state session collector executor worker loading timers doubt_warnings limits registrar"


def make(**parts: Any) -> tuple[Run, Any]:
    """A run, and its parts by their names: those that are given, mocks for the others."""
    found = SimpleNamespace(**{name: MagicMock() for name in NAMES.split()}, stop=threading.Event())
    vars(found).update(parts)
    return Run(**vars(found)), found


@pytest.mark.parametrize(("where", "call"), [("loading", "turn"), ("collector", "collect")])
def test_a_row_that_makes_no_sense_has_its_own_status_wherever_it_was_met(where: str, call: str) -> None:
    """It would come again, so the supervisor does not try again: by a backfill's reader, and in the
    stream.
    """
    run, parts = make()
    parts.state.must_wait = False
    parts.loading.due.return_value = None
    parts.collector.half_prepared = parts.collector.reached = False
    getattr(getattr(parts, where), call).side_effect = MalformedRow(
        "no boolean", table="public.t", column="c", offset=17
    )
    with pytest.raises(MalformedMessage) as ended:
        run.go(Observer())
    assert (str(ended.value), ended.value.exit_status) == ("column c of public.t: no boolean at byte 17", 7)


@pytest.mark.parametrize(("at", "ends_with"), [(Lsn(0), Refused), (Lsn(7), RefusedBehind)])
def test_a_refusal_without_a_commit_before_it_is_raised_at_once(at: Lsn, ends_with: type[Exception]) -> None:
    """Only rollbacks were gathered: a run up to no commit would meet the refusal for ever."""
    refusal = Refused("what", at_stake="stake", repair="repair")
    collector = MagicMock(half_prepared=False, reached=False, gathered=True, at=at)
    collector.collect.side_effect = refusal
    run, parts = make(state=MagicMock(must_wait=False), collector=collector)
    parts.loading.due.return_value = None
    with pytest.raises(ends_with):
        run._turns()


@pytest.mark.parametrize("half_prepared", [True, False])
def test_no_table_is_registered_by_a_load_while_a_prepared_transaction_is_half_read(half_prepared: bool) -> None:
    """Some of its rows would have a provisional schema id and others not, and nothing would say
    so.
    """
    collector = MagicMock(half_prepared=half_prepared, reached=False)
    run, parts = make(state=MagicMock(must_wait=False, batch=None), collector=collector, stop=MagicMock())
    parts.loading.due.return_value = None
    parts.stop.is_set.side_effect = [False, True]
    run._turns()
    assert parts.loading.turn.called != half_prepared


@pytest.mark.parametrize("ended", [False, True])
def test_one_that_took_long_to_open_is_parked_so_much_sooner(monkeypatch: pytest.MonkeyPatch, *, ended: bool) -> None:
    """Kafka's own timeout has counted all the while. Not if its outcome was read meanwhile."""
    timers = Timers(open_within_s=0, hold_s=30, idle_s=1000, pool=1, now=100)
    run, parts = make(executor=MagicMock(begun=lambda _: 100.0), timers=timers)
    parts.state.find.return_value = None if ended else object()
    monkeypatch.setattr(module, "step", lambda state, _: (state, ()))
    identity = PreparedIdentity(1, "a")
    run._take_collected(CollectedEvent(events.PrepareRead(identity, Lsn(1), Lsn(2), rows=1)))
    run._step_bridge(events.PreparedOpened(identity))
    due = timers.due(130, drained=True, in_doubt=1)
    assert (events.ParkDue(identity, "open for 30 s (prepared.hold)") in due) is not ended


@pytest.mark.parametrize(
    ("committing", "rows", "size", "outcomes", "full"),
    [
        (False, 99, 0, 0, False),
        (False, 100, 0, 0, True),
        (True, 100, 0, 0, False),
        (True, 399, 0, 0, False),
        (True, 400, 0, 0, True),
        (True, 99, 1000, 0, True),
        (True, 99, 0, OUTCOMES_BYTES - 1, False),
        (True, 99, 0, OUTCOMES_BYTES, True),
    ],
)
def test_while_kafka_commits_more_rows_are_gathered_but_not_more_bytes(
    monkeypatch: pytest.MonkeyPatch, committing: bool, rows: int, size: int, outcomes: int, full: bool
) -> None:
    run, _ = make(
        state=MagicMock(unanswered=("one",) if committing else ()),
        executor=MagicMock(batch_records=rows, batch_bytes=size, batch_outcome_bytes=outcomes),
        limits=TurnConfig.model_validate({"rows": 100, "bytes": 1000}),
    )
    taken: list[Event] = []
    monkeypatch.setattr(run, "_step_bridge", taken.append)
    run._end_turn_if_full()
    assert taken == ([events.TurnFull()] if full else [])


@pytest.mark.parametrize("executing", [True, False])
def test_while_the_registrar_waits_commits_go_on_except_between_the_actions_of_a_step(
    monkeypatch: pytest.MonkeyPatch, executing: bool
) -> None:
    run, parts = make()
    answer = events.MainCommitted(Lsn(7))
    parts.worker.answers.return_value, parts.timers.due.return_value = [answer], [events.IdleDue()]
    taken: list[Event] = []
    monkeypatch.setattr(run, "_step_bridge", taken.append)
    monkeypatch.setattr(run, "_executing", executing)
    run._while_waiting()
    assert parts.session.tend.called
    assert taken == ([] if executing else [answer, events.IdleDue(), events.Drained()])


@pytest.mark.parametrize("executing", [True, False])
def test_a_stop_in_the_midst_of_a_wait_commits_what_is_whole_and_nothing_of_half_a_step(
    monkeypatch: pytest.MonkeyPatch, executing: bool
) -> None:
    run, parts = make(state=MagicMock(unfinished=False, unanswered=()))
    parts.worker.busy = False
    taken: list[Event] = []
    monkeypatch.setattr(run, "_step_bridge", taken.append)

    def turns() -> None:
        run._executing = executing
        raise StopRequested

    monkeypatch.setattr(run, "_turns", turns)
    with pytest.raises(StopRequested) if executing else nullcontext():
        run.go(Observer())
    assert taken == ([] if executing else [events.TurnFull()])


@pytest.mark.parametrize("received", [(), ("something",)])
@pytest.mark.parametrize(("asked", "announced"), [(120, True), (130, False)])
def test_what_is_held_back_is_announced_when_a_frontier_waits_for_it(
    asked: int, announced: bool, received: tuple[str, ...]
) -> None:
    question = events.FrontierAsked((), frozenset(), Lsn(asked))
    state = initial(applied_lsn=Lsn(120), confirmed_lsn=Lsn(120), sequence=1, pool=1)._replace(asked=question)
    run, parts = make(state=state, frontiers=MagicMock())
    parts.session.read.return_value = received
    parts.collector.announce.return_value = ()
    run._read(0.0, drained=False)
    assert parts.collector.announce.called == announced


def test_an_empty_socket_is_waited_for_until_one_that_is_held_is_due_and_then_it_is_announced() -> None:
    state = initial(applied_lsn=Lsn(120), confirmed_lsn=Lsn(120), sequence=1, pool=1)
    run, parts = make(state=state, loading=MagicMock(busy=False), worker=MagicMock(busy=False))
    parts.timers.wait_s.return_value = 0.3
    one = PreparedIdentity(1, "a")
    announced = CollectedEvent(events.PrepareRead(one, Lsn(130), Lsn(140), rows=1))
    parts.collector.wait_s.return_value = 0.1
    parts.collector.announce_drained.side_effect = [(), (announced,), ()]
    parts.session.read.return_value = ()
    for _ in range(3):
        assert run._read(0.0, drained=True)
    assert {call.kwargs["wait_s"] for call in parts.session.read.call_args_list} == {0.1}
    assert [call.args[1] for call in parts.collector.announce_drained.call_args_list] == [0, 0, 1]
    assert run.state.find(one)


def test_an_answer_that_comes_right_behind_the_others_is_not_overslept() -> None:
    """The socket would be waited for, up to half a second, while a batch could be committed."""
    run, parts = make(
        state=initial(applied_lsn=Lsn(120), confirmed_lsn=Lsn(120), sequence=1, pool=1),
        collector=MagicMock(half_prepared=False, reached=False),
        worker=MagicMock(busy=True),
        loading=MagicMock(busy=False),
        stop=MagicMock(),
    )
    parts.timers.wait_s.return_value, parts.collector.wait_s.return_value = 0.3, 0.2
    parts.session.read.return_value = ()
    parts.loading.due.return_value = None
    parts.stop.is_set.side_effect = [False, False, False, True]

    def answers(_: float) -> list[Event]:
        parts.worker.busy = parts.worker.answers.call_count < 2  # the job ends right behind the second look
        return []

    parts.worker.answers.side_effect = answers
    run._turns()
    assert [call.kwargs["wait_s"] for call in parts.session.read.call_args_list] == [0, 0, 0.2]
