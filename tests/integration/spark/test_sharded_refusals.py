"""A sharded table that is stopped: for the rows of one shard, for columns that do not unite, for
rows that the sink refuses. The other tables go on, readers are shown no half of it, and a reload
brings it back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from fixtures.stack import fresh_prefix, topics_deleted
from helpers.spark.writer import Row, Writer, table
from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.errors import SetupError, TableRefused
from twofold_spark.mirror.batching import MirrorSettings
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.readers.cut_tables import read_cut
from twofold_spark.session import member_catalog
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sinks.sharding import Sharding
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import StreamingJob, Trigger

ACCOUNTS, LINES, OWN = "accounts", "lines", "own"
SHARDED = Sharding.parse("public.accounts, public.lines")
COLUMNS = {"id": "int8", "v": "text"}
STOPPED = f"public.{ACCOUNTS}"
_number = itertools.count(1)
DELTA = pytest.param("delta", marks=pytest.mark.slow)


@dataclass
class Shards:
    """Two prefixes that are a source group, and their mirror."""

    spark: SparkSession
    folder: Path
    choice: SinkChoice
    east: Writer
    west: Writer
    catalog: str = field(default_factory=lambda: f"shards{next(_number)}")
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        catalogs = {
            self.catalog: "group",
            **{member_catalog(self.catalog, each.prefix): each.prefix for each in self.writers},
        }
        for catalog, name in catalogs.items():
            (self.folder / name).mkdir()
            for key, value in WAREHOUSE_CATALOG.settings(str(self.folder / name), catalog).items():
                self.spark.conf.set(key, value)

    @property
    def writers(self) -> tuple[Writer, Writer]:
        return self.east, self.west

    def mirror(self, **settings: Any) -> None:
        """Run to the end of what is there."""
        for each in self.writers:
            each.visible()
        for one, other in (self.writers, self.writers[::-1]):
            one.write_frontier([other])
        prefixes = [each.prefix for each in self.writers]
        place = self.choice.make_place(of_group=True, sharding=SHARDED, catalog=self.catalog)
        kafka, registry = Kafka(self.east.bootstrap), Registry(self.east.registry)
        mirror = Mirror(self.spark, kafka, registry, prefixes, place, MirrorSettings(**settings), warn=self.said.append)
        job = StreamingJob("mirror", mirror, meanwhile=mirror.look_if_due)
        try:
            job.start(mirror.open_stream(), self.folder / "checkpoint", Trigger.parse("available-now"))
            job.run()
        finally:
            mirror.close()

    def cut(self) -> GlobalCut:
        found = self.choice.make_reader(self.spark, catalog=self.catalog).find_cut()
        assert found is not None
        return found

    def stopped(self) -> list[tuple[str, ...]]:
        """The tables that are stopped in the east, and in the west."""
        return [self.cut().members[each.prefix].stopped for each in self.writers]

    def read(self, name: str) -> list[Row]:
        """Read a sharded table as of the last cut; it is refused while it is stopped."""
        if self.choice.name == "jdbc":
            return self._query(f"SELECT * FROM public.{name}")
        tables = read_cut(self.spark, reader=self.choice.make_reader(self.spark, catalog=self.catalog))
        return [row.asDict() for row in tables[f"public.{name}"].collect()]

    def read_own(self, writer: Writer) -> dict[Any, Row]:
        """Read what a member has for itself."""
        if self.choice.name == "jdbc":
            rows = self._query(f'SELECT * FROM "{writer.prefix}_public".{OWN}')
        else:
            tables = read_cut(self.spark, reader=self.choice.make_reader(self.spark, catalog=self.catalog))
            rows = [row.asDict() for row in tables[f"{writer.prefix}.public.{OWN}"].collect()]
        return {row["id"]: row for row in rows}

    def _query(self, query: str) -> list[Row]:
        with psycopg.connect(self.choice.address, row_factory=dict_row) as connection:
            return connection.execute(query.encode()).fetchall()

    def drop(self, name: str) -> None:
        """Drop the one table, as a message of the job says."""
        self.spark.sql(f"DROP TABLE {self.catalog}.public.{name}")

    def assert_equal(self) -> None:
        """Each table has what the writers wrote, and nothing is stopped."""
        assert self.stopped() == [(), ()]
        found = {(row["_member"], row["id"]): row for row in self.read(ACCOUNTS)}
        names = [
            name for each in self.writers for name in (column.name for column in each.topics[ACCOUNTS].shape.columns)
        ]
        assert found == {
            (each.prefix, key): {**dict.fromkeys(names), **row, "_member": each.prefix}
            for each in self.writers
            for key, row in each.model[ACCOUNTS].items()
        }
        self.assert_others_go_on()

    def assert_others_go_on(self) -> None:
        for each in self.writers:
            assert self.read_own(each) == each.model[OWN]

    def assert_not_read(self, *members: Writer) -> None:
        """Readers of a cut are told which members stop the table."""
        if self.choice.name != "jdbc":
            where = ", ".join(each.prefix for each in members)
            with pytest.raises(SetupError, match=f"was stopped by a refusal in {where}: .* brings it back"):
                self.read(ACCOUNTS)


@pytest.fixture(params=["iceberg", "jdbc", DELTA])
def shards(
    spark: SparkSession, kafka: Any, registry: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Shards]:
    """Some accounts and lines in both; what each has for itself changes with each commit."""
    choice = SinkChoice("iceberg")
    if request.param != "iceberg":
        where = request.getfixturevalue("database") if request.param == "jdbc" else str(tmp_path / "delta")
        choice = SinkChoice(request.param, where)
    east, west = sorted(fresh_prefix() for _ in range(2))
    with topics_deleted(kafka, east), topics_deleted(kafka, west):
        here, there = (Writer(kafka.bootstrap, registry.url, each) for each in (east, west))
        made = Shards(spark, tmp_path, choice, here, there)
        for number, writer in enumerate(made.writers):
            writer.join_group()
            for name in (ACCOUNTS, OWN):
                writer.table(table(name, COLUMNS), partitions=1)
            writer.table(table(LINES, {"line": "text"}, key=()), partitions=1)
            write(writer, number + 1, number + 11)
            with writer.commit() as tx:
                tx.keyless(LINES, "c", after={"line": "both"})
        made.mirror()
        made.assert_equal()
        yield made


def write(writer: Writer, *ids: int, v: Any = "first") -> None:
    with writer.commit() as tx:
        for number in ids:
            tx.upsert(ACCOUNTS, {**dict.fromkeys(columns(writer)), "id": number, "v": v})
        tx.upsert(OWN, {"id": writer.sequence % 3, "v": f"commit {writer.sequence}"})


def columns(writer: Writer) -> list[str]:
    return [each.name for each in writer.topics[ACCOUNTS].shape.columns]


def reload(writer: Writer, name: str = ACCOUNTS) -> None:
    """As the connector does it: a truncate, then what there is."""
    rows = list(writer.model[name].values())
    with writer.commit(kind="reload") as tx:
        tx.truncate(name)
    with writer.commit(kind="backfill") as tx:
        for row in rows:
            if name == LINES:
                for _ in range(row["_copies"]):
                    tx.keyless(name, "r", after={"line": row["line"]})
            else:
                tx.upsert(name, row, op="r")


def test_records_that_cannot_be_read_stop_their_shard_alone(shards: Shards) -> None:
    east, west = shards.writers
    write(east, 3)
    with west.commit() as tx:
        tx.upsert(ACCOUNTS, {"id": 4, "v": "good"})
        tx.raw(ACCOUNTS, west.key_bytes(ACCOUNTS, {"id": 7}), west.value_header(ACCOUNTS) + b"\x02torn")
    before = shards.cut()
    for _ in range(2):
        with pytest.raises(TableRefused, match=rf"1 records of {west.prefix}.public.accounts cannot be decoded"):
            shards.mirror()
        assert shards.cut() == before, "nothing is published"
    shards.mirror(on_table_error="go-on")
    assert shards.stopped() == [(), (STOPPED,)]
    assert_said(shards, f"{STOPPED} of {west.prefix} is stopped until it is reloaded; the other tables go on")
    assert not [line for line in shards.said if f"{STOPPED} of {east.prefix}" in line]
    write(east, 1, 5, v="later")
    write(west, 6)
    shards.mirror(on_table_error="go-on")
    shards.assert_not_read(west)
    shards.assert_others_go_on()
    if shards.choice.name == "iceberg":
        plain = shards.spark.table(f"{shards.catalog}.{STOPPED}")
        assert sorted(row["id"] for row in plain.collect()) == [1, 2, 11, 12], "a plain name stays where it was"
    reload(west)
    shards.mirror()
    shards.assert_equal()


def assert_said(shards: Shards, what: str) -> None:
    assert [line for line in shards.said if what in line], shards.said


def test_rows_that_the_sink_refuses_stop_the_table_where_they_may_come_from(shards: Shards) -> None:
    """A merge is of all members: those that changed the table since the last cut."""
    east, west = shards.writers
    with west.commit() as tx:
        tx.keyless(LINES, "d", before={"line": "never loaded"})
    write(east, 3)
    with pytest.raises(TableRefused, match=r"removes a row from public\.lines that the mirror does not have"):
        shards.mirror()
    shards.mirror(on_table_error="go-on")
    assert shards.stopped() == [(), ("public.lines",)]
    shards.assert_others_go_on()
    for writer in shards.writers:
        with writer.commit() as tx:
            tx.keyless(LINES, "c", after={"line": "both"})
    reload(west, LINES)
    shards.mirror()
    shards.assert_equal()
    assert_lines(shards, {east.prefix: 2, west.prefix: 2})

    with west.commit() as tx:
        tx.keyless(LINES, "d", before={"line": "never loaded"})
    with east.commit() as tx:
        tx.keyless(LINES, "c", after={"line": "both"})
    shards.mirror(on_table_error="go-on")
    assert shards.stopped() == [("public.lines",), ("public.lines",)]
    for writer in shards.writers:
        reload(writer, LINES)
    shards.mirror()
    shards.assert_equal()
    assert_lines(shards, {east.prefix: 3, west.prefix: 2})


def assert_lines(shards: Shards, copies: dict[str, int]) -> None:
    found = shards.read(LINES)
    assert {(row["_member"], row["line"]): row["_copies"] for row in found} == {
        (prefix, "both"): number for prefix, number in copies.items()
    }


@pytest.mark.parametrize("shards", ["iceberg", "jdbc"], indirect=True)
def test_columns_that_do_not_unite_stop_the_table_until_they_do(shards: Shards) -> None:
    east, west = shards.writers
    for writer, kind in ((east, "text"), (west, "int8")):
        writer.take_any(f"{writer.topics[ACCOUNTS].name}-value")
        writer.evolve(ACCOUNTS, region=kind)
    set_region(east, 1, "a text")
    set_region(west, 2, 2)
    with pytest.raises(TableRefused, match=r"region has the type string in one shard and bigint in another.*\n.*\n.*one type in all shards"):  # fmt: skip
        shards.mirror()
    shards.mirror(on_table_error="go-on")
    assert shards.stopped() == [(STOPPED,), (STOPPED,)]
    shards.assert_others_go_on()
    shards.assert_not_read(east, west)

    west.drop(ACCOUNTS, "region")
    west.evolve(ACCOUNTS, region="text")
    west.model[ACCOUNTS][2]["region"] = "2"
    for writer in shards.writers:
        reload(writer)
    shards.mirror()
    shards.assert_equal()


def set_region(writer: Writer, key: int, region: Any) -> None:
    with writer.commit() as tx:
        tx.upsert(ACCOUNTS, {**writer.model[ACCOUNTS][key], "region": region})
        tx.upsert(OWN, {"id": 9, "v": "beside it"})


@pytest.mark.parametrize("shards", ["iceberg"], indirect=True)
def test_a_table_that_was_dropped_is_loaded_again_in_every_shard(shards: Shards) -> None:
    """As the refusal of a column says that has another type than the table's."""
    east, west = shards.writers
    change_type(west)
    write(west, 4, v=4)
    with pytest.raises(TableRefused, match=r"public\.accounts\.v has the type string in the table and bigint in the topic.*\n.*\n.*drop the mirror's table"):  # fmt: skip
        shards.mirror()
    shards.mirror(on_table_error="go-on")
    assert shards.stopped() == [(), (STOPPED,)]
    shards.assert_not_read(west)

    shards.drop(ACCOUNTS)
    change_type(east)
    write(east, 5, v=5)
    shards.mirror()
    assert shards.stopped() == [(STOPPED,), (STOPPED,)]
    assert_said(shards, f"{STOPPED} of {east.prefix} does not exist any more: it is stopped until `twofold backfill")
    shards.assert_others_go_on()
    for writer in shards.writers:
        for row in writer.model[ACCOUNTS].values():
            row["v"] = row["id"]
        reload(writer)
    shards.mirror()
    shards.assert_equal()


