"""The checker finds nothing in a faultless history, and each planted violation by the check that is
meant for it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos import checks, journal, plan
from chaos.draft import Draft
from chaos.lanes import GROUP_KINDS, GROUP_LANES, KINDS, LANES
from chaos.planted import PLANTS, Plant
from chaos.sample import faultless


def test_a_faultless_history_has_no_violation() -> None:
    history = faultless()
    assert checks.check(history) == []
    assert checks.check(Draft(history, random.Random(1)).done()) == [], "what is only written again has none either"


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_each_planted_violation_is_found(plant: Plant) -> None:
    draft = Draft(faultless(), random.Random(1))
    plant(draft)
    found = {violation.kind for violation in checks.check(draft.done())}
    assert found & PLANTS[plant], found


EVERY = KINDS | GROUP_KINDS


def test_a_seed_gives_the_same_plan() -> None:
    drawn = plan.draw(7, KINDS)
    again = plan.draw(7, KINDS)
    assert drawn == again
    for lane in {**LANES, **GROUP_LANES}:
        first, second = drawn.faults(lane, EVERY), again.faults(lane, EVERY)
        assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]
    assert plan.draw(8, KINDS) != drawn


def test_all_kinds_are_drawn_and_only_those_that_were_asked_for() -> None:
    for lane, kinds in {**LANES, **GROUP_LANES}.items():
        faults = plan.draw(1, EVERY).faults(lane, EVERY)
        assert {next(faults).kind for _ in range(500)} == set(kinds)
        some = frozenset(sorted(kinds)[:2])
        faults = plan.draw(1, some).faults(lane, some)
        assert {next(faults).kind for _ in range(50)} == some


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    writer = journal.Writer(tmp_path / "client-1.jsonl")
    writer.seed("bank_a", [({"id": 1}, {"id": 1, "balance": 5})])
    writer.begun("1-1", None, [("notes", "c", None, {"line": "x"})])
    writer.begun("1-2", "gid", [("scratch", "t", None, None)])
    writer.told("1-1", "committed")
    writer.close()
    found = journal.read(tmp_path)
    assert found.seed == [("bank_a", {"id": 1}, {"id": 1, "balance": 5})]
    assert found.entries["1-1"].told == "committed"
    assert found.entries["1-2"] == journal.Entry("1-2", "gid", [("scratch", "t", None, None)], "unknown")
