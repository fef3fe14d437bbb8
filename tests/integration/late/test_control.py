"""The hole is in Kafka's older transaction protocol: a plain transactional producer behind the
proxy of `tests/late` loses rows, doubles them and shows what was aborted.

These tests fail on the day that client and broker no longer have it. Then the rule in
`twofold.kafka.producer` is there for older clients and brokers alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fixtures.stack import fresh_prefix
from late.control import Application, Told, plain
from late.frames import Api
from late.rules import Moment, Rule
from late.servers import FrontedKafka

LATE = 6
LONGEST_S = 60.0


@pytest.fixture
def run(fronted_kafka: FrontedKafka) -> Callable[[bool, Moment], Told]:
    """A producer's transactions until so many late commits, or aborts, were accepted inside another
    one.
    """

    def run(commit: bool, moment: Moment) -> Told:
        name = fresh_prefix()
        rule = Rule(name=name, api=Api.END_TXN, ids=f"^{name}", commit=commit, moment=moment, record_topic=r"\.marks$", gap=0.2)  # fmt: skip
        fronted_kafka.proxy.withhold(rule)
        deadline = time.monotonic() + LONGEST_S

        def over() -> bool:
            assert time.monotonic() < deadline, fronted_kafka.proxy.counts()
            return fronted_kafka.proxy.counts().get(name, {}).get("accepted", 0) >= LATE

        told = Application(fronted_kafka.bootstrap, name).run(over)
        print(moment, commit, plain(told), fronted_kafka.proxy.counts()[name])
        return told

    return run


def test_a_late_abort_loses_what_it_meets(run: Callable[[bool, Moment], Told]) -> None:
    """Between a transaction's rows and its marker: the marker is committed, the rows are not, and
    no error is told.
    """
    told = run(False, Moment.BEFORE_RECORD)
    assert len(told.lost) == LATE
    assert not told.errors


def test_a_late_commit_shows_what_is_aborted(run: Callable[[bool, Moment], Told]) -> None:
    assert len(run(True, Moment.BEFORE_RECORD).dirty) == LATE


def test_without_late_requests_nothing_is_lost(fronted_kafka: FrontedKafka) -> None:
    """What shows that the two others find what they say."""
    fronted_kafka.proxy.withhold()
    rounds = iter(range(40))
    told = Application(fronted_kafka.bootstrap, fresh_prefix()).run(lambda: next(rounds, None) is None)
    assert (told.lost, told.doubled, told.dirty, told.errors) == ([], set(), set(), {})
