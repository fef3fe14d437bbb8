"""Two databases that are shards of one table, two connectors, one mirror, one table: rows move from
one to the other, and in every cut each is there once.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from fixtures.connector import Maker, wait_until
from helpers.connector import moving_accounts
from helpers.connector.moving_accounts import ACCOUNTS, MARK, Mover, read_sources
from helpers.spark.group_lake import GroupLake, start_members
from helpers.spark.shards import (
    assert_verified,
    assert_whole,
    find_rows,
    read_plainly,
    reading_all_the_time,
    shows_the_sources,
)
from twofold_spark.errors import Refused, SetupError
from twofold_spark.mirror.shard_folding import ShardFolder
from twofold_spark.readers.cut_tables import Tables
from twofold_spark.sinks.delta_sink import DeltaPlace
from twofold_spark.sinks.iceberg_place import IcebergPlace
from twofold_spark.sinks.jdbc_sink import JdbcPlace
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = pytest.mark.timeout(900)
PLACES = {"iceberg": IcebergPlace, "jdbc": JdbcPlace, "delta": DeltaPlace}
DELTA = pytest.param("delta", marks=pytest.mark.slow)


@pytest.fixture(params=["iceberg", "jdbc", DELTA])
def lake(spark: SparkSession, connector: Maker, tmp_path: Path, request: pytest.FixtureRequest) -> GroupLake:
    members = start_members(connector, prepare=moving_accounts.fill)
    sharding = Sharding.parse("public.account, public.jour*")
    made = GroupLake(spark, tmp_path, members, sharding=sharding)
    if request.param != "iceberg":
        where = request.getfixturevalue("database") if request.param == "jdbc" else str(tmp_path / "delta")
        made.choice = SinkChoice(request.param, where)
    return made


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each fold of several shards, whether it was one."""
    found: list[bool] = []
    fold = ShardFolder._fold_together

    def note(*given: Any) -> bool:
        found.append(fold(*given))
        return found[-1]

    monkeypatch.setattr(ShardFolder, "_fold_together", note)
    return found


def _die(*_: object) -> NoReturn:
    raise ZeroDivisionError("it dies")


def test_a_row_that_moves_is_there_once_in_every_cut(
    lake: GroupLake, monkeypatch: pytest.MonkeyPatch, together: list[bool]
) -> None:
    """Also where the job ends between its merges and the cut, and the next one gives them up."""
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of both")
    since = lake.last_cut().number
    mover = Mover(lake.members)
    mover.start()
    try:
        with reading_all_the_time(lambda: read_plainly(lake)) as reads:
            before = len(lake.published)
            lake.follow_during(lambda: wait_until(lambda: len(lake.published) > before + 4, 300))
            assert reads[0] > 10
        with monkeypatch.context() as dying:
            dying.setattr(PLACES[lake.choice.name], "publish", _die)
            wait_until(lambda: _dies(lake), 200, "it dies behind its merges")
    finally:
        mover.stop()
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of both")
    assert mover.moves > 5
    assert any(together)
    if lake.choice.name != "jdbc":
        for cut in lake.kept_cuts():
            tables = Tables(lake.reader, cut, of_group=True)
            if cut.number >= since:
                assert_whole([row.asDict() for row in tables["public.account"].collect()])
    assert_verified(lake)


def _dies(lake: GroupLake) -> bool:
    try:
        lake.run()
    except ZeroDivisionError:
        return True
    return False


def test_one_shard_is_loaded_again_and_the_others_stay(lake: GroupLake, together: list[bool]) -> None:
    """A key that changes keeps the value that was not sent. A row without a key counts for each
    shard. Columns that one shard has before the other unite.
    """
    east, west = lake.members.values()
    for here in (east, west):
        here.sql("ALTER TABLE journal REPLICA IDENTITY FULL", "INSERT INTO journal VALUES ('both'), ('both')")
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of both")

    west.sql("UPDATE account SET id = id + 900 WHERE id = 1", "UPDATE account SET version = 7 WHERE id = 3")
    east.sql("ALTER TABLE account ADD COLUMN region text", "UPDATE account SET region = 'east' WHERE id = 2")
    west.sql("DELETE FROM journal WHERE ctid = (SELECT min(ctid) FROM journal)")
    wait_until(lambda: shows_the_sources(lake), 300, "and their changes")
    assert not all(together)
    regions = {each["id"]: each["region"] for each in read_plainly(lake)}
    assert {each for each, region in regions.items() if region == "east"} == {2}
    if lake.choice.name != "jdbc":
        lines = lake.read()["public.journal"].select("_member", "_copies").collect()
        assert {tuple(line) for line in lines} == {(east.prefix, 2), (west.prefix, 1)}

    west.twofold("backfill", "start", "public.account", "public.journal", ok=True)
    wait_until(lambda: _has_loaded_again(lake, west.prefix), 300, "the west is loaded again")
    assert find_rows(read_plainly(lake)) == read_sources(lake.members)
    assert_verified(lake)


