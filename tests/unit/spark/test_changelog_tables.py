"""Which changelog table has a topic's changes, how far it says that it is, and its columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from twofold_spark.changelog.changelog_rows import unite_columns
from twofold_spark.changelog.changelog_tables import ONLY, MemberPartition, TableFinder, TableTopics
from twofold_spark.changelog.table_position import (
    OFFSETS,
    TablePosition,
    format_ends,
    initial_position,
    join_members,
    parse_ends,
    position_properties,
)
from twofold_spark.errors import SetupError, TableRefused
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sources.kafka_client import TopicState
from twofold_spark.sources.registry import Registry, Subject

SHARDED = Sharding.parse("public.accounts")
MEMBERS = ("bank.east", "bank.west")


class _Registry:
    """Has a subject of every topic except those of `unknown`."""

    def find_subject(self, name: str) -> Subject | None:
        return None if "unknown" in name else Subject(name, ((1, {}),))

    def find_with_ids(self, name: str, _ids: frozenset[int]) -> Subject | None:
        return self.find_subject(name)


def group(*topics: str, prefixes: Sequence[str] = MEMBERS, sharding: Sharding = SHARDED) -> dict[str, TableTopics]:
    finder = TableFinder(cast("Registry", _Registry()), prefixes, sharding, "lake")
    return finder.group({name: TopicState(name, f"id of {name}", {0: 3, 1: 0}) for name in topics})


def test_a_sharded_table_has_the_topics_of_all_members_and_others_are_the_members_own() -> None:
    topics = [f"{prefix}.public.{name}" for prefix in MEMBERS for name in ("accounts", "other")]
    found = group(*topics)
    assert {name: (each.table.full_name, [*each.topics]) for name, each in found.items()} == {
        "*.public.accounts": ("lake.`public_changelog`.`accounts`", [*MEMBERS]),
        "bank.east.public.other": ("lake_bank_east.`public_changelog`.`other`", [ONLY]),
        "bank.west.public.other": ("lake_bank_west.`public_changelog`.`other`", [ONLY]),
    }
    assert found["*.public.accounts"].ends == {
        MemberPartition(prefix, partition): end for prefix in MEMBERS for partition, end in ((0, 3), (1, 0))
    }
    assert found["*.public.accounts"].table.elsewhere == (
        ("lake_bank_east", "lake_bank_east.`public_changelog`.`accounts`"),
        ("lake_bank_west", "lake_bank_west.`public_changelog`.`accounts`"),
    )
    assert found["bank.east.public.other"].table.elsewhere == (("lake", "lake.`public_changelog`.`other`"),)


def test_the_changelog_of_one_prefix_has_one_catalog() -> None:
    (found,) = group("bank.public.accounts", prefixes=("bank",), sharding=NO_SHARDING).values()
    assert found.table.full_name == "lake.`public_changelog`.`accounts`"
    assert found.table.elsewhere == (("lake_bank", "lake_bank.`public_changelog`.`accounts`"),)
    assert found.ends == {MemberPartition(ONLY, 0): 3, MemberPartition(ONLY, 1): 0}


def test_a_prefix_may_begin_with_another_one() -> None:
    found = group("bank.public.accounts", "bank.east.public.accounts", prefixes=("bank", "bank.east"))
    assert {member: topic.name for member, topic in found["*.public.accounts"].topics.items()} == {
        "bank": "bank.public.accounts",
        "bank.east": "bank.east.public.accounts",
    }


def test_a_topic_without_a_record_needs_no_subject_yet() -> None:
    finder = TableFinder(cast("Registry", _Registry()), ("bank",), NO_SHARDING, "lake")
    assert not finder.group({"bank.public.unknown": TopicState("bank.public.unknown", "", {0: 0})})
    with pytest.raises(SetupError, match="no subject"):
        finder.group({"bank.public.unknown": TopicState("bank.public.unknown", "", {0: 1})})


def test_a_topic_that_is_gone_is_named_with_its_table() -> None:
    finder = TableFinder(cast("Registry", _Registry()), MEMBERS, SHARDED, "lake")
    topics = {name: TopicState(name, "", {0: 1}) for name in (f"{prefix}.public.accounts" for prefix in MEMBERS)}
    finder.group(topics)
    assert not finder.list_gone(topics)
    del topics["bank.west.public.accounts"]
    assert finder.list_gone(topics) == {"*.public.accounts": "bank.west.public.accounts"}


def test_a_position_says_of_each_member_how_far_it_is() -> None:
    ends = {MemberPartition("bank.east", 0): 5, MemberPartition("west-1", 12): 7}
    assert format_ends(ends) == {"bank.east/0": 5, "west-1/12": 7}
    assert parse_ends(format_ends(ends)) == ends
    only = {MemberPartition(ONLY, 0): 5, MemberPartition(ONLY, 12): 7}
    assert format_ends(only) == {"0": 5, "12": 7}, "as tables have it that are there"
    assert parse_ends({"0": 5, "12": 7}) == only


def test_the_properties_of_a_table_tell_the_topics_of_members_apart() -> None:
    state = group(*(f"{prefix}.public.accounts" for prefix in MEMBERS))["*.public.accounts"]
    properties = position_properties(initial_position(state, state.ends))
    assert json.loads(properties.pop(OFFSETS))["ends"] == format_ends(state.ends)
    assert properties == {f"twofold.topic-id/{prefix}": f"id of {prefix}.public.accounts" for prefix in MEMBERS}
    (one,) = group("bank.public.accounts", prefixes=("bank",), sharding=NO_SHARDING).values()
    assert position_properties(initial_position(one, one.ends))["twofold.topic-id"] == "id of bank.public.accounts"


def test_a_member_that_joins_begins_where_kafka_does_and_no_other_one() -> None:
    east, west = (MemberPartition(prefix, 0) for prefix in MEMBERS)
    there = TablePosition({east: 5}, 1, {"bank.east": "e"}, is_sharded=True)
    assert join_members(there, {east: 9, west: 4}).ends == {east: 5, west: 4}
    rolled_back = replace(there, topic_ids={"bank.east": "e", "bank.west": "w"})
    assert join_members(rolled_back, {east: 0, west: 4}).ends == {east: 5}, "it may lack what retention took"
    only = MemberPartition(ONLY, 0)
    assert join_members(TablePosition({}, 1, {}, is_sharded=False), {only: 4}).ends == {}


def changes(**columns: Any) -> StructType:
    row = StructType([StructField(name, kind) for name, kind in columns.items()])
    return StructType([StructField("op", StringType()), StructField("before", row), StructField("after", row)])


def test_the_rows_of_shards_unite_within_a_change() -> None:
    table = group("bank.east.public.accounts")["*.public.accounts"].table
    one, other = changes(id=IntegerType(), old=StringType()), changes(id=LongType(), new=StringType())
    wanted = changes(id=LongType(), old=StringType(), new=StringType())
    assert unite_columns(table, [one, other]).simpleString() == wanted.simpleString()
    assert unite_columns(table, [one]) == one
    refusal = r"accounts\.id has the type int in one shard and string in another.*\n.*\n.*in all shards, or leave public\.accounts out"
    with pytest.raises(TableRefused, match=refusal):
        unite_columns(table, [one, changes(id=StringType())])
