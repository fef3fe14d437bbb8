"""The table of global cuts, and the one of waits: whose they are, and how long rows are kept."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from twofold_common.global_waits import BranchPlace, LongWait, Wait
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.errors import Refused
from twofold_spark.readers.cut_tables import read_cut
from twofold_spark.sinks.cuts import CUTS, Cut
from twofold_spark.sinks.global_cut_table import GlobalCutTable
from twofold_spark.sinks.global_cuts import GlobalCut, MemberCut
from twofold_spark.sinks.iceberg_sink import IcebergSink

_number = itertools.count(1)
AN_HOUR, NOTHING = dt.timedelta(hours=1), dt.timedelta(0)


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> str:
    name = f"cuts{next(_number)}"
    for key, value in WAREHOUSE_CATALOG.settings(str(tmp_path), name).items():
        spark.conf.set(key, value)
    return name


def global_cut(number: int, *prefixes: str) -> GlobalCut:
    return GlobalCut(number, {prefix: MemberCut(10 * number, 20 * number) for prefix in prefixes})


def test_members_may_change_but_not_all_of_them(spark: SparkSession, catalog: str) -> None:
    assert GlobalCutTable(spark, catalog).open(("east", "west")) is None
    table = GlobalCutTable(spark, catalog)
    assert table.open(("east", "north")) is None
    table.publish(global_cut(1, "east", "north"))
    assert table.open(("south", "north")) == global_cut(1, "east", "north")
    for strangers in [("south", "west"), ("south",)]:
        with pytest.raises(Refused, match=r"holds the global cuts of east, north, and .* has none of these members"):
            table.open(strangers)


def test_what_is_old_is_forgotten_except_the_last(spark: SparkSession, catalog: str) -> None:
    table = GlobalCutTable(spark, catalog)
    table.open(("east", "west"))
    wait = LongWait(Wait("g", (BranchPlace("east", "committed", 1),)), 6.0, {"east": 1})

    def count(of: str) -> int:
        return spark.table(f"{catalog}.twofold.{of}").count()

    for number in range(1, 9):
        table.publish(global_cut(number, "east", "west"))
        table.replace_waits([wait])
    assert table.forget(AN_HOUR) == global_cut(1, "east", "west")
    table.maintain(AN_HOUR)
    assert (count("global_cuts"), count("global_cuts.files")) == (8, 1), "compacted, and nothing is old"
    assert count("global_cuts.snapshots") > 8, "a reader of an older state goes on"
    assert table.forget(NOTHING) == table.read_last() == global_cut(8, "east", "west")
    table.maintain(NOTHING)
    assert count("global_cuts") == count("global_waits") == 1
    for each in ("global_cuts", "global_waits"):
        assert count(f"{each}.snapshots") <= 3
        assert count(f"{each}.all_data_files") <= 3


def test_a_member_keeps_the_cuts_that_kept_global_cuts_name(spark: SparkSession, catalog: str) -> None:
    """Such as those of a member that was idle for longer than cuts are kept."""
    sink = IcebergSink(spark, "east", catalog)
    sink.open()
    for number in (1, 2, 3, 4):
        sink.publish(Cut(number, number, number, whole=True, versions={}, backfilling=(), stopped=()))
    sink.maintain([CUTS], NOTHING, since=3)
    assert [read_cut(spark, sequence=n, catalog=catalog).cut.sequence for n in (3, 4)] == [3, 4]
    assert spark.table(f"{catalog}.twofold.cuts").count() == 2
    sink.maintain([CUTS], NOTHING, since=9)
    assert spark.table(f"{catalog}.twofold.cuts").count() == 1, "the last one stays"
