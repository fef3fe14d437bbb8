"""The global cut with a limit for waiting, by examples; `tests/model/test_group.py` tries it on
histories.
"""

from __future__ import annotations

from twofold_common.global_cut import CommittedBranch, Frontier, Member
from twofold_common.global_cut_choice import (
    NOTHING_TORN,
    Choice,
    ShownBranch,
    choose_cut,
    choose_step,
    find_overdue,
    keep_members,
)


def branch(sequence: int, name: str) -> CommittedBranch:
    return CommittedBranch(sequence, name)


def frontier(sequence: int, in_doubt: str = "", **seen: int) -> Frontier:
    return Frontier(sequence, seen, {each: (each,) for each in in_doubt.split()})


def member(cut: int, known: int, frontier: Frontier, *branches: CommittedBranch) -> Member:
    return Member(cut, known, branches, frontier)


EAST = member(0, 9, frontier(9, west=7), branch(4, "g"), branch(6, "h"))
WEST = member(0, 7, frontier(7, "g h", east=9))
G_SHOWN = {"g": (ShownBranch("east", 4),)}


def test_without_a_limit_nothing_is_overdue() -> None:
    assert find_overdue({"g": 1e9}, None) == set()
    assert find_overdue({"g": 30, "h": 30.5}, 30) == {"h"}


def test_only_what_is_overdue_is_let_go_and_named() -> None:
    members = {"east": EAST, "west": WEST}
    assert choose_cut(members, NOTHING_TORN, set()) == Choice({"east": 3, "west": 7}, {})
    assert choose_cut(members, NOTHING_TORN, {"g"}) == Choice({"east": 5, "west": 7}, G_SHOWN)


def test_what_is_overdue_and_not_shown_is_not_torn() -> None:
    assert choose_cut({"east": EAST, "west": WEST}, NOTHING_TORN, {"h"}) == Choice({"east": 3, "west": 7}, {})


def test_it_stays_torn_until_its_other_branch_is_shown() -> None:
    east = member(5, 5, frontier(5, west=9))
    assert choose_cut({"east": east, "west": WEST}, G_SHOWN, set()).torn == G_SHOWN
    west = member(7, 9, frontier(9, east=5), branch(8, "g"))
    assert choose_cut({"east": east, "west": west}, G_SHOWN, set()) == Choice({"east": 5, "west": 9}, {})
    without = member(7, 9, frontier(9, east=5))
    assert choose_cut({"east": east, "west": without}, G_SHOWN, set()) == Choice({"east": 5, "west": 9}, {})


def test_its_late_branch_holds_nobody_back() -> None:
    """The north commits its branch, and the west has its own still in doubt."""
    east = member(5, 5, frontier(5, west=7, north=3))
    west = member(7, 7, frontier(7, "g", east=5, north=3))
    north = member(2, 3, frontier(3, east=5, west=7), branch(3, "g"))
    chosen = choose_cut({"east": east, "west": west, "north": north}, G_SHOWN, set())
    assert chosen == Choice(
        {"east": 5, "west": 7, "north": 3}, {"g": (ShownBranch("east", 4), ShownBranch("north", 3))}
    )


def test_a_member_that_has_not_seen_it_may_have_a_branch() -> None:
    east = member(0, 5, frontier(5, west=1), branch(4, "g"))
    west = member(0, 1, frontier(1, east=3))
    assert choose_cut({"east": east, "west": west}, NOTHING_TORN, {"g"}) == Choice({"east": 5, "west": 1}, G_SHOWN)


def test_a_member_that_is_taken_away_leaves_no_branch_in_what_is_torn() -> None:
    torn = {"g": (ShownBranch("east", 4), ShownBranch("north", 2)), "h": (ShownBranch("north", 3),)}
    assert keep_members(torn, {"east", "west"}) == G_SHOWN


def test_a_cut_within_limits_is_whole_and_the_next_one_goes_on() -> None:
    """Each global transaction spans a large part of a member; one of both is within the limits."""

    def members(east_cut: int, west_cut: int) -> dict[str, Member]:
        places = {"east": (east_cut, (2, "g"), (9, "h")), "west": (west_cut, (3, "g"), (4, "h"))}
        return {
            prefix: Member(
                cut, 10, tuple(branch(*each) for each in both if each[0] > cut), frontier(10, east=10, west=10)
            )
            for prefix, (cut, *both) in places.items()
        }

    def steps(east: int, west: int) -> Choice:
        now = members(east, west)
        limits = {"east": east, "west": west}
        return choose_step(
            now,
            choose_cut(now, NOTHING_TORN, ()),
            NOTHING_TORN,
            (),
            lambda factor: {prefix: cut + 4 * factor for prefix, cut in limits.items()},
        )

    assert steps(0, 0).cut == {"east": 4, "west": 3}, "h is beyond the east's limit"
    assert steps(4, 3).cut == {"east": 8, "west": 3}
    assert steps(8, 3).cut == {"east": 10, "west": 7}
    assert steps(10, 7).cut == {"east": 10, "west": 10}


def test_limits_grow_where_nothing_smaller_is_whole() -> None:
    """g and h cross: neither member can show its first without the other's last."""
    seen = frontier(9, east=9, west=9)
    crossed = {
        "east": member(0, 9, seen, branch(1, "g"), branch(9, "h")),
        "west": member(0, 9, seen, branch(1, "h"), branch(9, "g")),
    }
    asked: list[int] = []

    def limits(factor: int) -> dict[str, int]:
        asked.append(factor)
        return dict.fromkeys(crossed, 2 * factor)

    whole = choose_cut(crossed, NOTHING_TORN, ())
    assert choose_step(crossed, whole, NOTHING_TORN, (), limits) == whole
    assert asked == [1, 2, 4, 8]
