"""The short form of the laboratory: a few late requests of each kind into a connector, one broker,
everything compared. `make late` has the long forms.

Each case must have met what it is for: a laboratory that withholds nothing finds nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from late.cases import CASES
from late.laboratory import Laboratory, Result, delivered
from late.servers import Servers
from twofold.stack import temporary_folder

ENDS = ("abort-pool", "commit-pool", "commit-main-rows", "commit-main-record", "commit-takeover", "abort-main")
OTHERS = ("add", "produce", "init", "answers")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    folder = temporary_folder()
    with ExitStack() as ending:
        yield Laboratory(Servers(folder, ending), folder, print)
    shutil.rmtree(folder, ignore_errors=True)


def met(result: Result, deliveries: int) -> set[str]:
    """The rules that were met so often."""
    rules = (rule.name for rule in CASES[result.case].rules)
    return {name for name in rules if delivered(result.counts.get(name, {})) >= deliveries}


def check(result: Result, deliveries: int, kinds: int | None = None) -> None:
    """So many rules, or each, were met so often, and consumers have what they should."""
    print(result.line())
    assert len(met(result, deliveries)) >= (kinds or len(CASES[result.case].rules)), result.line()
    assert result.deliveries >= deliveries, result.line()
    assert result.violations == 0, result.line()


@pytest.mark.long
def test_late_ends_of_every_kind_harm_nothing(laboratory: Laboratory) -> None:
    """All at once: of the pool and of the main producers, of commits, aborts and takeovers.

    Which of them come in so short a time is chance; the slow tests wait for each.
    """
    check(laboratory.run(CASES["ends"], deliveries=1, longest_s=60), 1, kinds=2)


def test_lost_answers_harm_nothing(laboratory: Laboratory) -> None:
    check(laboratory.run(CASES["answers"], deliveries=1, longest_s=300), 1)


@pytest.mark.parametrize("name", [*ENDS, *OTHERS])
@pytest.mark.slow
def test_what_comes_late_harms_nothing(laboratory: Laboratory, name: str) -> None:
    check(laboratory.run(CASES[name], deliveries=10), 10)


@pytest.mark.parametrize("kill", ["held", "late"])
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.slow
def test_a_late_end_and_a_death_harm_nothing(laboratory: Laboratory, name: str, kill: str) -> None:
    check(laboratory.run(CASES[name], deliveries=15, kill=kill), 15)


@pytest.mark.slow
def test_a_broker_that_stops_for_longer_than_its_clients_wait_harms_nothing(laboratory: Laboratory) -> None:
    check(laboratory.run(CASES["frozen-broker"], deliveries=3), 3)


@pytest.mark.slow
def test_three_brokers() -> None:
    folder = temporary_folder()
    with ExitStack() as ending:
        laboratory = Laboratory(Servers(folder, ending, brokers=3), folder, print)
        for name in (*ENDS, "frozen-broker"):
            check(laboratory.run(CASES[name], deliveries=5), 5)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_without_a_fault_nothing_recovers(laboratory: Laboratory) -> None:
    result = laboratory.run(CASES["quiet"], deliveries=1, longest_s=60)
    assert result.violations == 0, result.line()
    assert result.recoveries == 1, result.line()
