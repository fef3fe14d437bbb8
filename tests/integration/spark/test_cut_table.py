"""The table of cuts, and the one of waits: whose they are, and how long rows are kept."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from twofold_common.global_waits import BranchPlace, LongWait, Wait
from twofold_spark import session
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.errors import Refused
from twofold_spark.sinks import cut_rows
from twofold_spark.sinks.cuts import CUTS, NO_CUT, NO_LIMIT, CutLimit, GlobalCut
from twofold_spark.sinks.iceberg_branches import CutPublisher
from twofold_spark.sinks.iceberg_tables import IcebergTables
from twofold_spark.sinks.place import Place, TablePlace
from twofold_spark.sinks.sink_choice import SinkChoice

_number = itertools.count(1)
_make_rows = cut_rows.make_rows
AN_HOUR, NOTHING = dt.timedelta(hours=1), dt.timedelta(0)


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> str:
    name = f"cuts{next(_number)}"
    for key, value in WAREHOUSE_CATALOG.settings(str(tmp_path), name).items():
        spark.conf.set(key, value)
    session.open_member_catalogs(spark, tmp_path, name, ("east", "west", "north", "south"))
    return name


@pytest.fixture(params=["iceberg", "jdbc", pytest.param("delta", marks=pytest.mark.slow)])
def choice(request: pytest.FixtureRequest, tmp_path: Path) -> SinkChoice:
    match request.param:
        case "delta":
            return SinkChoice("delta", str(tmp_path / "delta"))
        case "jdbc":
            return SinkChoice("jdbc", request.getfixturevalue("database"))
    return SinkChoice("iceberg")


def opened(spark: SparkSession, choice: SinkChoice, catalog: str, *prefixes: str, of_group: bool = True) -> Place:
    place = choice.make_place(of_group=of_group, catalog=catalog)
    try:
        place.open(spark, prefixes)
    except Refused:
        place.close()
        raise
    return place


def cut(number: int, *members: str, others: tuple[str, ...] = ()) -> GlobalCut:
    part = replace(NO_CUT, sequence=10 * number, offset=20 * number, committed_us=number, stream_id="s")
    return GlobalCut(number, dict.fromkeys(members, part), dict.fromkeys(others, part))


def test_a_thread_may_be_the_first_to_use_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    """No session is active in a new thread."""
    name = f"cuts{next(_number)}"
    own = session.fork_session(spark)
    for key, value in WAREHOUSE_CATALOG.settings(str(tmp_path), name).items():
        own.conf.set(key, value)
    own.sql(f"CREATE TABLE {name}.public.account (id int) USING iceberg TBLPROPERTIES ('twofold.key' = 'id')")
    other = session.fork_session(own)
    reader = IcebergTables(other, name)
    publisher = IcebergTables(session.fork_session(own), name)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(reader.read_property, "public.account", "twofold.key").result() == "id"
        pool.submit(CutPublisher, publisher).result()


def test_members_may_change_but_not_all_of_them(spark: SparkSession, choice: SinkChoice, catalog: str) -> None:
    place = opened(spark, choice, catalog, "east", "west")
    assert place.last is None
    place.close()
    place = opened(spark, choice, catalog, "east", "north")
    assert place.last is None
    reader = choice.make_reader(spark, catalog=catalog)
    place.publish(cut(1, others=("north",)))
    assert reader.find_cut() is None, "nobody has joined"
    place.publish(cut(2, "east", others=("north",)))
    place.close()
    place = opened(spark, choice, catalog, "south", "north")
    assert place.last == reader.find_cut() == cut(2, "east", others=("north",))
    place.close()
    with pytest.raises(
        Refused, match=r"holds the mirror of a source group \(east, north\), not of a .* \(south, west\)"
    ):
        opened(spark, choice, catalog, "south", "west")
    with pytest.raises(Refused, match=r"holds the mirror of a source group \(east, north\), not of the prefix east"):
        opened(spark, choice, catalog, "east", of_group=False)


def test_the_mirror_of_one_source_is_not_taken_for_another_s(
    spark: SparkSession, choice: SinkChoice, catalog: str
) -> None:
    """In Delta the folder of a table in another's would be emptied by VACUUM."""
    place = opened(spark, choice, catalog, "east", of_group=False)
    place.publish(cut(1, "east"))
    place.close()
    for others in (("west",), ("east", "west")):
        with pytest.raises(Refused, match="holds the mirror of the prefix east, not of "):
            opened(spark, choice, catalog, *others, of_group=len(others) > 1)
    place = opened(spark, choice, catalog, "east", of_group=False)
    assert place.last == cut(1, "east")
    place.close()