def change_type(writer: Writer) -> None:
    writer.take_any(f"{writer.topics[ACCOUNTS].name}-value")
    writer.table(table(ACCOUNTS, {**COLUMNS, "v": "int8"}))


@pytest.mark.parametrize("shards", ["iceberg"], indirect=True)
def test_a_table_whose_files_are_gone_is_dropped_and_loaded_again(shards: Shards) -> None:
    """As the refusal says: the load of one shard reads the rows of the others."""
    east, west = shards.writers
    for file in (shards.folder / "group" / "public" / ACCOUNTS / "data").rglob("*.parquet"):
        file.unlink()
    write(west, 4)
    with pytest.raises(TableRefused, match=r"public.accounts: its changes cannot be applied: .*\n.*\n.*If its reload meets the same error, drop the mirror's table, start the mirror again, and run that in all shards"):  # fmt: skip
        shards.mirror()
    shards.mirror(on_table_error="go-on")
    assert shards.stopped() == [(), (STOPPED,)]
    shards.assert_others_go_on()
    reload(west)
    with pytest.raises(TableRefused, match="its changes cannot be applied"):
        shards.mirror()

    shards.drop(ACCOUNTS)
    for writer in shards.writers:
        reload(writer)
    shards.mirror()
    shards.assert_equal()
    write(east, 3)
    shards.mirror()
    shards.assert_equal()
