"""The model of lives in its short form: small stories, every mutant.

The full form is `make model`.
"""

from __future__ import annotations

import functools
import typing

import pytest

from model.explore import Found, explore
from model.lives.model import LivesModel
from model.lives.mutants import MUTANTS, LivesMutant
from model.lives.scenarios import SHORT
from model.lives.source import Scenario
from twofold.lives import load_life, topic_life


@functools.cache
def explored(name: str) -> tuple[Found, frozenset[type]]:
    model = LivesModel(next(each for each in SHORT if each.name == name))
    return explore(model), frozenset(model.merger.met)


LONGER = {"a reload, paused and resumed", "no key, cancelled"}
"""They take seconds: `make test-slow` and `make model` have them."""


@pytest.mark.parametrize(
    "short", [pytest.param(each, marks=[pytest.mark.slow] * (each.name in LONGER), id=each.name) for each in SHORT]
)
def test_promises_hold(short: Scenario) -> None:
    found, _ = explored(short.name)
    assert found.violation is None, "\n".join(map(str, found.way[-8:]))
    assert found.states > 300


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_broken_rule_is_caught(mutant: LivesMutant) -> None:
    with mutant.applied() as broken:
        assert explore(broken).violation


NEVER_MET = {
    load_life.PinRead,  # it is each recovery's own
    load_life.TableUnpublished,
    load_life.RowsPassedOver,
    load_life.TableRecreated,
    load_life.ReloadDue,
    topic_life.RowsCounted,  # counts would make every reading again a new world
}
"""`tests/unit/lives` has these."""


@pytest.mark.slow
def test_model_reaches_every_event_and_action() -> None:
    """A model that never meets a case says nothing about it."""
    met = set().union(*(explored(short.name)[1] for short in SHORT))
    every = {
        *typing.get_args(load_life.LoadEvent),
        *typing.get_args(load_life.LoadAction),
        *typing.get_args(topic_life.TopicEvent),
        *typing.get_args(topic_life.TopicAction),
    }
    assert every - met == NEVER_MET
