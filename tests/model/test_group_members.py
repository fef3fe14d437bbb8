"""Members that are added to a source group and taken away, in the short form: some hundreds of
random histories, every mutant.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from model.member_world import MemberWorld, first_violation_of_members
from twofold_common.group_admission import Admission

SEARCHED = 3_000


def test_every_cut_is_whole_over_its_members() -> None:
    admitted = 0
    for seed in range(400):
        world = MemberWorld(seed)
        world.run()
        admitted += world.admitted
    assert admitted > 100, "a world that admits nobody shows nothing"


def _does_not_wait_for_what_is_in_doubt(own: Any, prefix: str, member: Any) -> None:
    _follow(own, prefix, member)
    if prefix in own._in_doubt:
        own._least[prefix] = member.frontier.sequence
        own._in_doubt[prefix] = set()


def _believes_any_frontier(own: Any, prefix: str, member: Any) -> None:
    if member.frontier is not None:
        own._in_doubt.setdefault(prefix, {*member.frontier.in_doubt})
    _follow(own, prefix, member)


def _is_shown(own: Any, prefix: str, member: Any) -> None:
    _follow(own, prefix, member)
    if prefix in own._least:
        own._least[prefix] = 0


def _asks_for_the_shown_alone(own: Any, unknown: Any, joined: Any) -> None:
    _init(own, {prefix: sequence if prefix in joined else 0 for prefix, sequence in unknown.items()}, joined)


_follow, _init = Admission._follow, Admission.__init__
MUTANTS: dict[str, tuple[Any, str, Any, int]] = {
    "admitted at once": (Admission, "admits", lambda *_: True, 2),
    "what is in doubt is not waited for": (Admission, "_follow", _does_not_wait_for_what_is_in_doubt, 240),
    "a frontier that does not know what is shown": (Admission, "_follow", _believes_any_frontier, 2),
    "the cut need not show what is decided": (Admission, "_follow", _is_shown, 17),
    "commit records that are gone are not asked for": (Admission, "__init__", _asks_for_the_shown_alone, 2215),
    "a cut is chosen without the new members": (MemberWorld, "chooses_without_the_new", True, 2),
}
"""Each with a history that catches it, so that the search is short."""


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_of_members_is_caught(name: str) -> None:
    *where, seed = MUTANTS[name]
    with patch.object(*where):
        assert first_violation_of_members(range(seed, seed + SEARCHED))
