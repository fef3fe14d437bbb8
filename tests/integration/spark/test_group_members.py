"""Members of a source group that change: topics that are recreated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.spark.group_lake import GroupLake, transfer
from twofold_spark.errors import Refused

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def group(spark: SparkSession, connector: Maker, tmp_path: Path) -> GroupLake:
    names = sorted(fresh_prefix() for _ in range(2))
    name = fresh_prefix()
    members = {each: connector(name=each, group={"name": name, "members": names}) for each in names}
    for here in members.values():
        here.start()
    return GroupLake(spark, tmp_path, members, name)


def recreate_topics(here: Installation) -> None:
    """As a person does who lets a source begin again under the same prefix."""
    here.runs[-1].stop()
    subprocess.run(here.command("reset", "--yes"), check=True, capture_output=True, timeout=60)
    admin = AdminClient({"bootstrap.servers": here.reader.bootstrap})
    for deleted in admin.delete_topics(here.reader.topics(here.prefix)).values():
        deleted.result(30)
    wait_until(lambda: not here.reader.topics(here.prefix), what="the topics are gone")
    again = here.init()
    assert again.returncode == 0, again.stderr


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
    other = GroupLake(group.spark, group.folder / "other", group.members, group.name)
    other.runs_until_it_shows("one", "two")
