"""Two databases, two connectors, one mirror: transfers between them by a coordinator that leaves
branches in doubt. In every global cut the total is the same.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.spark import QUICK_JAVA
from fixtures.stack import fresh_prefix
from twofold_common import java
from twofold_spark import session
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.errors import Refused
from twofold_spark.mirror.group_mirror import GroupMirror
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.readers.global_cut_tables import GlobalTables, read_global_cut
from twofold_spark.sinks.global_cuts import GlobalCut, GlobalCutTable, member_catalog
from twofold_spark.sinks.iceberg_sink import IcebergSink
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import StreamingJob, Trigger

pytestmark = pytest.mark.timeout(600)
_number = itertools.count(1)


@dataclass
class GroupLake:
    """A warehouse with a catalog for each member, and one for the group."""

    spark: SparkSession
    folder: Path
    members: Mapping[str, Installation]
    name: str
    """Of the source group."""
    catalog: str = field(default_factory=lambda: f"group{next(_number)}")
    published: list[GlobalCut] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        catalogs = {self.catalog: self.folder / "group"}
        catalogs |= {member_catalog(self.catalog, prefix): self.folder / prefix for prefix in self.members}
        for catalog, folder in catalogs.items():
            folder.mkdir(exist_ok=True)
            for name, value in WAREHOUSE_CATALOG.settings(str(folder), catalog).items():
                self.spark.conf.set(name, value)

    def mirror(self, **settings: Any) -> GroupMirror:
        here = next(iter(self.members.values()))
        kafka, registry = Kafka(here.reader.bootstrap), Registry(here.reader.registry_url)

        def one(prefix: str) -> Mirror:
            catalog = member_catalog(self.catalog, prefix)
            return Mirror(kafka, registry, prefix, lambda its: IcebergSink(its, prefix, catalog))

        mirrors = {prefix: one(prefix) for prefix in self.members}
        return GroupMirror(
            kafka,
            registry,
            mirrors,
            lambda its: GlobalCutTable(its, self.catalog),
            **settings,
            report=self.published.append,
            warn=self.said.append,
        )

    def run(self, checkpoint: str = "checkpoint") -> None:
        """Run to the end of what is there."""
        mirror = self.mirror(named_after_s=0)
        job = StreamingJob("mirror", mirror)
        try:
            job.start(mirror.open_stream(self.spark), self.folder / checkpoint, Trigger.parse("available-now"))
            job.run()
        finally:
            mirror.close()

    def follow_during(self, body: Callable[[], None], wait_limit_s: float | None = None) -> None:
        """Follow the members until the end of `body`, which runs in a thread of its own."""
        mirror, ending = self.mirror(wait_limit_s=wait_limit_s), threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                body()
            except BaseException as error:
                failures.append(error)
            finally:
                ending.set()

        job = StreamingJob("mirror", mirror, meanwhile=mirror.look_if_due)
        job.start(mirror.open_stream(self.spark), self.folder / "checkpoint", Trigger.parse("interval=500ms"))
        thread = threading.Thread(target=run, name="body")
        thread.start()
        try:
            job.run(ending)
        finally:
            mirror.close()
            thread.join(120)
        if failures:
            raise failures[0]

    def read(self) -> GlobalTables:
        return read_global_cut(self.spark, catalog=self.catalog)

    def waits(self) -> list[dict[str, Any]]:
        table = self.spark.table(f"{self.catalog}.twofold.global_waits")
        return [each.asDict(recursive=True) for each in table.collect()]

    def transfers(self) -> dict[str, dict[str, int]]:
        """The amounts by prefix and transfer, as of the last global cut."""
        cut = self.read()
        return {
            prefix: {row["id"]: row["amount"] for row in tables["public.transfer"].collect()}
            if "public.transfer" in tables.cut.versions
            else {}
            for prefix, tables in ((prefix, cut[prefix]) for prefix in cut if cut.cut.members[prefix].sequence)
        }

    def assert_whole(self) -> set[str]:
        """Every transfer is in both databases or in none; return the transfers."""
        east, west = (self.transfers().get(prefix, {}) for prefix in self.members)
        assert {name: -amount for name, amount in east.items()} == west
        return {*east}

    def runs_until_it_shows(self, *transfers: str) -> None:
        def shown() -> bool:
            self.run()
            return bool(self.published) and self.assert_whole() == {*transfers}

        wait_until(shown, 120, f"the mirror shows {transfers}")


@pytest.fixture
def group(spark: SparkSession, connector: Maker, tmp_path: Path) -> GroupLake:
    names = sorted(fresh_prefix() for _ in range(2))
    group = fresh_prefix()
    members = {name: connector(name=name, group={"name": group, "members": names}) for name in names}
    for here in members.values():
        here.start()
    return GroupLake(spark, tmp_path, members, group)


def prepare(group: GroupLake, name: str, amount: int) -> list[psycopg.Connection[Any]]:
    """Prepare the branches of a transfer."""
    branches = []
    for (prefix, here), part in zip(group.members.items(), (amount, -amount), strict=True):
        branch = psycopg.connect(here.conninfo)
        branch.tpc_begin(branch.xid(1, name, prefix))
        branch.execute("INSERT INTO transfer VALUES (%s, 1, %s)", (name, part))
        branch.tpc_prepare()
        here.at_end(branch.close)
        branches.append(branch)
    return branches


def transfer(group: GroupLake, name: str, amount: int) -> None:
    for branch in prepare(group, name, amount):
        branch.tpc_commit()


@pytest.mark.core
def test_no_cut_shows_half_of_a_transfer(group: GroupLake) -> None:
    transfer(group, "one", 10)
    group.runs_until_it_shows("one")

    east, west = prepare(group, "two", 20)
    east.tpc_commit()
    transfer(group, "three", 30)
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
    assert group.read().cut == last, "nothing is new, and nothing is published"


def test_what_holds_others_back_is_named_with_the_statement_that_ends_it(group: GroupLake) -> None:
    transfer(group, "one", 10)
    group.runs_until_it_shows("one")
    (east_name, east_here), (west_name, west_here) = group.members.items()

    def half_a_transfer() -> None:
        east, west = prepare(group, "two", 20)
        gid = west_here.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        east.tpc_commit()
        east_here.sql("INSERT INTO transfer VALUES ('plain', 1, 0)")
        wait_until(lambda: group.said, 150, "it is named, though nothing new comes")
        (line,) = group.said
        assert "mirror: waits for the global transaction 1:two for " in line
        assert f"committed in {east_name} by commit record " in line
        assert f"commit records that wait: 2 of {east_name}; " in line
        assert line.endswith(f"to end it, in the database of {west_name}: COMMIT PREPARED '{gid}';")
        (row,) = wait_until(group.waits, 60, "the table names it")
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
    assert group.said[1:] == ["mirror: no global transaction holds others back any more"]


def test_a_cut_goes_on_without_what_waits_too_long_and_names_it(group: GroupLake) -> None:
    transfer(group, "one", 10)
    group.runs_until_it_shows("one")
    east_name, west_name = group.members
    east, west = prepare(group, "two", 20)

    def read() -> tuple[tuple[str, ...], set[str], set[str]]:
        """What is torn, and the transfers of each member."""
        shown = group.transfers()
        return group.read().torn, {*shown[east_name]}, {*shown[west_name]}

    def half_a_transfer() -> None:
        east.tpc_commit()
        torn = ("1:two",), {"one", "two"}, {"one"}
        wait_until(lambda: read() == torn, 150, "the cut goes on without the west's branch, though nothing new comes")

    group.follow_during(half_a_transfer, wait_limit_s=2)
    assert any("waits no longer for the global transaction 1:two (--global-wait)" in line for line in group.said)

    transfer(group, "three", 30)
    last = group.published[-1].number

    def next_cut() -> bool:
        group.run("after a restart")
        return group.published[-1].number > last and len(read()[1]) == 3

    wait_until(next_cut, 120, "the third is shown")
    assert read() == (("1:two",), {"one", "two", "three"}, {"one", "three"}), "a restart forgets nothing"
    west.tpc_commit()
    for here in group.members.values():
        here.caught_up()
    group.runs_until_it_shows("one", "two", "three")
    transfer(group, "four", 40)
    group.runs_until_it_shows("one", "two", "three", "four")
    assert group.read().torn == ()


@pytest.mark.parametrize("by", ["prefixes", "name"])
def test_the_command_takes_the_members_or_their_group(group: GroupLake, by: str) -> None:
    transfer(group, "one", 10)
    here = next(iter(group.members.values()))
    warehouse, catalog = group.folder / "warehouse", "bank"
    prefixes = [each for prefix in group.members for each in ("--prefix", prefix)]
    members = prefixes if by == "prefixes" else ["--source-group", group.name]
    line = [
        sys.executable, "-m", "twofold_spark", "mirror", *members, "--bootstrap", here.reader.bootstrap,
        "--registry", here.reader.registry_url, "--warehouse", str(warehouse), "--catalog", catalog,
        "--java-home", str(java.spark_java_home()), "--trigger", "available-now",
    ]  # fmt: skip
    ours = {k: v for k, v in os.environ.items() if k != "PYSPARK_GATEWAY_PORT"} | {"JAVA_TOOL_OPTIONS": QUICK_JAVA}

    def shown() -> bool:
        ended = subprocess.run(line, env=ours, capture_output=True, text=True, timeout=200, check=False)
        assert ended.returncode == 0, ended.stderr
        return "mirror: global cut" in ended.stderr

    wait_until(shown, 200, "the command publishes a global cut")
    for name, value in WAREHOUSE_CATALOG.settings(str(warehouse), catalog).items():
        group.spark.conf.set(name, value)
    catalogs = {prefix: member_catalog(catalog, prefix) for prefix in group.members}
    session.open_member_catalogs(group.spark, warehouse, catalog, catalogs)
    cut = read_global_cut(group.spark, catalog=catalog)
    amounts = [row["amount"] for prefix in cut for row in cut[prefix]["public.transfer"].collect()]
    assert sorted(amounts) == [-10, 10]


def test_other_members_are_refused(group: GroupLake) -> None:
    transfer(group, "one", 10)
    group.runs_until_it_shows("one")
    fewer = GroupLake(
        group.spark, group.folder, dict(list(group.members.items())[:1]), group.name, catalog=group.catalog
    )
    with pytest.raises(Refused, match="holds the global cuts of"):
        fewer.run("fewer")


class Coordinator(threading.Thread):
    """Transfers one after the other, their outcomes in any order and late, some rolled back; until
    `stop`, when all get their outcome.
    """

    def __init__(self, group: GroupLake) -> None:
        super().__init__(name="coordinator")
        self._group = group
        self._random = random.Random(7)
        self._waiting: list[tuple[bool, str, list[psycopg.Connection[Any]]]] = []
        self._stopped = threading.Event()
        self.committed: set[str] = set()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self._stopped.wait(0.03):
                number += 1
                branches = prepare(self._group, f"transfer {number}", self._random.randrange(1, 100))
                self._random.shuffle(branches)
                self._waiting.append((self._random.random() < 0.8, f"transfer {number}", branches))
                while len(self._waiting) > 4 or (self._waiting and self._random.random() < 0.3):
                    self._end_a_branch()
            while self._waiting:
                self._end_a_branch()
        except Exception as error:  # the test asks for it: a thread's exception is seen by nobody else
            self.failure = error

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)
        assert self.failure is None, self.failure

    def _end_a_branch(self) -> None:
        commits, name, left = ended = self._random.choice(self._waiting)
        branch = left.pop()
        branch.tpc_commit() if commits else branch.tpc_rollback()
        branch.close()
        if not left:
            self._waiting.remove(ended)
            if commits:
                self.committed.add(name)


def test_a_coordinator_in_trouble_never_changes_the_total(group: GroupLake) -> None:
    coordinator = Coordinator(group)
    coordinator.start()

    def many_cuts() -> bool:
        group.run()
        if group.published:
            group.assert_whole()
        return len(group.published) > 5

    try:
        wait_until(many_cuts, 240, "six global cuts")
    finally:
        coordinator.stop()
    group.runs_until_it_shows(*coordinator.committed)
