"""When the end of a load may be in a global cut, by examples; `tests/model/test_group.py` tries it
on histories.
"""

from __future__ import annotations

from dataclasses import replace

from twofold_common.global_cut import CommittedBranch, Frontier, Member, greatest_cut
from twofold_common.global_loads import Loads, ends_a_load


def frontier(sequence: int, in_doubt: str = "", **seen: int) -> Frontier:
    return Frontier(sequence, seen, {each: (each,) for each in in_doubt.split()})


def chosen(loads: Loads, **members: Member) -> dict[str, int]:
    return greatest_cut(members, loads.follow(members))


def test_a_load_is_shown_with_what_was_in_doubt_elsewhere() -> None:
    """The south's commit record 4 ends a load; the east has g in doubt, which the load may show."""
    loads = Loads()
    south = Member(0, 5, (), frontier(5, east=9), loads=(4,))
    assert chosen(loads, south=south, east=Member(0, 9, (), frontier(9, "g", south=5))) == {"south": 3, "east": 9}
    assert loads.find_reasons() == {("south", 4): ["what is in doubt in east: g"]}
    later = Member(0, 12, (CommittedBranch(11, "g"),), frontier(12, "h", south=5))
    assert chosen(loads, south=south, east=later) == {"south": 3, "east": 10}, "the south has not seen the outcome"
    south = Member(0, 5, (), frontier(5, east=12), loads=(4,))
    assert chosen(loads, south=south, east=later) == {"south": 5, "east": 12}, "h came later"
    assert loads.find_reasons() == {}


def test_other_patterns_of_gids_give_what_is_in_doubt_another_name() -> None:
    loads = Loads()
    south = Member(0, 5, (), frontier(5, east=9), loads=(4,))
    chosen(loads, south=south, east=Member(0, 9, (), frontier(9, "t-1", south=5)))
    south, east = (
        replace(each, frontier=replace(now, gid_patterns=("t-(?P<global>.+)(?P<branch>)",)))
        for each, now in ((south, frontier(5, east=9)), (Member(0, 9, (), None), frontier(9, "1", south=5)))
    )
    assert chosen(loads, south=south, east=east) == {"south": 3, "east": 9}
    assert loads.find_reasons() == {("south", 4): ["what is in doubt in east: 1"]}


def test_a_frontier_that_does_not_know_the_load_says_nothing_of_it() -> None:
    """Behind it a sibling may have been prepared."""
    loads = Loads()
    south = Member(0, 5, (), frontier(5, east=9), loads=(4,))
    assert chosen(loads, south=south, east=Member(0, 9, (), frontier(9, south=3))) == {"south": 3, "east": 9}
    assert loads.find_reasons() == {("south", 4): ["a frontier of east that knows commit record 4 of south"]}
    assert chosen(loads, south=south, east=Member(0, 9, (), frontier(9, "g", south=4))) == {"south": 3, "east": 9}
    assert chosen(loads, south=south, east=Member(0, 9, (), frontier(9, south=4))) == {"south": 5, "east": 9}


def test_its_own_source_may_have_another_branch_in_doubt() -> None:
    loads, east = Loads(), Member(0, 9, (), frontier(9, south=5))
    assert chosen(loads, south=Member(0, 5, (), frontier(5, "g", east=9), loads=(4,)), east=east)["south"] == 3
    assert chosen(loads, south=Member(0, 6, (), frontier(6, east=9), loads=(4,)), east=east)["south"] == 6


def test_it_hides_what_needs_it() -> None:
    """What the load needs of the east is hidden, and so is the load; and what is behind it."""
    loads = Loads()
    members = {
        "south": Member(0, 5, (CommittedBranch(5, "k"),), frontier(5, east=9, north=9), loads=(4,)),
        "east": Member(0, 9, (CommittedBranch(8, "h"),), frontier(9, south=5, north=9)),
        "north": Member(0, 9, (CommittedBranch(7, "k"),), frontier(9, "h", south=5, east=9)),
    }
    assert greatest_cut(members, loads.follow(members)) == {"south": 3, "east": 7, "north": 6}


def test_the_end_of_a_load_is_a_chunk_whose_table_is_loaded_no_more() -> None:
    assert ends_a_load("backfill", ["t"], [])
    assert ends_a_load("backfill", [], ["t", "other"]), "the last chunk of an empty table"
    assert not ends_a_load("backfill", ["t"], ["t"])
    assert not ends_a_load("batch", ["t"], [])
    assert not ends_a_load("reload", ["t"], ["t"])
