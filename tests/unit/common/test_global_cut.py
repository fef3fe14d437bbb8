"""The greatest global cut, by examples; `tests/model/test_group.py` tries it on histories."""

from __future__ import annotations

from dataclasses import replace

from twofold_common.global_cut import CommittedBranch, Frontier, Member, greatest_cut, greatest_step


def branch(sequence: int, name: str) -> CommittedBranch:
    return CommittedBranch(sequence, name)


def frontier(sequence: int, in_doubt: str = "", **seen: int) -> Frontier:
    return Frontier(sequence, seen, {each: (each,) for each in in_doubt.split()})


def member(cut: int, known: int, frontier: Frontier | None, *branches: CommittedBranch) -> Member:
    return Member(cut, known, branches, frontier)


def test_what_is_plain_waits_for_nobody() -> None:
    east = member(3, 9, frontier(3, west=1))
    assert greatest_cut({"east": east, "west": member(1, 1, frontier(1, east=3))}) == {"east": 9, "west": 1}


def test_it_stays_while_members_read_gids_by_several_patterns() -> None:
    """The west has a branch of g, and cannot tell: neither frontier nor commit record names it."""
    east, west = frontier(5, west=7), frontier(7, east=5)
    members = {"east": member(2, 5, replace(east, gid_patterns=("g",)), branch(4, "g")), "west": member(1, 7, west)}
    assert greatest_cut(members) == {"east": 2, "west": 1}
    members["west"] = member(1, 7, replace(west, gid_patterns=("g",)))
    assert greatest_cut(members) == {"east": 5, "west": 7}


def test_both_branches_appear_at_once() -> None:
    east = member(0, 5, frontier(5, west=7), branch(4, "g"))
    west = member(0, 7, frontier(7, east=5), branch(6, "g"))
    assert greatest_cut({"east": east, "west": west}) == {"east": 5, "west": 7}


def test_a_branch_in_doubt_holds_back_only_who_shows_its_sibling() -> None:
    east = member(0, 5, frontier(5, west=7, north=9), branch(4, "g"))
    west = member(0, 7, frontier(7, "g", east=5, north=9))
    north = member(0, 9, frontier(9, east=5, west=7))
    assert greatest_cut({"east": east, "west": west, "north": north}) == {"east": 3, "west": 7, "north": 9}


def test_it_appears_when_both_have_seen_both_commits() -> None:
    east = member(0, 5, frontier(5, west=8), branch(4, "g"))
    behind = member(0, 8, frontier(7, "g", east=5), branch(8, "g"))
    assert greatest_cut({"east": east, "west": behind}) == {"east": 3, "west": 7}
    west = member(0, 8, frontier(8, east=5), branch(8, "g"))
    assert greatest_cut({"east": east, "west": west}) == {"east": 5, "west": 8}


def test_what_no_frontier_speaks_of_is_not_shown() -> None:
    east = member(0, 5, frontier(5, west=7), branch(4, "g"))
    west = member(0, 7, frontier(7, east=3))
    assert greatest_cut({"east": east, "west": west}) == {"east": 3, "west": 7}


def test_what_is_lowered_hides_what_it_showed() -> None:
    """h is in doubt in the north; east shows it before g, so g is hidden too, with west's."""
    east = member(0, 5, frontier(5, west=5, north=5), branch(2, "h"), branch(4, "g"))
    west = member(0, 5, frontier(5, east=5, north=5), branch(3, "g"))
    north = member(0, 5, frontier(5, "h", east=5, west=5))
    assert greatest_cut({"east": east, "west": west, "north": north}) == {"east": 1, "west": 2, "north": 5}


def test_two_branches_in_one_source_are_whole_or_absent_too() -> None:
    east = member(0, 5, frontier(5, "g", west=5), branch(3, "g"))
    west = member(0, 5, frontier(5, east=5))
    assert greatest_cut({"east": east, "west": west}) == {"east": 2, "west": 5}


def test_it_stays_until_every_member_has_a_frontier_whose_commits_are_read() -> None:
    west = member(1, 7, frontier(7, east=5))
    assert greatest_cut({"east": member(2, 5, None), "west": west}) == {"east": 2, "west": 1}
    assert greatest_cut({"east": member(2, 5, frontier(6, west=7)), "west": west}) == {"east": 2, "west": 1}


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

    def steps(east: int, west: int) -> dict[str, int]:
        now = members(east, west)
        limits = {"east": east, "west": west}
        return greatest_step(
            now,
            (),
            greatest_cut(now),
            lambda factor: {prefix: cut + 4 * factor for prefix, cut in limits.items()},
        )

    assert steps(0, 0) == {"east": 4, "west": 3}, "h is beyond the east's limit"
    assert steps(4, 3) == {"east": 8, "west": 3}
    assert steps(8, 3) == {"east": 10, "west": 7}
    assert steps(10, 7) == {"east": 10, "west": 10}


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

    whole = greatest_cut(crossed)
    assert greatest_step(crossed, (), whole, limits) == whole
    assert asked == [1, 2, 4, 8]
