"""Members of a source group that change: added, taken away, their topics recreated. No global cut
tears a transfer between the members that it names.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.spark.group_lake import Coordinator, GroupLake, assert_consecutive, regroup, start_members, transfer
from twofold_spark.errors import Refused
from twofold_spark.session import member_catalog
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture(params=["iceberg", pytest.param("jdbc", marks=pytest.mark.slow)])
def group(spark: SparkSession, connector: Maker, tmp_path: Path, request: pytest.FixtureRequest) -> GroupLake:
    lake = GroupLake(spark, tmp_path, start_members(connector))
    if request.param == "jdbc":
        lake.choice = SinkChoice("jdbc", request.getfixturevalue("database"))
    return lake


def follow(lake: GroupLake, holds: Callable[[GlobalCut], bool], many: int = 2) -> None:
    """Run the mirror until so many of the published cuts are such."""
    try:
        lake.follow_during(lambda: wait_until(lambda: sum(map(holds, lake.published)) >= many, 600))
    finally:
        print(*lake.said, *lake.published, sep="\n")


@pytest.fixture
def banks(connector: Maker) -> list[Installation]:
    return [connector(name=name) for name in sorted(fresh_prefix() for _ in range(3))]


@pytest.mark.slow
def test_members_come_and_go_while_the_coordinator_goes_on(
    spark: SparkSession, banks: list[Installation], tmp_path: Path
) -> None:
    """Transfers go between all three databases all the time. The third one is no member at first,
    is added, is taken away when its connector has died, and is added again.
    """
    east, west, north = banks
    everybody = {here.prefix: here for here in banks}
    two = GroupLake(spark, tmp_path, {here.prefix: here for here in (east, west)})
    regroup(east, west)
    north.start()
    coordinator = Coordinator(everybody, pause_s=0.3)
    coordinator.start()
    try:
        follow(two, lambda cut: all(part.sequence for part in cut.members.values()))

        regroup(east, west, north)
        three = two.with_members(everybody)
        follow(three, lambda cut: north.prefix in cut.members)
        assert any("joins the source group" in line for line in three.said)

        north.runs[-1].kill9()
        fewer, before = three.with_members(two.members), len(coordinator.committed)
        # Its tables may be ahead of the last global cut, whose mirror was ended.
        left = north_of(three, north)
        regroup(east, west)
        follow(fewer, lambda cut: north.prefix not in cut.members, many=4)
        assert any("is no member any more" in line for line in fewer.said)
        assert len(coordinator.committed) > before
        assert north_of(fewer, north) == left, "its tables stay as they are"

        regroup(east, west, north)
        again = three.with_members(everybody)
        follow(again, lambda cut: north.prefix in cut.members)
    finally:
        coordinator.stop()
    for here in banks:
        here.caught_up()
    again.runs_until_it_shows(*coordinator.committed)
    lakes = (two, three, fewer, again)
    assert all(lake.assert_all_whole(coordinator.places) for lake in lakes)
    assert_consecutive(*lakes)


def north_of(lake: GroupLake, north: Installation) -> dict[str, int]:
    """The transfers in the tables of one who is no member."""
    rows = lake.spark.table(f"{member_catalog(lake.catalog, north.prefix)}.public.transfer").collect()
    return {row["id"]: row["amount"] for row in rows}


def recreate_topics(here: Installation) -> None:
    """As a person does who lets a source begin again under the same prefix."""
    here.runs[-1].stop()
    subprocess.run(here.command("reset", "--yes"), check=True, capture_output=True, timeout=60)
    here.delete_topics()
    again = here.init()
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_a_member_whose_topics_were_recreated_is_refused(group: GroupLake) -> None:
    transfer(group.members, "one", 10)
    group.runs_until_it_shows("one")
    _, west = group.members.values()
    had = len(west.records("commits"))

    def more_than_before() -> bool:
        west.caught_up()
        return len(west.records("commits")) > had

    recreate_topics(west)
    west.start()
    wait_until(more_than_before, 120, "the new topics have as many commit records as the old ones")
    transfer(group.members, "two", 20)
    for checkpoint in ("checkpoint", "lost"):
        with pytest.raises(Refused, match="the topics of this prefix were recreated") as refused:
            group.run(checkpoint)
        assert "restart the connectors of all members" in str(refused.value)

    for here in group.members.values():
        here.runs[-1].stop()
        here.start()
    other = GroupLake(group.spark, group.folder / "other", group.members)
    other.runs_until_it_shows("one", "two")
