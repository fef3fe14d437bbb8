"""Which tables are sharded, what their shards unite to, and what a cut says of them."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql.types import (
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from twofold_spark.errors import Refused, SetupError, TableRefused
from twofold_spark.mirror.batching import MirrorSettings
from twofold_spark.mirror.next_cut import NextCut
from twofold_spark.mirror.shard_folding import ShardFolder
from twofold_spark.mirror.sharded_tables import ShardedTables, unite_columns
from twofold_spark.readers.cut_tables import Tables
from twofold_spark.sinks.cuts import NO_CUT, Cut, GlobalCut
from twofold_spark.sinks.delta_sink import find_published
from twofold_spark.sinks.delta_tables import RowCommit, has_lost_rows
from twofold_spark.sinks.iceberg_place import IcebergPlace
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.merge_sql import POSTGRES, check_key, merge_statement, repeated_query
from twofold_spark.sinks.sharding import NO_SHARDING, SHARED, Sharding
from twofold_spark.sources.commit_records import CommitRecord

SHARDING = Sharding.parse("public.accounts, sales.*")
TABLE = MirrorTable("*.public.accounts", "public", "accounts", ("id", "_member"))


def test_patterns_name_tables_as_postgresql_has_them() -> None:
    assert str(SHARDING) == "public.accounts,sales.*"
    assert Sharding.parse(str(SHARDING)) == SHARDING
    assert [SHARDING.covers(name) for name in ("public.accounts", "public.account", "sales.a", "sales2.a")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert Sharding.parse("*").covers("any.table")
    assert Sharding.parse("") == NO_SHARDING


def cut(*tables: str, sequence: int = 5, **of_cut: Any) -> Cut:
    return replace(NO_CUT, sequence=sequence, versions=dict.fromkeys(tables, "1"), **of_cut)


def test_a_table_that_is_mirrored_keeps_its_place() -> None:
    last = GlobalCut(3, {"east": cut("public.accounts", "public.other")})
    SHARDING.check_unchanged(SHARDING, last)
    SHARDING.check_unchanged(NO_SHARDING, None)
    Sharding.parse("public.accounts,public.new").check_unchanged(Sharding.parse("public.accounts"), last)
    with pytest.raises(Refused, match=r"would move public\.accounts"):
        NO_SHARDING.check_unchanged(SHARDING, last)
    with pytest.raises(Refused, match=r"would move public\.other"):
        Sharding.parse("public.*").check_unchanged(SHARDING, last)
    stopped = GlobalCut(3, {"east": cut(stopped=("public.accounts", "*"))})
    with pytest.raises(Refused, match=r"would move public\.accounts"):
        NO_SHARDING.check_unchanged(SHARDING, stopped)


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def test_columns_of_shards_unite_and_are_as_wide_as_in_any() -> None:
    one = columns(id=IntegerType(), amount=DecimalType(10, 2), old=StringType())
    other = columns(id=LongType(), amount=DecimalType(8, 2), new=StringType())
    united = unite_columns(TABLE, [(TABLE.key, one), (TABLE.key, other)])
    wanted = columns(id=LongType(), amount=DecimalType(10, 2), old=StringType(), new=StringType())
    assert united.simpleString() == wanted.simpleString()
    with pytest.raises(TableRefused, match="has the type bigint in one shard and string in another"):
        unite_columns(TABLE, [(TABLE.key, other), (TABLE.key, columns(id=StringType()))])


def test_a_columns_comment_is_that_of_the_first_shard_that_has_one() -> None:
    west, north = (
        StructType([StructField("id", LongType(), metadata=of_id), StructField("note", StringType(), metadata=of_note)])
        for of_id, of_note in ((None, {"comment": "why"}), ({"comment": "a number"}, {"comment": "what"}))
    )
    united = unite_columns(TABLE, [(TABLE.key, west), (TABLE.key, north)])
    assert [each.metadata for each in united] == [{"comment": "a number"}, {"comment": "why"}]


def test_shards_with_different_keys_are_refused() -> None:
    with pytest.raises(TableRefused, match=r"public.accounts is \(id\) in one place and \(id, part\) in another"):
        unite_columns(TABLE, [(("id", "part", "_member"), columns(id=LongType()))])
    with pytest.raises(TableRefused, match=r"in one place and \(none\) in another"):
        unite_columns(TABLE, [((), columns(id=LongType()))])
    with pytest.raises(TableRefused, match="key of the sharded table"):
        check_key(TABLE, ("number", "_member"), replace=False)
    check_key(TABLE, TABLE.key, replace=False)


def test_a_shard_that_is_emptied_loses_its_former_rows_and_no_other() -> None:
    names = ["id", "_member", "note"]
    keyed = merge_statement("t", "v", TABLE.key, names, unchanged=(), emptied=["east", "it's"])
    assert keyed.endswith(" WHEN NOT MATCHED BY SOURCE AND t._member IN ('east', 'it\\'s') THEN DELETE")
    assert "ON t.`id` = s.`id` AND t.`_member` = s.`_member` WHEN" in keyed
    keyless = merge_statement("t", "v", [], ["a", "_copies", "_member"], unchanged=(), emptied=["east"])
    had = "CASE WHEN t._member IN ('east') THEN 0 ELSE t._copies END + s._copies"
    assert f"WHEN MATCHED AND {had} = 0 THEN DELETE" in keyless
    assert "BY SOURCE" not in merge_statement("t", "v", TABLE.key, names, unchanged=(), dialect=POSTGRES)


def test_a_key_of_several_members_is_asked_for_as_the_merge_will_leave_it() -> None:
    as_it_is = repeated_query("t", None, TABLE.key, emptied=(), everywhere=True)
    assert 'FROM (SELECT "id", _member FROM t) a GROUP BY "id" HAVING' in as_it_is
    asked = repeated_query("t", "v", TABLE.key, emptied=["it's"], everywhere=False)
    assert 'FROM t t WHERE NOT EXISTS (SELECT FROM v s WHERE s."id" = t."id" AND s._member = t._member)' in asked
    assert "AND t._member <> 'it''s' AND EXISTS (SELECT" in asked
    assert 'GROUP BY "id" HAVING count(*) > 1' in asked
    assert 'EXISTS (SELECT "id"' not in repeated_query("t", "v", TABLE.key, emptied=(), everywhere=True)
    assert "UNION" not in repeated_query(None, "v", TABLE.key, emptied=(), everywhere=True)


def record(sequence: int, *, backfilling: tuple[str, ...] = ()) -> CommitRecord:
    return CommitRecord(0, sequence, 0, 0, 1, 1, (), backfilling)


def test_a_members_cut_has_the_version_that_all_share_and_waits_for_its_load() -> None:
    of_east = NextCut("east", print, SHARDING.covers)
    of_east.advance(cast("Any", None), record(6, backfilling=("east.public.accounts",)), {}, set())
    made = of_east.describe_shards({"public.accounts": "77"})
    assert made.backfilling == ("public.accounts",), "its load has brought no row yet"
    assert made.versions == {}
    of_east.advance(cast("Any", None), record(7), {replace(TABLE, topic="east.public.accounts"): 6}, set())
    made = of_east.describe_shards({"public.accounts": "78"})
    assert (made.versions, made.backfilling) == ({"public.accounts": "78"}, ())
    assert of_east.describe_shards({}).versions == {}, "its merge was refused"


def test_a_load_in_progress_is_known_after_a_restart_though_nobody_had_made_the_table() -> None:
    first = NextCut("east", print, SHARDING.covers)
    first.advance(cast("Any", None), record(6, backfilling=("east.public.accounts", "east.public.own")), {}, set())
    published = first.describe_shards({})
    assert published.backfilling == ("public.accounts",)
    second = NextCut("east", print, SHARDING.covers)
    second.start_from(cast("Any", None), published)
    assert second.describe_shards({"public.accounts": "9"}).backfilling == ("public.accounts",)


def test_a_shard_that_was_never_seen_is_stopped_where_commit_records_are_missing() -> None:
    of_east = NextCut("east", print, SHARDING.covers)
    of_east.stop_every_table(8, "stream")
    has_topic = {"east.public.accounts"}.__contains__
    made = of_east.describe_shards({"public.accounts": "9", "sales.a": "9"}, has_topic)
    assert made.stopped == ("*", "public.accounts"), "it has no topic of sales.a"
    loaded = {replace(TABLE, topic="east.public.accounts"): 9}
    of_east.advance(cast("Any", None), record(9), loaded, {"*"})
    made = of_east.describe_shards({"public.accounts": "10"}, has_topic)
    assert (made.stopped, made.versions) == (("*",), {"public.accounts": "10"})


@pytest.mark.parametrize(
    ("commits", "named", "unnamed"),
    [
        ([(3, 7, None)], None, None),
        ([(3, 7, None), (6, 8, None)], 5, 5),
        ([(3, 7, None), (6, 8, None), (7, 0, 5)], None, None),
        ([(3, 7, None), (6, 8, None), (7, 0, 5), (9, 8, None)], 5, 5),
        ([(3, 7, None), (4, 0, 2)], 3, None),
        ([(3, 7, None), (4, 0, 2), (5, 7, None)], 3, None),
        ([(3, 7, None), (4, 0, 2), (5, 7, None), (6, 0, 3)], None, None),
    ],
    ids=["nothing behind it", "a merge", "given up", "twice", "given up by a job that was late", "and merged", "ended"],
)
def test_in_delta_rows_go_back_to_before_what_no_cut_has(
    commits: list[tuple[int, int, int | None]], named: int | None, unnamed: int | None
) -> None:
    """The last cut, 7, names the version 3, or does not name the table."""
    listed = [RowCommit(*each) for each in commits]
    assert find_published(listed, 3, 7) == named
    assert find_published(listed, None, 7) == unnamed


@pytest.mark.parametrize(
    ("behind", "lost"),
    [
        ([], False),
        ([(4, 8, None), (5, 0, None)], False),
        ([(4, 0, 2)], True),
        ([(4, 0, -1)], True),
        ([(4, 0, 3)], False),
        ([(4, 0, 2), (5, 0, 3), (6, 8, None)], False),
        ([(4, 8, None), (5, 0, 3)], True),
    ],
    ids=["nothing", "merges", "a version", "a time", "the cut's own", "repaired", "a merge that no cut has"],
)
def test_a_persons_restore_takes_rows_whose_number_stays(behind: list[tuple[int, int, int | None]], lost: bool) -> None:
    """In a table of one source; the last cut names the version 3."""
    assert has_lost_rows([RowCommit(*each) for each in behind], 3) is lost


class Places:
    """A reader that knows where each table is asked for."""

    is_lasting = True

    def read_sharding(self) -> Sharding:
        return SHARDING

    def read_table(self, prefix: str, name: str, version: str) -> Any:
        return prefix, name, version

    def read_key(self, prefix: str, name: str) -> tuple[str, ...]:
        return ("id", "_member") if prefix == SHARED else ("id",)


def tables(members: dict[str, Cut], others: dict[str, Cut] | None = None) -> Tables:
    return Tables(cast("Any", Places()), GlobalCut(3, members, others or {}), of_group=True)


def test_a_sharded_table_is_one_of_all_members() -> None:
    found = tables({"east": cut("public.accounts", "public.own"), "west": cut("public.accounts")})
    assert set(found) == {"public.accounts", "east.public.own"}
    asked: list[Any] = [found["public.accounts"], found["east.public.own"]]
    assert asked == [(SHARED, "public.accounts", "1"), ("east", "public.own", "1")]
    assert found.read_key("public.accounts") == ("id", "_member")


@pytest.mark.parametrize(
    ("west", "others", "why"),
    [
        (cut("public.accounts", backfilling=("public.accounts",)), {}, "is in progress in west"),
        (cut(backfilling=("public.accounts",)), {}, "is in progress in west"),
        (cut(stopped=("public.accounts",)), {}, "was stopped by a refusal in west: .* must do so until it is loaded"),
        (cut(), {"north": cut("public.accounts")}, "is in progress in north"),
    ],
)
def test_a_sharded_table_is_read_when_all_its_shards_are_there(west: Cut, others: dict[str, Cut], why: str) -> None:
    found = tables({"east": cut("public.accounts"), "west": west}, others)
    assert set(found) == set()
    with pytest.raises(SetupError, match=why):
        found["public.accounts"]


def test_a_member_that_has_left_holds_nothing_back() -> None:
    left = cut(stopped=("public.accounts",))
    assert set(tables({"east": cut("public.accounts")}, {"north": left})) == {"public.accounts"}


def test_keys_are_looked_at_when_a_process_begins_and_when_a_load_ends() -> None:
    """Also where the cut changes no row: others left the tables, and a last chunk may be empty."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    class Fake:
        found: str | None = None

        def read_key(self, table: MirrorTable) -> tuple[str, ...]:
            return ("id", "_member") if table.name == "accounts" else ()

        def find_repeated(self, table: MirrorTable, batch: object, *, everywhere: bool) -> str | None:
            assert (batch, everywhere) == (None, True)
            asked.append((str(table), table.key))
            return self.found

    with closing(make_shared(cast("Any", Fake()), unique_keys=True)) as shared:
        for number, loading, looks in ((4, (), 1), (5, (), 1), (6, ("public.accounts",), 1), (7, (), 2)):
            assert shared.merge(number, loading) == []
            assert asked == [("public.accounts", ("id", "_member"))] * looks
        Fake.found = "(2) in east and west"
        assert shared.merge(8, ("public.accounts",)) == []
        for _ in range(2):
            (refused,) = shared.merge(9)
            assert (refused.prefix, refused.table) == (SHARED, "public.accounts")
    with closing(make_shared(cast("Any", Fake()), unique_keys=False)) as shared:
        assert shared.merge(4) == []


