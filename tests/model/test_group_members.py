"""Members that are added to a source group and taken away, in the short form: some hundreds of
random histories, every mutant.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from model.group_mutants import ignore_what_is_in_doubt, need_not_show_what_is_decided
from model.group_world import first_violation
from model.member_world import MemberWorld
from twofold_common.global_loads import Decisions
from twofold_common.group_admission import Admission

SEARCHED = 3_000


def test_every_cut_is_whole_over_its_members() -> None:
    admitted = 0
    for seed in range(60):
        world = MemberWorld(seed)
        world.run()
        admitted += world.admitted
    assert admitted > 16, "a world that admits nobody shows nothing"


def _believes_any_frontier(own: Any, frontier: Any) -> None:
    if frontier is not None and own.in_doubt is None:
        own.in_doubt = {*frontier.in_doubt}
    _follow(own, frontier)


def _asks_for_the_shown_alone(own: Any, unknown: Any, joined: Any) -> None:
    _init(own, {prefix: sequence if prefix in joined else 0 for prefix, sequence in unknown.items()}, joined)


_follow, _init = Decisions.follow, Admission.__init__
MUTANTS: dict[str, tuple[Any, str, Any, int]] = {
    "admitted at once": (Admission, "admits", lambda *_: True, 4),
    "what is in doubt is not waited for": (Decisions, "follow", ignore_what_is_in_doubt, 66),
    "a frontier that does not know what is shown": (Decisions, "follow", _believes_any_frontier, 829),
    "the cut need not show what is decided": (Decisions, "follow", need_not_show_what_is_decided, 4),
    "commit records that are gone are not asked for": (Admission, "__init__", _asks_for_the_shown_alone, 0),
    "nothing is written behind plain transactions alone": (MemberWorld, "has_leisure", False, 2624),
    "a cut is chosen without the new members": (MemberWorld, "chooses_without_the_new", True, 1),
}
"""Each with a history that catches it, so that the search is short."""


RARE = "commit records that are gone are not asked for"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == RARE else name for name in MUTANTS]
)
def test_broken_rule_of_members_is_caught(name: str) -> None:
    *where, seed = MUTANTS[name]
    with patch.object(*where):
        assert first_violation(MemberWorld, range(seed, seed + SEARCHED))
