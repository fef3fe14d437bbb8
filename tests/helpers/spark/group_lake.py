"""A source group's mirror in a warehouse of its own, and transfers between the members' databases.

A transfer has a branch in two databases, whose amounts add up to nothing. In every global cut it is
whole or absent.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from pyspark.sql import DataFrame, SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.worker import Worker
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG, CatalogChoice
from twofold_spark.changelog.changelog_job import Changelog
from twofold_spark.mirror.batching import AppliedBatch, MirrorSettings
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.readers.cut_tables import Tables, read_cut
from twofold_spark.session import member_catalog
from twofold_spark.sinks import cut_rows
from twofold_spark.sinks.cuts import NO_CUT, NO_LIMIT, GlobalCut
from twofold_spark.sinks.interface import Reader
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import StreamingJob, Trigger

_number = itertools.count(1)


@dataclass
class GroupLake:
    """A warehouse with a catalog for each member, and one for the group."""

    spark: SparkSession
    folder: Path
    members: Mapping[str, Installation]
    catalog: str = field(default_factory=lambda: f"group{next(_number)}")
    choice: SinkChoice = field(default_factory=lambda: SinkChoice("iceberg"))
    published: list[GlobalCut] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    applied: list[AppliedBatch] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    """How often the tables are maintained, how long cuts are kept, how many rows a batch has."""
    sharding: Sharding = NO_SHARDING
    catalog_choice: CatalogChoice = WAREHOUSE_CATALOG
    """The group's own."""

    def __post_init__(self) -> None:
        for folder in ("group", *self.members):
            (self.folder / folder).mkdir(exist_ok=True, parents=True)
        settings = self.catalog_choice.settings(str(self.folder / "group"), self.catalog)
        for name, value in {**settings, **self.member_settings}.items():
            self.spark.conf.set(name, value)

    @property
    def member_settings(self) -> dict[str, str]:
        """What a session is told of the members' catalogs."""
        found: dict[str, str] = {}
        for prefix in self.members:
            found |= WAREHOUSE_CATALOG.settings(str(self.folder / prefix), member_catalog(self.catalog, prefix))
        return found

    def with_members(self, members: Mapping[str, Installation]) -> GroupLake:
        """The same warehouse, for other members."""
        return replace(self, members=members, published=[], said=[], applied=[], kept={})

    def mirror(self, **settings: Any) -> Mirror:
        here = next(iter(self.members.values()))
        kafka, registry = Kafka(here.reader.bootstrap), Registry(here.reader.registry_url)

        place = self.choice.make_place(of_group=True, sharding=self.sharding, catalog=self.catalog)
        return Mirror(
            self.spark,
            kafka,
            registry,
            self.members,
            place,
            MirrorSettings(**self.kept),
            **settings,
            report=lambda _, batch: self.applied.append(batch),
            report_cut=self.published.append,
            warn=self.said.append,
        )

    def run(self, checkpoint: str = "checkpoint") -> None:
        """Run to the end of what is there."""
        mirror = self.mirror(named_after_s=0)
        job = StreamingJob("mirror", mirror, meanwhile=mirror.look_if_due)
        try:
            job.start(mirror.open_stream(), self.folder / checkpoint, Trigger.parse("available-now"))
            job.run()
        finally:
            mirror.close()

    def changelog(self, checkpoint: str = "changelog") -> None:
        """Append every change that is there."""
        changelog = self.changelog_job()
        try:
            changelog.run(self.folder / checkpoint, Trigger.parse("available-now"))
        finally:
            changelog.close()

    def changelog_job(self) -> Changelog:
        """One to take turns by hand."""
        here = next(iter(self.members.values()))
        kafka, registry = Kafka(here.reader.bootstrap), Registry(here.reader.registry_url)
        prefixes = tuple(self.members)
        return Changelog(self.spark, kafka, registry, prefixes, sharding=self.sharding, catalog=self.catalog)

    def follow_during(self, body: Callable[[], None]) -> None:
        """Follow the members until the end of `body`, which runs in a thread of its own."""
        mirror, ending = self.mirror(), threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                body()
            except BaseException as error:
                failures.append(error)
            finally:
                ending.set()

        job = StreamingJob("mirror", mirror, meanwhile=mirror.look_if_due)
        job.start(mirror.open_stream(), self.folder / "checkpoint", Trigger.parse("interval=500ms"))
        thread = threading.Thread(target=run, name="body")
        thread.start()
        try:
            job.run(ending)
        finally:
            mirror.close()
            thread.join(120)
        if failures:
            raise failures[0]

    def read(self) -> Tables:
        return read_cut(self.spark, reader=self.reader)

    def last_cut(self) -> GlobalCut:
        cut = self.reader.find_cut()
        assert cut is not None
        return cut

    def kept_cuts(self) -> list[GlobalCut]:
        """The global cuts of a catalog or folder, whichever process published them."""
        cuts = self.table("cuts")
        numbers = sorted({row["number"] for row in cuts.where("joined").select("number").collect()})
        return [cut for number in numbers if (cut := cut_rows.find_cut(cuts.where(f"number = {number}"), NO_LIMIT))]

    def published_snapshot(self) -> tuple[GlobalCut, dict[str, dict[str, int]]]:
        """What one snapshot of a PostgreSQL has: the last global cut, and the amounts."""
        return read_snapshot(self.choice.address)

    def waits(self) -> list[dict[str, Any]]:
        if self.choice.name == "jdbc":
            with psycopg.connect(self.choice.address, row_factory=dict_row) as connection:
                return connection.execute("SELECT * FROM twofold.global_waits").fetchall()
        return [each.asDict(recursive=True) for each in self.table("global_waits").collect()]

    def table(self, name: str) -> DataFrame:
        """A table of the group's own."""
        in_delta = f"delta.`{self.choice.address}/twofold/{name}`"
        return self.spark.table(in_delta if self.choice.name == "delta" else f"{self.catalog}.twofold.{name}")

    @property
    def reader(self) -> Reader:
        return self.choice.make_reader(self.spark, catalog=self.catalog)

    def transfers(self, published: GlobalCut | None = None) -> dict[str, dict[str, int]]:
        """The amounts by prefix and transfer, as of a global cut, or of the last one."""
        if self.choice.name == "jdbc":
            return self.published_snapshot()[1]
        tables = self.read()
        if published is not None:
            tables = Tables(self.reader, published, of_group=True)
        found: dict[str, dict[str, int]] = {}
        for prefix, cut in tables.members.items():
            if cut.sequence:
                rows = tables[f"{prefix}.public.transfer"].collect() if "public.transfer" in cut.versions else []
                found[prefix] = {row["id"]: row["amount"] for row in rows}
        return found

    def assert_whole(self) -> set[str]:
        """Every transfer has both its branches or none; return the transfers."""
        return find_whole(self.transfers(), self.last_cut())

    def assert_all_whole(self, places: Mapping[str, Collection[str]]) -> int:
        """In every published cut each transfer that is there has all its branches in the cut's
        members. Return how many of the transfers' branches were looked at.
        """
        looked = 0
        for cut in self.published:
            shown = self.transfers(cut)
            for name in {name for rows in shown.values() for name in rows}:
                found = {prefix for prefix, rows in shown.items() if name in rows}
                wanted = {*places[name]} & cut.members.keys()
                assert found == wanted, f"{name} is in {found} of {wanted} in the global cut {cut}"
                looked += len(found)
        return looked

    def runs_until_it_shows(self, *transfers: str) -> None:
        def shown() -> bool:
            self.run()
            return bool(self.published) and self.assert_whole() == {*transfers}

        wait_until(shown, 300, f"the mirror shows {transfers}")


