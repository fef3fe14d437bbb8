"""Which global transactions hold a global cut back, and how many commits wait for each."""

from __future__ import annotations

from twofold_common.global_cut import CommittedBranch, Frontier, Member, greatest_cut
from twofold_common.global_waits import BranchPlace, Wait, WaitClock, count_held, find_waits, without_frontier


def branch(sequence: int, name: str) -> CommittedBranch:
    return CommittedBranch(sequence, name)


def frontier(sequence: int, in_doubt: str = "", lsn: int = 0, **seen: int) -> Frontier:
    return Frontier(sequence, seen, {each: (f"{each}/gid",) for each in in_doubt.split()}, lsn)


def member(known: int, frontier: Frontier | None, *branches: CommittedBranch) -> Member:
    return Member(0, known, branches, frontier)


def test_who_waits_for_a_branch_in_doubt() -> None:
    members = {
        "east": member(9, frontier(9, west=7, north=2), branch(2, "f"), branch(4, "g")),
        "west": member(7, frontier(7, "g h", lsn=70, east=9, north=2), branch(3, "f")),
        "north": member(2, frontier(2, east=9, west=7)),
    }
    assert find_waits(members) == [
        Wait("g", (BranchPlace("east", "committed", 4), BranchPlace("west", "in doubt", 7, 70, ("g/gid",))))
    ], "f is decided everywhere, h is shown by nobody"
    assert count_held(members, "g") == {"east": 6}
    assert greatest_cut(members) == {"east": 9 - 6, "west": 7, "north": 2}


def test_who_waits_for_a_member_that_has_not_seen_it() -> None:
    """The west's connector is down: what the east and the north commit together waits as well."""
    members = {
        "east": member(5, frontier(5, west=1, north=8), branch(5, "g")),
        "west": member(1, frontier(1, lsn=10, east=4, north=7)),
        "north": member(8, frontier(8, east=5, west=1), branch(8, "g")),
    }
    (wait,) = find_waits(members)
    assert wait.in_state("not seen") == [BranchPlace("west", "not seen", 1, 10)]
    assert count_held(members, "g") == {"east": 1, "north": 1}


def test_what_it_hides_waits_with_it() -> None:
    """h is in doubt in the north. East shows it before g, so the west's branch of g waits too."""
    members = {
        "east": member(5, frontier(5, west=5, north=5), branch(2, "h"), branch(4, "g")),
        "west": member(5, frontier(5, east=5, north=5), branch(3, "g")),
        "north": member(5, frontier(5, "h", east=5, west=5)),
    }
    assert [each.global_id for each in find_waits(members)] == ["h"], "g holds nobody back by itself"
    assert count_held(members, "h") == {"east": 4, "west": 3}


def test_a_member_without_a_frontier_has_seen_nothing() -> None:
    members = {"east": member(2, frontier(2, west=0), branch(1, "g")), "west": member(0, None)}
    assert without_frontier(members) == ["west"]
    assert find_waits(members)[0].in_state("not seen") == [BranchPlace("west", "not seen", 0)]


def test_a_wait_is_measured_from_its_beginning_and_again_when_it_comes_back() -> None:
    clock, g = WaitClock(), Wait("g", ())
    assert clock.measure([g], 10) == {"g": 0}
    assert clock.measure([g, Wait("h", ())], 13) == {"g": 3, "h": 0}
    assert clock.measure([], 14) == {}
    assert clock.measure([g], 15) == {"g": 0}
