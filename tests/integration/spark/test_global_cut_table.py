"""The table of global cuts, and the one of waits: whose they are, and how long rows are kept."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from twofold_common.global_waits import BranchPlace, LongWait, Wait
from twofold_spark import session
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.errors import Refused
from twofold_spark.readers.cut_tables import read_cut
from twofold_spark.sinks import cut_rows
from twofold_spark.sinks.cuts import CUTS, Cut
from twofold_spark.sinks.delta_group import DeltaGroup
from twofold_spark.sinks.delta_sink import DeltaSink
from twofold_spark.sinks.global_cut_table import GLOBAL_CUTS
from twofold_spark.sinks.global_cuts import GlobalCut, MemberCut, describe_members
from twofold_spark.sinks.iceberg_group import IcebergGroup, member_catalog
from twofold_spark.sinks.interface import GroupPlace

_number = itertools.count(1)
_make_row, _select_row = cut_rows.make_row, cut_rows.select_row
AN_HOUR, NOTHING = dt.timedelta(hours=1), dt.timedelta(0)


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> str:
    """One for the group, and one for the east."""
    name = f"cuts{next(_number)}"
    for each, folder in ((name, tmp_path), (member_catalog(name, "east"), tmp_path / "east")):
        folder.mkdir(exist_ok=True)
        for key, value in WAREHOUSE_CATALOG.settings(str(folder), each).items():
            spark.conf.set(key, value)
    return name


@pytest.fixture(params=["iceberg", pytest.param("delta", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> GroupPlace:
    if request.param == "delta":
        return DeltaGroup(str(tmp_path / "delta"))
    return IcebergGroup(request.getfixturevalue("catalog"))


def global_cut(number: int, *prefixes: str) -> GlobalCut:
    return GlobalCut(number, {prefix: MemberCut(10 * number, 20 * number) for prefix in prefixes})


def test_members_may_change_but_not_all_of_them(spark: SparkSession, place: GroupPlace) -> None:
    assert place.make_cuts(spark).open(("east", "west")) is None
    table = place.make_cuts(spark)
    assert table.open(("east", "north")) is None
    table.publish(global_cut(1, "east", "north"))
    assert table.open(("south", "north")) == global_cut(1, "east", "north")
    for strangers in [("south", "west"), ("south",)]:
        with pytest.raises(Refused, match=r"holds the global cuts of east, north, and .* has none of these members"):
            table.open(strangers)


def test_what_is_old_is_forgotten_except_the_last(spark: SparkSession, catalog: str) -> None:
    table = IcebergGroup(catalog).make_cuts(spark)
    table.open(("east", "west"))
    wait = LongWait(Wait("g", (BranchPlace("east", "committed", 1),)), 6.0, {"east": 1})

    def count(of: str) -> int:
        return spark.table(f"{catalog}.twofold.{of}").count()

    for number in range(1, 6):
        table.publish(global_cut(number, "east", "west"))
        table.replace_waits([wait])
    assert table.forget(AN_HOUR) == global_cut(1, "east", "west")
    table.maintain(AN_HOUR)
    assert (count("global_cuts"), count("global_cuts.files")) == (5, 1), "compacted, and nothing is old"
    assert count("global_cuts.snapshots") > 5, "a reader of an older state goes on"
    assert table.forget(NOTHING) == table.read_last() == global_cut(5, "east", "west")
    table.maintain(NOTHING)
    assert count("global_cuts") == count("global_waits") == 1
    for each in ("global_cuts", "global_waits"):
        assert count(f"{each}.snapshots") <= 3
        assert count(f"{each}.all_data_files") <= 3


def test_age_counts_from_when_a_cut_was_replaced(
    spark: SparkSession, place: GroupPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may have begun with the last cut before a quiet night just before the next one."""
    own = session.fork_session(spark)
    sink, table = place.make_sink(own, "east"), place.make_cuts(spark)
    sink.open()
    table.open(("east",))
    for number, hours in ((1, 10), (2, 9), (3, 0)):
        at = dt.datetime.now(dt.UTC) - dt.timedelta(hours=hours)
        table._store.append(  # type: ignore[attr-defined]
            {"number": number, "published_at": at, "members": describe_members(global_cut(number, "east"))}
        )
        with monkeypatch.context() as then:
            then.setattr(cut_rows, "make_row", lambda cut, at=at: {**_make_row(cut), "published_at": at})
            then.setattr(
                cut_rows,
                "select_row",
                lambda cut, at=at: _select_row(cut).replace("current_timestamp()", f"TIMESTAMP '{at}'"),
            )
            sink.publish(Cut(number, number, number, whole=True, versions={}, backfilling=(), stopped=()))
    sink.maintain([CUTS], AN_HOUR)
    first = place.make_reader(spark, "east").find_cut(first=True)
    assert first is not None
    assert first.sequence == 2
    assert table.forget(AN_HOUR) == global_cut(2, "east")


