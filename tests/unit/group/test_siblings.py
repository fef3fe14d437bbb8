"""Which statements are offered for a branch in doubt: none that could tear what is global."""

from __future__ import annotations

from typing import Literal

import pytest

from twofold.group.ledgers import Branch
from twofold.group.siblings import statements_left

COMMIT, ROLLBACK = "COMMIT PREPARED 'a';", "ROLLBACK PREPARED 'a';"
State = Literal["open", "parked", "committed", "rolled_back"]


@pytest.mark.parametrize(
    ("global_id", "states", "offered"),
    [
        (None, [], (COMMIT, ROLLBACK)),
        ("g", [], ()),
        ("g", ["open", "parked"], ()),
        ("g", ["open", "committed"], (COMMIT,)),
        ("g", ["rolled_back"], (ROLLBACK,)),
        ("g", ["committed", "rolled_back"], (COMMIT, ROLLBACK)),
    ],
)
def test_the_outcome_of_another_branch_decides(
    global_id: str | None, states: list[State], offered: tuple[str, ...]
) -> None:
    siblings = [Branch("west", f"b{n}", "g", state) for n, state in enumerate(states)]
    assert statements_left("a", global_id, siblings) == offered
