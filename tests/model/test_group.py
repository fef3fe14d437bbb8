"""Global cuts in their short form: some hundreds of random histories, every mutant. The long form
is `make model`.
"""

from __future__ import annotations

import pytest

from model.group_mutants import MUTANTS, GroupMutant
from model.group_world import GroupWorld, first_violation

SHORT = range(60)
SEARCHED = 3_000
"""How far a mutant is searched for, from the history that caught it last."""


def test_every_cut_is_whole() -> None:
    cuts = loads = 0
    for seed in SHORT:
        world = GroupWorld(seed)
        world.run()
        cuts, loads = cuts + world.cuts, loads + world.loads_shown
    assert cuts > len(SHORT), "a world without cuts shows nothing"
    assert loads > len(SHORT), "a world without loads shows nothing of them"


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.seed is not None], ids=lambda each: each.name)
def test_broken_rule_of_a_cut_is_caught(mutant: GroupMutant) -> None:
    assert mutant.seed is not None
    with mutant.applied():
        assert first_violation(GroupWorld, range(mutant.seed, mutant.seed + SEARCHED))
