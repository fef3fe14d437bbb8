"""Which members the global cuts name, and what is said of the others."""

from __future__ import annotations

from twofold_common.global_cut import Frontier, Member
from twofold_spark.mirror.group_waiting import GroupMembership


def member(cut: int, known: int, **seen: int) -> Member:
    return Member(cut, known, (), Frontier(known, seen, {}))


def test_a_first_cut_names_all_at_once() -> None:
    said: list[str] = []
    membership = GroupMembership(("east", "west"), (), named_after_s=5, warn=said.append)
    assert membership.joined == frozenset()
    members = {"east": member(0, 3, west=2), "west": member(0, 2, east=3)}
    assert membership.admit(members, {"east": 3, "west": 2}, 0)
    assert membership.joined == {"east", "west"}
    assert not membership.admit(members, {"east": 3, "west": 2}, 1), "only once"
    assert said == []


def test_one_that_is_added_is_named_when_it_is_admitted_and_what_it_waits_for_after_a_while() -> None:
    said: list[str] = []
    membership = GroupMembership(("east", "north"), ("east", "west"), named_after_s=5, warn=said.append)
    assert membership.joined == {"east"}
    assert [line.split()[1] for line in said] == ["north", "west"]
    del said[:]
    east = member(10, 12, north=4)
    for now in (0.0, 4.0, 6.0, 60.0, 67.0):
        assert not membership.admit({"east": east, "north": member(0, 4, east=9)}, {"east": 12, "north": 4}, now)
    assert len(said) == 2, "after five seconds, and a minute later"
    assert said[0].startswith("mirror: north waits for a frontier of north that knows commit record 10 of east")
    assert membership.admit({"east": east, "north": member(0, 5, east=12)}, {"east": 12, "north": 5}, 68)
    assert membership.joined == {"east", "north"}


def test_a_cut_that_shows_less_than_the_tables_is_not_applied() -> None:
    said: list[str] = []
    membership = GroupMembership(("east", "north"), ("east",), named_after_s=0, warn=said.append)
    assert membership.may_apply({"east": 4, "north": 7}, {"east": 4, "north": 7}, 0)
    del said[:]
    assert not membership.may_apply({"east": 4, "north": 6}, {"east": 4, "north": 7}, 0)
    assert said == ["mirror: north waits for a cut that shows commit record 7 of north, where its tables are"]


def test_nobody_is_admitted_before_all_have_written_a_frontier() -> None:
    membership = GroupMembership(("east", "north"), ("east",), named_after_s=5, warn=print)
    members = {"east": member(4, 4, north=1), "north": Member(0, 1, (), None)}
    assert not membership.admit(members, {"east": 4, "north": 0}, 0)