def _has_loaded_again(lake: GroupLake, prefix: str) -> bool:
    lake.run()
    table = f"{prefix}.public.account"
    loads = [
        each
        for each in lake.members[prefix].records("commits")
        if each["kind"] == "backfill" and any(r["topic"] == table for r in each["ranges"])
    ]
    last = lake.last_cut().members[prefix]
    return bool(loads) and loads[-1]["sequence"] <= last.sequence and "public.account" not in last.backfilling


def test_a_key_that_two_shards_have_is_kept_apart_or_refused(lake: GroupLake) -> None:
    lake.kept = {"unique_keys": True}
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of both")
    east, west = lake.members.values()
    west.sql("INSERT INTO account VALUES (2, 5, 'a second row')")
    west.caught_up(mark=MARK)
    before = lake.last_cut()
    for _ in range(2):
        with pytest.raises(Refused, match=rf"one key of public\.account: \(2\) in {east.prefix} and {west.prefix}"):
            lake.run()
        assert lake.last_cut() == before
    assert len(read_plainly(lake)) == len(ACCOUNTS)

    lake.kept = {}

    def has_both() -> bool:
        lake.run()
        return len(read_plainly(lake)) == len(ACCOUNTS) + 1

    wait_until(has_both, 120, "both are there")
    assert {each["_member"] for each in read_plainly(lake) if each["id"] == 2} == {east.prefix, west.prefix}
    lake.kept = {"unique_keys": True}
    west.caught_up(mark=MARK)
    with pytest.raises(Refused, match=r"one key of public\.account"):
        lake.run()
    east.sql("DELETE FROM account WHERE id = 2")
    wait_until(lambda: shows_the_sources(lake), 120, "one of them is left")


def test_a_place_keeps_its_sharded_tables(lake: GroupLake) -> None:
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of both")
    lake.sharding = NO_SHARDING
    with pytest.raises(Refused, match=r"would move public\.account"):
        lake.run()


@pytest.mark.parametrize("lake", ["iceberg", DELTA], indirect=True)
def test_tables_whose_cuts_are_gone_get_no_change_a_second_time(lake: GroupLake) -> None:
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of both")
    for here in lake.members.values():
        here.sql("UPDATE account SET version = 7")
    wait_until(lambda: shows_the_sources(lake), 300, "and their changes")
    if lake.choice.name == "delta":
        shutil.rmtree(Path(lake.choice.address, "twofold", "cuts"))
    else:
        lake.spark.sql(f"DROP TABLE {lake.catalog}.twofold.cuts")
    for _ in range(2):
        with pytest.raises(
            Refused, match=r"public\.(account|journal) has a merge for cut \d+, and twofold\.cuts ends with 0"
        ):
            lake.run()


@pytest.mark.parametrize("lake", ["iceberg", DELTA], indirect=True)
def test_a_table_is_not_read_while_a_shard_is_loaded(lake: GroupLake) -> None:
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of both")
    _, west = lake.members.values()
    table, cut = f"{west.prefix}.public.account", lake.last_cut()
    loading = replace(cut.members[west.prefix], backfilling=("public.account",))
    tables = Tables(lake.reader, replace(cut, members={**cut.members, west.prefix: loading}), of_group=True)
    assert "public.account" not in set(tables)
    with pytest.raises(SetupError, match=f"is in progress in {west.prefix}"):
        tables["public.account"]
    assert table not in set(lake.read()), "it is no table of its own"
    assert lake.read()["public.account"].where(f.col("_member") == west.prefix).count() == len(ACCOUNTS) // 2


@pytest.mark.slow
@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_a_shard_that_is_not_published_any_more_leaves_its_rows(lake: GroupLake) -> None:
    """As in a mirror of its own. If it is stopped, it holds the table back until it is loaded."""
    lake.kept = {"unique_keys": True, "on_table_error": "go-on"}
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of both")
    east, west = lake.members.values()
    west.sql("INSERT INTO account VALUES (2, 5, 'a second row')")
    west.caught_up(mark=MARK)
    lake.run()
    west.sql(f'ALTER PUBLICATION "{west.prefix}" DROP TABLE account', "TRUNCATE account")
    west.twofold("backfill", "start", "public.account", ok=True)
    for here in (west, east):
        here.caught_up(mark=MARK)
    lake.run()
    with pytest.raises(SetupError, match=f"stopped by a refusal in {west.prefix}: .* must do so until it is loaded"):
        lake.read()["public.account"]

    def is_back() -> bool:
        west.caught_up(mark=MARK)
        lake.run()
        return "public.account" in set(lake.read())

    west.sql("INSERT INTO account VALUES (1, 5, 'the last row')")
    west.sql(f'ALTER PUBLICATION "{west.prefix}" ADD TABLE account')
    west.twofold("backfill", "start", "public.account", ok=True)
    wait_until(is_back, 120, "it is published until it is loaded")
    west.sql("DROP TABLE account")
    west.runs[-1].stop()
    west.start()
    east.sql("UPDATE account SET version = 7")
    for here in (west, east):
        here.caught_up(mark=MARK)
    assert is_back()
    found = find_rows([row.asDict() for row in lake.read()["public.account"].collect()])
    assert {(prefix, balance) for prefix, balance, _ in found.values()} == {(east.prefix, 7), (west.prefix, 5)}
    assert len(found) == len(ACCOUNTS) // 2 + 1