def test_the_cut_within_a_limit_is_within_it_for_all_sources(spark: SparkSession, catalog: str) -> None:
    choice = SinkChoice("iceberg")
    place, reader = opened(spark, choice, catalog, "east", "west"), choice.make_reader(spark, catalog=catalog)
    for number in (1, 2, 3):
        parts = cut(number, "east", "west").members
        late = replace(parts["west"], committed_us=10 * number, whole=number < 3)
        place.publish(GlobalCut(number, {**parts, "west": late}))
    found = reader.find_cut(CutLimit(committed_us=15))
    assert found is not None
    assert found.number == 1
    assert reader.find_cut(CutLimit(committed_us=9)) is None
    last = reader.find_cut(NO_LIMIT)
    assert last is not None
    assert last.number == 2, "a member of the third is not whole"


def test_times_are_exact_whatever_parser_of_times_the_session_asks_for(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's older one takes the microseconds behind a second for milliseconds."""
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        place = SinkChoice("delta", str(tmp_path / "delta")).make_place(of_group=True, catalog="none")
        place.open(spark, ("east",))
        part = replace(NO_CUT, committed_us=1_700_000_000_123_456, stream_id="s")
        place.publish(GlobalCut(1, {"east": part}, {}))
        place.replace_waits([LongWait(Wait("g", ()), 0, {})])
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    [row] = spark.sql(f"SELECT unix_micros(committed_at) AS us FROM delta.`{tmp_path}/delta/twofold/cuts`").collect()
    assert row["us"] == part.committed_us
    [row] = spark.sql(f"SELECT since FROM delta.`{tmp_path}/delta/twofold/global_waits`").collect()
    assert row["since"].timestamp() == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize("choice", ["iceberg", pytest.param("delta", marks=pytest.mark.slow)], indirect=True)
def test_a_job_that_stood_still_while_it_published_does_not_add_to_another_s_cuts(
    spark: SparkSession, choice: SinkChoice, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, other = (opened(spark, choice, catalog, "east") for _ in range(2))

    def make_rows_late(published: GlobalCut) -> list[dict[str, Any]]:
        monkeypatch.undo()
        for number in (1, 2):
            other.publish(cut(number, "east"))
        return _make_rows(published)

    monkeypatch.setattr(cut_rows, "make_rows", make_rows_late)
    with pytest.raises(Refused, match="another job published the cut 1"):
        place.publish(cut(1, "east"))
    assert isinstance(other, TablePlace)
    assert sorted(row["number"] for row in other.read_cuts(spark).collect()) == [1, 2]
    other.publish(cut(3, "east"))
    assert choice.make_reader(spark, catalog=catalog).find_cut() == cut(3, "east")


def test_what_is_old_is_forgotten_except_the_last(spark: SparkSession, catalog: str) -> None:
    place = opened(spark, SinkChoice("iceberg"), catalog, "east", "west")
    wait = LongWait(Wait("g", (BranchPlace("east", "committed", 1),)), 6.0, {"east": 1})

    def count(of: str) -> int:
        return spark.table(f"{catalog}.twofold.{of}").count()

    for number in range(1, 6):
        place.publish(cut(number, "east", "west"))
        place.replace_waits([wait])
    place.forget(AN_HOUR)
    place.maintain(AN_HOUR)
    assert (count("cuts"), count("cuts.files")) == (10, 1), "compacted, and nothing is old"
    assert count("cuts.snapshots") > 5, "a reader of an older state goes on"
    place.forget(NOTHING)
    place.maintain(NOTHING)
    assert place.last == cut(5, "east", "west")
    assert (count("cuts"), count("global_waits")) == (2, 1)
    for each in ("cuts", "global_waits"):
        assert count(f"{each}.snapshots") <= 3
        assert count(f"{each}.all_data_files") <= 3


@pytest.mark.parametrize("choice", ["iceberg", pytest.param("delta", marks=pytest.mark.slow)], indirect=True)
def test_age_counts_from_when_a_cut_was_replaced(
    spark: SparkSession, choice: SinkChoice, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may have begun with the last cut before a quiet night just before the next one. A
    cut that is not whole replaces none.
    """
    place = opened(spark, choice, catalog, "east", "west")
    for number, hours in ((1, 10), (2, 9), (3, 8), (4, 0)):
        at = dt.datetime.now(dt.UTC) - dt.timedelta(hours=hours)
        made = cut(number, "east", "west")
        if number == 3:
            made = GlobalCut(3, {**made.members, "west": replace(made.members["west"], whole=False)})
        with monkeypatch.context() as then:
            then.setattr(
                cut_rows, "make_rows", lambda cut, at=at: [{**row, "published_at": at} for row in _make_rows(cut)]
            )
            place.publish(made)
    place.forget(AN_HOUR)
    assert choice.make_reader(spark, catalog=catalog).find_cut(first=True) == cut(2, "east", "west")


def test_a_snapshot_that_was_replaced_lately_stays_however_old_it_is(
    spark: SparkSession, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = opened(spark, SinkChoice("iceberg"), catalog, "east")
    name = f"{catalog}.{CUTS}"
    for number in (1, 2, 3):
        place.publish(cut(number, "east"))
    [*_, read] = spark.sql(f"SELECT snapshot_id FROM {name}.history ORDER BY made_current_at").collect()
    an_hour_later = time.time_ns() + 3600 * 10**9
    for number in (4, 5, 6):
        place.publish(cut(number, "east"))
    monkeypatch.setattr(time, "time_ns", lambda: an_hour_later)
    place.maintain(AN_HOUR)
    kept = spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").collect()
    assert kept[0] == read, "what was replaced before is gone"
    assert spark.sql(f"SELECT * FROM {name} VERSION AS OF {read[0]}").count() == 3


@pytest.mark.slow
def test_in_delta_what_is_old_is_forgotten_except_the_last(spark: SparkSession, tmp_path: Path) -> None:
    choice = SinkChoice("delta", str(tmp_path))
    place = opened(spark, choice, "none", "east", "west")
    wait = LongWait(Wait("g", (BranchPlace("east", "committed", 1),)), 6.0, {"east": 1})

    def describe(of: str) -> tuple[int, int]:
        """The rows, and the files."""
        name = f"delta.`{tmp_path}/twofold/{of}`"
        return spark.table(name).count(), spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["numFiles"]

    for number in (1, 2, 3):
        place.publish(cut(number, "east", "west"))
        place.replace_waits([wait])
    place.forget(AN_HOUR)
    place.maintain(AN_HOUR)
    assert describe("cuts") == (6, 1), "compacted, and nothing is old"
    place.forget(NOTHING)
    place.maintain(NOTHING)
    assert (describe("cuts"), describe("global_waits")) == ((2, 1), (1, 1))
    assert choice.make_reader(spark, catalog="none").find_cut() == cut(3, "east", "west")
    place.publish(cut(4, "east"))
    assert choice.make_reader(spark, catalog="none").find_cut() == cut(4, "east")


@pytest.mark.parametrize("choice", ["iceberg", pytest.param("delta", marks=pytest.mark.slow)], indirect=True)
def test_a_second_job_s_cut_is_refused(spark: SparkSession, choice: SinkChoice, catalog: str) -> None:
    """Delta would skip a row whose number the table has, and Iceberg would have two of them."""
    one, other = (opened(spark, choice, catalog, "east", "west") for _ in range(2))
    one.publish(cut(1, "east", "west"))
    with pytest.raises(Refused, match="another job published the cut 1"):
        other.publish(cut(1, "east"))
    assert choice.make_reader(spark, catalog=catalog).find_cut() == cut(1, "east", "west")
    one.maintain(NOTHING)
    one.publish(cut(2, "east", "west"))
