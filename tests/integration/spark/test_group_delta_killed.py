"""The process of a group's mirror into Delta is killed at every place where it can end: every
global cut is whole, and nothing is lost or doubled.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Maker, wait_until
from helpers.spark.group_lake import Coordinator, GroupLake, assert_consecutive, start_members, write_lines
from helpers.spark.group_process import publishes, running, runs_to_the_end
from helpers.spark.verified import verify_members
from twofold_spark.sinks.delta_tables import DeltaTables
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
"""The short form is in test_group_sinks.py: the driver dies, in the process of the test."""

TABLES: Final = ("public.transfer", "public.journal")
PLACES: Final = ("behind a merge", "before the rows", "behind the rows")
ATTEMPTS: Final = 4
"""The next step of the process may come before the kill."""


@pytest.fixture
def group(spark: SparkSession, connector: Maker, tmp_path: Path) -> GroupLake:
    choice = SinkChoice("delta", str(tmp_path / "delta"))
    return GroupLake(spark, tmp_path, start_members(connector), choice=choice)


@dataclass(frozen=True, slots=True)
class Written:
    """How many commits Delta's logs have, by the names of their files: a query would take longer
    than the process takes to its next step.
    """

    merges: tuple[int, ...]
    """Of each member's tables."""
    rows: int
    """Of the cuts."""

    @classmethod
    def read(cls, folder: Path, prefixes: Iterable[str]) -> Written:
        def count(*table: str) -> int:
            return sum(1 for file in folder.joinpath(*table, "_delta_log").glob("*.json") if file.stem.isdigit())

        members = tuple(prefixes)
        return cls(
            tuple(count(prefix, *table.split(".")) for prefix in members for table in TABLES),
            count("twofold", "cuts"),
        )

    def has_come_to(self, place: str, since: Written) -> bool:
        match place:
            case "behind a merge":
                return self.merges > since.merges
            case "before the rows":
                return all(now > then for now, then in zip(self.merges, since.merges, strict=True))
            case _:
                return self.rows > since.rows


@pytest.mark.parametrize("places", [("before the rows",), PLACES])
def test_every_global_cut_in_delta_is_whole_wherever_the_process_is_killed(
    group: GroupLake, places: tuple[str, ...]
) -> None:
    """At these places of its first round, then at any instant, maintenance among them. Then the
    checkpoint is lost.
    """
    write_lines(group)
    coordinator = Coordinator(group.members, pause_s=0.3)
    coordinator.start()
    try:
        wait_until(lambda: has_published(group), 200, "a global cut")
        for place in places:
            found = set[str]()
            for _ in range(ATTEMPTS):
                found = kill_at(place, group)
                if place in found:
                    break
            assert place in found, f"killed {place}, the process was already {found}"
        with running(group, "--trigger", "interval=100ms", "--maintain-every", "1") as job:
            publishes(job, 1)
            time.sleep(random.uniform(0, 4))  # any instant of a few rounds will do
            os.killpg(job.pid, signal.SIGKILL)
        group.assert_whole()
        shutil.rmtree(group.folder / "warehouse" / "checkpoints")
    finally:
        coordinator.stop()
    runs_to_the_end(group, within_s=300)
    group.runs_until_it_shows(*coordinator.committed)
    group.published = group.kept_cuts()
    assert_consecutive(group)
    assert group.assert_all_whole(coordinator.places) > 20
    assert_equal(group)


def has_published(group: GroupLake) -> bool:
    group.run()
    return bool(group.published)


def kill_at(place: str, group: GroupLake) -> set[str]:
    """Kill the process when it comes to this place. Return the places at which its tables are."""
    folder = Path(group.choice.address)
    since = Written.read(folder, group.members)
    with running(group, "--trigger", "interval=100ms") as job:

        def is_there() -> bool:
            assert job.poll() is None, job.communicate()[1]
            return Written.read(folder, group.members).has_come_to(place, since)

        wait_until(is_there, 400, place)
        os.killpg(job.pid, signal.SIGKILL)
    group.assert_whole()
    return find_places(group)


def find_places(group: GroupLake) -> set[str]:
    """Where a process ended, by what the tables hold."""
    last = group.last_cut()
    folders = {prefix: DeltaTables(group.spark, group.choice.address).of_member(prefix) for prefix in group.members}
    merged = {prefix: [each.read_state(table)[1] for table in TABLES] for prefix, each in folders.items()}
    ahead = [sequence > last.members[prefix].sequence for prefix in group.members for sequence in merged[prefix]]
    found = {"behind a merge": any(ahead), "before the rows": all(ahead), "behind the rows": not any(ahead)}
    return {place for place, is_there in found.items() if is_there}


def assert_equal(group: GroupLake) -> None:
    """`verify` finds each member's tables equal to its source."""
    for _, compared in verify_members(group, patience=60):
        assert min(compared[table].rows for table in TABLES) > 20
        assert not any(each.buckets for each in compared.values())