def read_snapshot(conninfo: str) -> tuple[GlobalCut, dict[str, dict[str, int]]]:
    """Read the last global cut and the amounts of its members in one snapshot, by plain SQL."""
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        last = "SELECT max(number) FROM twofold.cuts WHERE joined"
        (number,) = connection.execute(last).fetchone() or (None,)
        parts = connection.execute(
            "SELECT prefix, sequence FROM twofold.cuts WHERE joined AND number = %s", (number,)
        ).fetchall()
        members = {prefix: replace(NO_CUT, sequence=sequence) for prefix, sequence in parts}
        amounts: dict[str, dict[str, int]] = {}
        for prefix in members:
            table = f'"{prefix}_public".transfer'
            is_there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone() == (True,)
            rows = connection.execute(f"SELECT id, amount FROM {table}").fetchall() if is_there else []
            amounts[prefix] = dict(rows)
        return GlobalCut(number or 0, members), amounts


def assert_consecutive(*lakes: GroupLake) -> None:
    """The cuts that were published have every number; before the first is what led to it."""
    numbers = [cut.number for lake in lakes for cut in lake.published]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]


def find_whole(transfers: Mapping[str, Mapping[str, int]], cut: object) -> set[str]:
    """Return the transfers, each of which has both its branches."""
    amounts = defaultdict[str, list[int]](list)
    for shown in transfers.values():
        for name, amount in shown.items():
            amounts[name].append(amount)
    torn = {name: parts for name, parts in amounts.items() if len(parts) != 2 or sum(parts) != 0}
    assert not torn, f"{torn} in the global cut {cut}"
    return {*amounts}


