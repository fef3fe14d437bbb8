"""Global cuts in their short form: some hundreds of random histories, every mutant. The long form
is `make model`.
"""

from __future__ import annotations

import pytest

from model.group_mutants import LIMIT, MUTANTS, GroupMutant
from model.group_world import GroupWorld, first_violation

SHORT = range(400)
SEARCHED = 3_000
"""How far a mutant is searched for, from the history that caught it last."""


def test_every_cut_is_whole() -> None:
    cuts = 0
    for seed in SHORT:
        world = GroupWorld(seed)
        world.run()
        cuts += world.cuts
    assert cuts > len(SHORT), "a world without cuts shows nothing"


@pytest.mark.parametrize("limit", [3, LIMIT, 100])
def test_a_cut_that_no_longer_waits_names_what_it_shows_in_part(limit: int) -> None:
    torn = 0
    for seed in SHORT:
        world = GroupWorld(seed, limit)
        world.run()
        torn += len(world.ever_torn)
    assert torn > 10, "a world that tears nothing shows nothing"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_broken_rule_of_a_cut_is_caught(mutant: GroupMutant) -> None:
    with mutant.applied():
        assert first_violation(range(mutant.seed, mutant.seed + SEARCHED), mutant.limit)
