"""Two databases, two connectors, one mirror: transfers between them by a coordinator that leaves
branches in doubt. In every global cut the total is the same.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Maker, wait_until
from helpers.spark import process as spark_process
from helpers.spark.group_lake import Coordinator, GroupLake, prepare, start_members, transfer
from twofold_common import java
from twofold_spark import session
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.readers.cut_tables import read_cut
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=["iceberg"])
def group(spark: SparkSession, connector: Maker, tmp_path: Path, request: pytest.FixtureRequest) -> GroupLake:
    """In the catalog; `parametrize("group", KEPT, indirect=True)` keeps it in each sink."""
    lake = GroupLake(spark, tmp_path, start_members(connector))
    match request.param:
        case "delta":
            lake.choice = SinkChoice("delta", str(tmp_path / "delta"))
        case "jdbc":
            lake.choice = SinkChoice("jdbc", request.getfixturevalue("database"))
    return lake


KEPT = [
    pytest.param("iceberg", marks=pytest.mark.core),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("delta", "jdbc")),
]
"""test_group_sinks.py has the short form of the others."""


@pytest.mark.parametrize("group", KEPT, indirect=True)
def test_no_cut_shows_half_of_a_transfer(group: GroupLake) -> None:
    transfer(group.members, "one", 10)
    group.runs_until_it_shows("one")

    east, west = prepare(group.members, "two", 20)
    east.tpc_commit()
    transfer(group.members, "three", 30)
    for here in group.members.values():
        here.caught_up()
    group.run()
    assert group.assert_whole() == {"one"}, "the second is half there, and the third lies behind it"
    group.run("lost")
    assert group.assert_whole() == {"one"}, "a lost checkpoint changes nothing"
    west.tpc_commit()
    group.runs_until_it_shows("one", "two", "three")
    last = group.published[-1]
    group.run("lost again")
    assert group.last_cut() == last, "nothing is new, and nothing is published"


@pytest.mark.parametrize(
    "group", ["jdbc", *(pytest.param(name, marks=pytest.mark.slow) for name in ("iceberg", "delta"))], indirect=True
)
def test_what_holds_others_back_is_named_with_the_statement_that_ends_it(group: GroupLake) -> None:
    transfer(group.members, "one", 10)
    group.runs_until_it_shows("one")
    (east_name, east_here), (west_name, west_here) = group.members.items()

    def half_a_transfer() -> None:
        east, west = prepare(group.members, "two", 20)
        gid = west_here.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        east.tpc_commit()
        wait_until(lambda: east_here.records("commits")[-1]["sequence"] == 2, 90, "it has a commit record of its own")
        east_here.sql("INSERT INTO transfer VALUES ('plain', 1, 0)")
        wait_until(lambda: group.said, 150, "it is named, though nothing new comes")
        (line,) = group.said
        assert "mirror: waits for the global transaction 1:two for " in line
        assert f"committed in {east_name} by commit record " in line
        assert f"commit records that wait: 2 of {east_name}; " in line
        assert line.endswith(f"to end it, in the database of {west_name}: COMMIT PREPARED '{gid}';")
        (row,) = wait_until(group.waits, 90, "the table names it")
        assert row["global_id"] == "1:two"
        assert [(each["prefix"], each["state"], each["gids"]) for each in row["branches"]] == [
            (east_name, "committed", []),
            (west_name, "in doubt", [gid]),
        ]
        assert row["held"] == [{"prefix": east_name, "commits": 2}]
        west.tpc_commit()
        wait_until(lambda: not group.waits(), 150, "nothing waits")

    group.said.clear()
    group.follow_during(half_a_transfer)
    assert group.said[1:] == ["mirror: nothing holds the next cut back any more"]


def test_the_command_takes_the_members_or_their_group(group: GroupLake) -> None:
    """The second start names the group, and goes on where the first one was."""
    here = next(iter(group.members.values()))
    warehouse, catalog = group.folder / "warehouse", "bank"
    line = [
        sys.executable, "-m", "twofold_spark", "mirror", "--bootstrap", here.reader.bootstrap,
        "--registry", here.reader.registry_url, "--warehouse", str(warehouse), "--catalog", catalog,
        "--java-home", str(java.spark_java_home()), "--trigger", "continuous",
    ]  # fmt: skip

    def found() -> list[int]:
        for name, value in WAREHOUSE_CATALOG.settings(str(warehouse), catalog).items():
            group.spark.conf.set(name, value)
        session.open_member_catalogs(group.spark, warehouse, catalog, group.members)
        cut = read_cut(group.spark, catalog=catalog)
        return sorted(row["amount"] for prefix in cut.members for row in cut[f"{prefix}.public.transfer"].collect())

    def runs_until_it_shows(amounts: list[int], *members: str) -> None:
        with spark_process.in_its_own_group([*line, *members]) as process:
            said = spark_process.lines(process)
            next(each for each in said if each.startswith("mirror: global cut") and found() == amounts)
            os.killpg(process.pid, signal.SIGTERM)
            spark_process.finish(process, within_s=60)

    transfer(group.members, "one", 10)
    runs_until_it_shows([-10, 10], *(each for prefix in group.members for each in ("--prefix", prefix)))
    transfer(group.members, "two", 20)
    runs_until_it_shows([-20, -10, 10, 20], "--source-group", min(group.members))


@pytest.mark.slow
@pytest.mark.parametrize("group", ["iceberg", "delta"], indirect=True)
def test_old_global_cuts_are_forgotten(group: GroupLake) -> None:
    group.kept = {"maintain_every": 1, "keep_cuts": dt.timedelta(0)}
    transfer(group.members, "one", 10)
    group.runs_until_it_shows("one")
    transfer(group.members, "two", 20)
    group.runs_until_it_shows("one", "two")
    assert len(group.published) > 1
    assert group.reader.find_cut(first=True) == group.reader.find_cut()
    assert group.table("cuts").count() == len(group.members)


@pytest.mark.slow
def test_a_coordinator_in_trouble_never_changes_the_total(group: GroupLake) -> None:
    coordinator = Coordinator(group.members)
    coordinator.start()

    def many_cuts() -> bool:
        group.run()
        if group.published:
            group.assert_whole()
        return len(group.published) > 5

    try:
        wait_until(many_cuts, 400, "six global cuts")
    finally:
        coordinator.stop()
    group.runs_until_it_shows(*coordinator.committed)