def test_a_snapshot_that_was_replaced_lately_stays_however_old_it_is(
    spark: SparkSession, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = IcebergGroup(catalog).make_cuts(spark)
    table.open(("east",))
    name = f"{catalog}.{GLOBAL_CUTS}"
    for number in (1, 2, 3):
        table.publish(global_cut(number, "east"))
    [*_, read] = spark.sql(f"SELECT snapshot_id FROM {name}.history ORDER BY made_current_at").collect()
    an_hour_later = time.time_ns() + 3600 * 10**9
    for number in (4, 5, 6):
        table.publish(global_cut(number, "east"))
    monkeypatch.setattr(time, "time_ns", lambda: an_hour_later)
    table.maintain(AN_HOUR)
    kept = spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").collect()
    assert kept[0] == read, "what was replaced before is gone"
    assert spark.sql(f"SELECT * FROM {name} VERSION AS OF {read[0]}").count() == 3


@pytest.mark.slow
def test_in_delta_what_is_old_is_forgotten_except_the_last(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaGroup(str(tmp_path)).make_cuts(spark)
    table.open(("east", "west"))
    wait = LongWait(Wait("g", (BranchPlace("east", "committed", 1),)), 6.0, {"east": 1})

    def describe(of: str) -> tuple[int, int]:
        """The rows, and the files."""
        name = f"delta.`{tmp_path}/twofold/{of}`"
        return spark.table(name).count(), spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["numFiles"]

    for number in (1, 2, 3):
        table.publish(global_cut(number, "east", "west"))
        table.replace_waits([wait])
    assert table.forget(AN_HOUR) == global_cut(1, "east", "west")
    table.maintain(AN_HOUR)
    assert describe("global_cuts") == (3, 1), "compacted, and nothing is old"
    assert table.forget(NOTHING) == table.read_last() == global_cut(3, "east", "west")
    table.maintain(NOTHING)
    assert describe("global_cuts") == describe("global_waits") == (1, 1)
    table.publish(global_cut(4, "east"))
    assert table.read_last() == global_cut(4, "east")


def test_a_member_keeps_the_cuts_that_kept_global_cuts_name(spark: SparkSession, place: GroupPlace) -> None:
    """Such as those of a member that was idle for longer than cuts are kept."""
    own = session.fork_session(spark)
    sink, reader = place.make_sink(own, "east"), place.make_reader(spark, "east")
    sink.open()
    for number in (1, 2, 3, 4):
        sink.publish(Cut(number, number, number, whole=True, versions={}, backfilling=(), stopped=()))
    sink.maintain([CUTS], NOTHING, since=3)
    assert [read_cut(spark, sequence=n, reader=reader).cut.sequence for n in (3, 4)] == [3, 4]
    first = reader.find_cut(first=True)
    assert first is not None
    assert first.sequence == 3
    sink.maintain([CUTS], NOTHING, since=9)
    assert reader.find_cut(first=True) == reader.find_cut(), "the last one stays"


@pytest.mark.slow
def test_in_delta_a_second_job_s_global_cut_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Delta skips a row whose number the table has."""
    one, other = (DeltaGroup(str(tmp_path)).make_cuts(spark) for _ in range(2))
    one.open(("east", "west"))
    assert other.open(("east", "west")) is None
    one.publish(global_cut(1, "east", "west"))
    with pytest.raises(Refused, match="another job published the global cut 1"):
        other.publish(GlobalCut(1, {"east": MemberCut(5, 6)}))
    assert one.read_last() == global_cut(1, "east", "west")


def test_a_folder_has_the_mirror_of_a_group_or_of_one_prefix(spark: SparkSession, tmp_path: Path) -> None:
    """The folder of a table in another's would be emptied by VACUUM."""
    own = session.fork_session(spark)
    DeltaSink(own, "east", str(tmp_path / "one")).open()
    with pytest.raises(Refused, match="holds the mirror of one prefix, east"):
        DeltaGroup(str(tmp_path / "one")).make_cuts(spark).open(("east", "west"))
    DeltaGroup(str(tmp_path / "two")).make_cuts(spark).open(("east", "west"))
    with pytest.raises(Refused, match="holds the mirror of a source group"):
        DeltaSink(own, "east", str(tmp_path / "two")).open()