def write_lines(group: GroupLake) -> None:
    """From here on each branch writes a line into a table without a key as well: that counts twice
    what is merged twice.
    """
    for here in group.members.values():
        here.sql("CREATE RULE lines AS ON INSERT TO transfer DO ALSO INSERT INTO journal VALUES (NEW.id)")


def start_members(
    connector: Maker,
    *,
    many: int = 2,
    prepare: Callable[[Mapping[str, Installation]], object] = lambda _: None,
    **options: Any,
) -> dict[str, Installation]:
    """Connectors of one source group, which has the name of its first member; they run."""
    names = sorted(fresh_prefix() for _ in range(many))
    members = {name: connector(name=name, group={"name": names[0], "members": names}, **options) for name in names}
    prepare(members)
    for here in members.values():
        here.start()
    return members


def regroup(*members: Installation) -> None:
    """Restart the connectors with these members."""
    group = {"name": "bank", "members": [here.prefix for here in members]}
    for here in members:
        here.configure({"group": group})
        if here.runs and not here.runs[-1].dead:
            here.runs[-1].stop()
        here.start()


def prepare(places: Mapping[str, Installation], name: str, amount: int) -> list[psycopg.Connection[Any]]:
    """Prepare the branches of a transfer between two databases."""
    branches = []
    for (prefix, here), part in zip(places.items(), (amount, -amount), strict=True):
        branch = psycopg.connect(here.conninfo)
        branch.tpc_begin(branch.xid(1, name, prefix))
        branch.execute("INSERT INTO transfer VALUES (%s, 1, %s)", (name, part))
        branch.tpc_prepare()
        here.at_end(branch.close)
        branches.append(branch)
    return branches


def transfer(places: Mapping[str, Installation], name: str, amount: int) -> None:
    for branch in prepare(places, name, amount):
        branch.tpc_commit()


class Coordinator(Worker):
    """Transfers one after the other, their outcomes in any order and late, some rolled back; until
    `stop`, when all get their outcome.
    """

    def __init__(self, members: Mapping[str, Installation], *, pause_s: float = 0.03) -> None:
        super().__init__("coordinator")
        self._members = dict(members)
        self._pause_s = pause_s
        self._random = random.Random(7)
        self._waiting: list[tuple[bool, str, list[psycopg.Connection[Any]]]] = []
        self.committed: set[str] = set()
        self.places: dict[str, set[str]] = {}
        """The two databases of each transfer."""

    def work(self) -> None:
        number = 0
        while not self._stopped.wait(self._pause_s):
            number += 1
            name = f"transfer {number}"
            two = self._two()
            self.places[name] = {*two}
            branches = prepare(two, name, self._random.randrange(1, 100))
            self._random.shuffle(branches)
            self._waiting.append((self._random.random() < 0.8, name, branches))
            while len(self._waiting) > 4 or (self._waiting and self._random.random() < 0.3):
                self._end_a_branch()
        while self._waiting:
            self._end_a_branch()

    def _two(self) -> dict[str, Installation]:
        return {prefix: self._members[prefix] for prefix in self._random.sample(sorted(self._members), 2)}

    def _end_a_branch(self) -> None:
        commits, name, left = ended = self._random.choice(self._waiting)
        branch = left.pop()
        branch.tpc_commit() if commits else branch.tpc_rollback()
        branch.close()
        if not left:
            self._waiting.remove(ended)
            if commits:
                self.committed.add(name)
