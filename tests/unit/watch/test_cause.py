"""Why a connector is behind: what it has been told and what it waits for, as a person reads it."""

from __future__ import annotations

import pytest

from twofold.bridge import events, initial, step
from twofold.errors import Refused, TwofoldError, UncertainEnd, Unreachable
from twofold.watch.activity import Activity
from twofold.watch.cause import Cause, find_cause
from twofold_common.positions import Lsn


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def activity(clock: Clock) -> Activity:
    """Running, with one commit given to Kafka at 1000 s."""
    activity = Activity(clock)
    state = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=3, pool=1)
    activity.recovered(state)
    for event in (events.PlainRead(1, 1, Lsn(150)), events.Drained()):
        state, decided = step(state, event)
        activity.stepped(event, decided, state, 0)
    return activity


def cause(activity: Activity, clock: Clock, behind_s: float = 0.0) -> Cause | None:
    return find_cause(activity.view(), now=clock.now, behind_s=behind_s)


def test_a_commit_that_kafka_answers_in_time_is_none(activity: Activity, clock: Clock) -> None:
    clock.now += 2
    assert cause(activity, clock) is None


def test_a_silent_broker_is_told_since_the_commit_that_it_did_not_answer(activity: Activity, clock: Clock) -> None:
    clock.now += 40
    assert cause(activity, clock) == Cause("kafka", "Kafka has not answered a commit", 1000.0)
    clock.now += 20
    activity.ended(Unreachable("Kafka: committing failed: Local: Timed out (_TIMED_OUT)"), 1.0)
    assert cause(activity, clock) == Cause("kafka", "Kafka does not answer", 1000.0)
    clock.now += 300
    activity.recovering()
    activity.ended(Unreachable("Kafka: asking failed"), 1.0)
    assert cause(activity, clock) == Cause("kafka", "Kafka does not answer", 1000.0)
    activity.recovered(initial(applied_lsn=Lsn(150), confirmed_lsn=Lsn(100), sequence=4, pool=1))
    assert cause(activity, clock) is None


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (
            Unreachable("the registry at http://127.0.0.1:1 does not answer: x"),
            ("registry", "the schema registry does not answer"),
        ),
        (
            Unreachable("PostgreSQL went away: server closed the connection"),
            ("postgresql", "PostgreSQL does not answer"),
        ),
        (
            UncertainEnd("Kafka: the end was sent twice\nmore"),
            ("kafka", "the run ended: Kafka: the end was sent twice"),
        ),
        (Unreachable("no such host"), ("connector", "the run ended: no such host")),
    ],
)
def test_the_server_that_is_away_is_named(
    activity: Activity, clock: Clock, error: TwofoldError, found: tuple[str, str]
) -> None:
    activity.recovered(initial(applied_lsn=Lsn(150), confirmed_lsn=Lsn(100), sequence=4, pool=1))
    clock.now = 1234.0
    activity.ended(error, 1.0)
    assert cause(activity, clock) == Cause(*found, 1234.0)  # type: ignore[arg-type]


def test_a_standby_waits_for_the_slot(activity: Activity, clock: Clock) -> None:
    activity.standing_by("slot 'bank' is held by process 12 from fd00::1")
    assert cause(activity, clock) == Cause(
        "slot", "waits for the slot: slot 'bank' is held by process 12 from fd00::1", 1000.0
    )


def test_postgresql_that_does_not_answer_the_page_is_told(activity: Activity, clock: Clock) -> None:
    found = find_cause(activity.view(), now=clock.now, behind_s=0.0, source_error="away", source_away_since=990.0)
    assert found == Cause("postgresql", "PostgreSQL does not answer", 990.0)


def test_a_backlog_is_told_once_it_is_one(activity: Activity, clock: Clock) -> None:
    assert cause(activity, clock, behind_s=5.0) is None
    found = cause(activity, clock, behind_s=50.0)
    assert found is not None
    assert (found.party, found.since) == ("connector", None)


def test_a_refused_one_has_ended(activity: Activity, clock: Clock) -> None:
    activity.given_up(Refused("the topic is gone", at_stake="rows", repair="x"))
    assert cause(activity, clock) == Cause("connector", "not running", 1000.0)
