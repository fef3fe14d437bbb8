"""Which prefixes are the members of a source group, by what their connectors have written."""

from __future__ import annotations

import pytest

from twofold_spark.errors import SetupError
from twofold_spark.sources.group_topics import Membership, resolve_members


def says(group: str, *members: str) -> Membership:
    return Membership(group, frozenset(members))


TWO = {"east": says("bank", "west", "east"), "west": says("bank", "east", "west")}


def test_all_members_agree() -> None:
    other = {"a": says("shop", "a", "b"), "b": says("shop", "a", "b")}
    assert resolve_members("bank", {**TWO, **other}) == ("east", "west")


def test_an_unknown_group_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SetupError, match=r"source group bink, the groups there are bank: correct --source-group"):
        resolve_members("bink", TWO)
    with pytest.raises(SetupError, match="nor of any other group"):
        resolve_members("bank", {})


def test_a_member_that_was_taken_out_is_none() -> None:
    former = {"north": says("bank", "east", "west", "north")}
    assert resolve_members("bank", {**TWO, **former}) == ("east", "west")


def test_a_member_that_is_added_waits_for_the_others() -> None:
    """The east's connector runs with the new list, the west's with the old one; the north's never
    ran.
    """
    added = {**TWO, "east": says("bank", "east", "west", "north")}
    with pytest.raises(
        SetupError, match=r"do not agree .* east says east, north, west; west says east, west; north has written no"
    ):
        resolve_members("bank", added)


def test_a_member_of_another_group_by_now_is_none() -> None:
    moved = {**TWO, "west": says("shop", "west", "a")}
    with pytest.raises(SetupError, match="west has written no frontier of it"):
        resolve_members("bank", moved)


def test_two_groups_of_one_name_are_refused() -> None:
    """Two stacks that share a Kafka: all connectors of each agree."""
    others = {"a": says("bank", "a", "b"), "b": says("bank", "a", "b")}
    with pytest.raises(SetupError, match=r"a says a, b; .* west says east, west: run all .* or give a --prefix"):
        resolve_members("bank", {**TWO, **others})
