"""Which members of a source group wait for a branch in doubt."""

from __future__ import annotations

from twofold.group.ledgers import Branch
from twofold.group.siblings import HeldBack, count_held_back, held_back_by

EAST = Branch("east", "g/east", "g", "committed", sequence=40, committed_at=1000.0)
MEMBERS = ("east", "west", "north")


def test_a_member_that_has_committed_waits_from_there_on() -> None:
    (found,) = held_back_by([EAST], MEMBERS, {"east": 43, "other": 9})
    assert found == HeldBack("east", 40, 4, 1000.0)
    assert str(found) == "4 commit records of east from 40 on"


def test_the_first_of_two_branches_counts() -> None:
    second = Branch("east", "g/east 2", "g", "committed", sequence=38, committed_at=999.0)
    (found,) = held_back_by([EAST, second], MEMBERS, {"east": 43})
    assert (found.sequence, found.commits) == (38, 6)


def test_nobody_else_waits() -> None:
    others = [
        Branch("west", "g/west", "g", "parked"),
        Branch("north", "g/north", "g", "rolled_back"),
        Branch("elsewhere", "g/elsewhere", "g", "committed", sequence=3, committed_at=1.0),
    ]
    assert held_back_by(others, MEMBERS, {"elsewhere": 9}) == ()


def test_a_commit_record_that_waits_for_two_counts_once() -> None:
    found = [HeldBack("east", 40, 4, None), HeldBack("east", 42, 2, None), HeldBack("north", 7, 1, None)]
    assert count_held_back(found) == 5
