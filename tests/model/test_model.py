"""The model checker in its short form: small logs, and each mutant that is soon caught. The rest is
slow, and the full form is `make model`.
"""

from __future__ import annotations

import functools
import typing
from dataclasses import replace
from unittest.mock import patch

import pytest

from model.explore import Found, explore
from model.kafka import Sink
from model.logs import Scenario, check_locks, scenario
from model.mutants import LATE, MUTANTS, Mutant
from model.run import Model
from model.scenarios import SHORT
from twofold.bridge import actions, events


@functools.cache
def explored(short: Scenario) -> tuple[Found, frozenset[type]]:
    model = Model(short)
    return explore(model), frozenset(model.met)


LONGER = {
    "large",
    "one slot again and again",
    "by rule, and without rows",
    "one",
    "large ones, one after the other",
    "synchronous",
    "three, a full pool",
}
"""Scenarios that take seconds: `make test-slow` and `make model` have them."""


@pytest.mark.parametrize(
    "short", [pytest.param(each, marks=[pytest.mark.slow] * (each.name in LONGER), id=each.name) for each in SHORT]
)
def test_promises_hold(short: Scenario) -> None:
    found, _ = explored(short)
    assert found.violation is None, "\n".join(map(str, found.way[-8:]))
    assert found.states > 1000


LONG = {
    "report beyond what a run resolves",
    "report beyond one that is held",
    "hold one that the ledger has",
    "keep the epoch after the abort of a wrong forecast",
    "initialise a doubted producer again in place, without the slot",
}
"""Mutants whose search takes seconds: `make test-slow` and `make model` have them."""


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=[pytest.mark.slow] * (each.name in LONG), id=each.name) for each in MUTANTS],
)
def test_broken_rule_is_caught(mutant: Mutant) -> None:
    with mutant.applied() as broken:
        assert explore(broken).violation


@pytest.mark.slow
def test_rows_that_are_looked_for_are_not_lost_to_a_late_abort() -> None:
    """The second line alone: where aborts may come late, a lost prepared transaction is noticed
    before it is declared.
    """
    with patch.object(Sink, "ends_the_epoch", lambda _, end, **__: end.commits):
        assert explore(Model(LATE)).violation
        assert explore(Model(replace(LATE, second_line=True))).violation is None


@pytest.mark.slow
def test_model_reaches_every_event_and_action() -> None:
    """A model that never meets a case says nothing about it."""
    met = set().union(*(explored(short)[1] for short in SHORT))
    elsewhere = {actions.Refuse, events.FrontierAsked, actions.WriteFrontier}  # frontiers: test_group.py
    assert met == {*typing.get_args(events.Event), *typing.get_args(actions.Action)} - elsewhere


def test_log_without_locks_is_no_log() -> None:
    with pytest.raises(AssertionError, match="hold"):
        check_locks([*scenario("", "P1a").log, *scenario("", "T2a").log])