def make_shared(sink: Any, *, unique_keys: bool = False) -> ShardedTables:
    """Two tables that an earlier process left; the sink is the place too."""
    shared = ShardedTables(
        sink,
        ShardFolder(cast("Any", None), 1),
        MirrorSettings(tables_at_once=1, maintain_every=1, keep_cuts=dt.timedelta(), unique_keys=unique_keys),
    )
    shared._sink = sink
    shared.versions = {"public.accounts": "7", "sales.a": "8"}
    return shared


def maintained(last: GlobalCut) -> list[str]:
    """The tables that are maintained behind a cut, of two that are due."""
    found: list[str] = []

    class Fake:
        def maintain(self, tables: list[str], _keep: dt.timedelta) -> None:
            found.extend(tables)

    place = cast("Any", Fake())
    place.last = last
    with closing(make_shared(place)) as shared:
        shared.maintenance.due.add(shared.versions)
        shared.maintain_if_due()
    return found


def test_maintenance_does_not_show_a_table_that_waits_for_a_shard() -> None:
    """It would move `main` to merges of the other shards alone: a row that moved would be there
    twice.
    """
    east, west = cut("public.accounts", "sales.a"), cut("sales.a", stopped=("public.accounts", "*"))
    assert maintained(GlobalCut(3, {"east": east, "west": west})) == ["sales.a"]
    left = cut(stopped=("public.accounts",))
    assert maintained(GlobalCut(3, {"east": east}, {"west": left})) == ["public.accounts", "sales.a"], "it has left"
    assert maintained(GlobalCut(3, {"east": east}, {"west": west})) == ["public.accounts"], "it joins with rows"


def test_plain_names_show_no_member_while_a_table_of_another_is_ahead() -> None:
    """Maintenance shows what it has compacted."""
    place = IcebergPlace(of_group=True, sharding=SHARDING)
    east, west = cut("public.own"), cut("public.own")
    for last, shown in (
        (GlobalCut(3, {"east": east, "west": west}), {"east", "west", SHARED}),
        (GlobalCut(3, {"east": east, "west": replace(west, whole=False)}), set()),
        (GlobalCut(3, {"east": east}, {"west": replace(west, whole=False)}), {"east", SHARED}),
    ):
        place.last = last
        assert {prefix for prefix in ("east", "west", SHARED) if place.is_shown(prefix)} == shown
