"""The chronicle, told what a run does by the bridge itself."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from twofold.bridge import Event, State, actions, events, initial, step
from twofold.errors import Refused, Unreachable
from twofold.run.observer import BackfillProgress
from twofold.watch.activity import Activity
from twofold.watch.activity_view import Positions
from twofold.watch.server import judge_health
from twofold_avro.records import Pin
from twofold_common.positions import Lsn, PreparedIdentity

TRANSFER = PreparedIdentity(7, "transfer")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Run:
    """The bridge and an activity beside it."""

    def __init__(self, pool: int = 1, applied: int = 100) -> None:
        self.clock = Clock()
        self.activity = Activity(self.clock)
        self.state: State = initial(applied_lsn=Lsn(applied), confirmed_lsn=Lsn(100), sequence=3, pool=pool)
        self.activity.recovered(self.state)

    def take(self, event: Event, at: float = 0.0) -> tuple[actions.Action, ...]:
        self.state, decided = step(self.state, event)
        self.activity.stepped(event, decided, self.state, int(at * 1e6))
        return tuple(decided)

    def prepare(self, identity: PreparedIdentity = TRANSFER, at: int = 110) -> None:
        self.take(events.PrepareRead(identity, Lsn(at), Lsn(at + 5), rows=4), at=999)

    def mark(self, identity: PreparedIdentity = TRANSFER) -> str:
        return self.activity.view().in_doubt.live[identity].state


@pytest.fixture
def run() -> Run:
    return Run()


def test_rows_count_when_kafka_has_committed_them_and_not_before(run: Run) -> None:
    run.take(events.PlainRead(2, 30, Lsn(150)), at=998.5)
    assert run.activity.view().positions.waiting == 2
    decided = run.take(events.Drained())
    assert any(isinstance(action, actions.CommitMain) for action in decided)
    assert (run.activity.view().totals.rows, run.activity.view().positions.waiting) == (0, 2)
    run.take(events.MainCommitted(Lsn(150)))
    view = run.activity.view()
    assert (view.totals.rows, view.totals.transactions, view.totals.commits["main"]) == (30, 2, 1)
    assert (view.positions.applied, view.positions.waiting) == (150, 0)
    assert view.totals.latency_s == pytest.approx(1.5)
    assert view.latency_max_s == pytest.approx(1.5)


def test_a_prepared_transaction_opens_is_parked_and_joins_the_group(run: Run) -> None:
    run.prepare()
    assert run.mark() == "staged"
    run.take(events.OpenDue(TRANSFER))
    run.take(events.PreparedOpened(TRANSFER))
    assert run.mark() == "open"
    run.clock.now += 30
    run.take(events.ParkDue(TRANSFER, "open for 30 s"))
    mark = run.activity.view().in_doubt.live[TRANSFER]
    assert (mark.state, mark.opened_at, mark.parked_at, mark.park_reason) == ("parked", 1000, 1030, "open for 30 s")
    run.take(events.PreparedAborted(TRANSFER))
    run.take(events.CommitPreparedRead(TRANSFER, Lsn(200), Lsn(210)), at=1030)
    assert run.mark() == "committing"
    for _ in range(5):
        for action in run.take(events.Drained()):
            if isinstance(action, actions.CommitMain):
                run.take(events.MainCommitted(action.applied_lsn))
    view = run.activity.view()
    assert [(m.identity, m.outcome) for m in view.in_doubt.past] == [(TRANSFER, "committed")]
    assert view.totals.prepared == {
        "staged": 1,
        "open": 1,
        "parked": 1,
        "committing": 1,
        "committed": 1,
    }
    assert view.totals.rows == 4


def test_an_open_one_commits_by_its_own_kafka_transaction(run: Run) -> None:
    run.prepare()
    run.take(events.OpenDue(TRANSFER))
    run.take(events.PreparedOpened(TRANSFER))
    decided = run.take(events.CommitPreparedRead(TRANSFER, Lsn(200), Lsn(210)), at=999.9)
    assert any(isinstance(action, actions.CommitOpenPrepared) for action in decided)
    run.take(events.PreparedCommitted(TRANSFER, Lsn(210)))
    view = run.activity.view()
    assert (view.totals.commits["prepared"], view.totals.rows, view.in_doubt.past[0].outcome) == (1, 4, "committed")


def test_a_rolled_back_one_counts_no_rows(run: Run) -> None:
    run.prepare()
    run.take(events.RollbackPreparedRead(TRANSFER, Lsn(210)))
    view = run.activity.view()
    assert (view.in_doubt.past[0].outcome, view.totals.prepared["rolled back"], view.totals.rows) == (
        "rolled back",
        1,
        0,
    )


def test_one_without_a_place_in_the_pool_says_so(run: Run) -> None:
    run.prepare()
    run.take(events.OpenDue(TRANSFER))
    run.take(events.PreparedOpened(TRANSFER))
    other = PreparedIdentity(8, "other")
    run.prepare(other, at=120)
    run.take(events.OpenDue(other))
    assert run.activity.view().in_doubt.live[other].park_reason == "no place in the pool"


def _answer(action: actions.Action) -> list[Event]:
    match action:
        case actions.CommitMain(_, applied_lsn):
            return [events.MainCommitted(applied_lsn)]
        case actions.OpenPrepared(identity):
            return [events.PreparedOpened(identity)]
        case actions.CommitOpenPrepared(identity):
            return [events.PreparedCommitted(identity, action.applied_lsn)]
        case actions.AbortPrepared(identity):
            return [events.PreparedAborted(identity)]
        case _:
            return []


@pytest.mark.parametrize("seed", range(30))
def test_the_marks_say_of_each_prepared_transaction_what_the_bridge_does(seed: int) -> None:
    """Whatever happens in which order, though a step looks only at those that it may have moved."""
    chance, at = random.Random(seed), 200
    run = Run(pool=2, applied=chance.choice([100, 1000]))
    answers: list[Event] = []
    in_doubt: list[PreparedIdentity] = []
    for _ in range(400):
        at += 10
        lsn, end = Lsn(at), Lsn(at + 5)
        identity = chance.choice(in_doubt) if in_doubt else PreparedIdentity(1, "never seen")
        happens: list[Event] = [
            *answers[:1] * 6,
            *[events.PrepareRead(PreparedIdentity(at, "x"), lsn, end, rows=chance.randint(0, 2))] * 3,
            events.PrepareRead(PreparedIdentity(at, "x"), lsn, end, rows=1, park_reason="a rule"),
            events.CommitPreparedRead(identity, lsn, end),
            events.RollbackPreparedRead(identity, end),
            events.OpenDue(identity),
            events.ParkDue(identity, "held too long"),
            events.PlainRead(1, 1, end),
            events.Drained(),
        ]
        event = chance.choice(happens)
        match event:
            case events.PrepareRead():
                in_doubt.append(event.identity)
            case events.CommitPreparedRead() | events.RollbackPreparedRead() if in_doubt:
                in_doubt.remove(identity)
            case _ if event in answers:
                answers.remove(event)
        answers += [answer for action in run.take(event) for answer in _answer(action)]
        said = {known: mark.state for known, mark in run.activity.view().in_doubt.live.items()}
        stands = {each.identity: each.phase.replace("opening", "staged") for each in run.state.prepared}
        assert {known: state for known, state in said.items() if state != "committing"} == stands


def test_what_nothing_waits_for_is_handled_up_to_where_it_was_read(run: Run) -> None:
    run.take(events.Passed(Lsn(500)))
    assert run.activity.view().positions.handled == 500
    run.take(events.PlainRead(1, 1, Lsn(600)), at=1)
    assert run.activity.view().positions.handled == 100


def test_the_journal_tells_each_end_with_its_cause_and_is_bounded(run: Run) -> None:
    for _ in range(200):
        run.activity.ended(Unreachable("Kafka does not answer"), 1.0)
        run.activity.recovering()
        run.activity.recovered(run.state)
    run.activity.given_up(Refused("the topic is gone", at_stake="rows", repair="reload"))
    view = run.activity.view()
    assert view.totals.ends == {"Unreachable": 200, "Refused": 1}
    assert len(view.journal) < 100
    assert (view.phase, view.journal[-1].cause) == ("refused", "Refused")


@pytest.mark.parametrize(
    ("tell", "healthy", "ready", "word"),
    [
        (lambda c: None, True, True, "running"),
        (lambda c: c.standing_by("walsender 12 has it"), True, False, "walsender 12 has it"),
        (lambda c: c.recovering(), True, False, "recovering"),
        (lambda c: c.ended(Unreachable("away"), 2.0), True, False, "away"),
        (lambda c: c.given_up(Refused("gone", at_stake="rows", repair="x")), False, False, "gone"),
    ],
)
def test_health_says_what_the_connector_does(
    run: Run, tell: Callable[[Activity], None], healthy: bool, ready: bool, word: str
) -> None:
    tell(run.activity)
    found = judge_health(run.activity.view(), turn_bound_s=30)
    assert (found.healthy, found.ready) == (healthy, ready)
    assert word in found.why


def test_who_stands_by_says_nothing_of_the_run_that_was_taken_over(run: Run) -> None:
    """It would age: the other instance goes on, and answers."""
    pin = Pin("public", "t", 3, "{}", backfill="running", stale="of before")
    run.activity.tables_known({"t": pin})
    run.activity.loading((BackfillProgress("public.t", "reading", 5, 9, 1.0, None),))
    run.prepare()
    run.take(events.PlainRead(2, 30, Lsn(150)), at=998.5)
    run.take(events.Drained())
    before = run.activity.view()
    assert (len(before.in_doubt.live), len(before.backfills), before.stale_tables) == (1, 1, 1)
    assert before.unanswered_since is not None
    run.activity.ended(Unreachable("PostgreSQL is away"), 0.1)
    run.activity.standing_by("walsender 12 has it")
    view = run.activity.view()
    assert (view.in_doubt.live, view.backfills, view.stale_tables, run.activity.tables()) == ({}, (), 0, [])
    assert (view.unanswered_since, view.outage, view.positions) == (None, None, Positions())
    assert view.totals.recoveries == 1


def test_a_loop_that_does_not_come_round_is_not_healthy(run: Run) -> None:
    found = judge_health(run.activity.view(), turn_bound_s=-1)
    assert not found.healthy
    assert not found.ready
    assert "stalled" in found.why
    run.activity.turned()
    assert judge_health(run.activity.view(), turn_bound_s=30).ready
