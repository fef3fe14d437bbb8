"""Sources of a group that are made again while global transactions are in doubt, in the short form:
some hundreds of random histories, and the rules that these histories need.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from model import group_mutants
from model.group_world import first_violation
from model.remade_world import RemadeWorld
from twofold_common.global_cut import Frontier

SEARCHED = 3_000


def test_every_cut_is_whole_though_sources_are_made_again() -> None:
    made_again = cuts = 0
    for seed in range(60):
        world = RemadeWorld(seed)
        world.run()
        made_again, cuts = made_again + world.made_again, cuts + world.cuts
    assert made_again > 60, "a world in which nothing is in doubt then shows nothing"
    assert cuts > 60, "a world without cuts shows nothing"


def _believe_any_stream(own: Frontier, read: Any) -> Frontier:
    return own


def test_numbers_of_a_former_stream_say_nothing_of_the_new_one() -> None:
    with patch.object(Frontier, "keep_streams", _believe_any_stream):
        assert first_violation(RemadeWorld, range(2117, 2117 + SEARCHED))


SEEDS = {"what PostgreSQL lists is left out": 1635, "loads are forgotten": 10, "a load ignores what is in doubt": 10}
"""Histories that catch them, so that the search is short."""


@pytest.mark.parametrize("name", SEEDS)
def test_broken_rule_of_a_cut_is_caught(name: str) -> None:
    mutant = next(each for each in group_mutants.MUTANTS if each.name == name)
    with mutant.applied():
        assert first_violation(RemadeWorld, range(SEEDS[name], SEEDS[name] + SEARCHED))
