"""A sharded table in Delta has what cuts have: what a job merged for a cut that it did not publish
is given up, whatever else was done to the table meanwhile.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from twofold_spark.errors import Refused, TableRefused
from twofold_spark.row_columns import MEMBER, OP, UNCHANGED
from twofold_spark.sinks.cuts import NO_CUT, Cut
from twofold_spark.sinks.delta_sink import SharedDeltaSink
from twofold_spark.sinks.delta_tables import DeltaReader, DeltaTables
from twofold_spark.sinks.interface import MirrorTable, TableBatch
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import SHARED

TABLE = MirrorTable("*.public.t", "public", "t", ("id", MEMBER))
NAME = str(TABLE)

Row = tuple[int, str, str]
"""Id, member, and `d` for a deleted row."""


def columns_of(listed: str) -> StructType:
    return cast("StructType", StructType.fromDDL(listed))


class Group:
    """The cuts of a place that has one sharded table, and the jobs that write to it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.number = 0
        self.versions: dict[str, str] = {}
        self.table = DeltaTables(spark, str(folder)).name(NAME)

    @property
    def next_number(self) -> int:
        return self.number + 1

    def find_part(self, _prefix: str) -> Cut:
        return replace(NO_CUT, sequence=self.number, versions=self.versions)

    def start(self) -> SharedDeltaSink:
        """Start a job; it reads the table for its next batch."""
        sink = SharedDeltaSink(
            DeltaTables(self.spark.newSession(), str(self.folder)), cast("Place", self), members=("east",)
        )
        sink.read_applied(TABLE)
        return sink

    def merge(
        self, sink: SharedDeltaSink, *rows: Row, kind: str = "int", note: bool = False, emptied: str = ""
    ) -> None:
        columns = f"id {kind}, {MEMBER} string" + (", note string" if note else "")
        sink.prepare(TABLE, columns_of(columns))
        values = [(row[0], row[1], *(["n"] if note else []), row[2], []) for row in rows]
        frame = sink._spark.createDataFrame(values, f"{columns}, {OP} string, {UNCHANGED} array<string>")
        batch = TableBatch(frame, len(rows), replace=False, unchanged=(), emptied=(emptied,) if emptied else ())
        sink.merge(TABLE, batch, sequence=self.next_number)

    def publish(self, sink: SharedDeltaSink) -> None:
        self.number += 1
        self.versions = {NAME: sink.version_of(TABLE) or ""}

    def rows(self, *, of_cut: bool = False) -> set[tuple[int, str]]:
        at = f" VERSION AS OF {self.versions[NAME]}" if of_cut else ""
        found = self.spark.sql(f"SELECT id, {MEMBER} FROM {self.table}{at}").collect()
        assert len({*found}) == len(found)
        return {(row["id"], row[MEMBER]) for row in found}


@pytest.fixture
def group(spark: SparkSession, tmp_path: Path) -> Group:
    made = Group(spark, tmp_path / "delta")
    job = made.start()
    made.merge(job, (1, "east", "c"), (2, "west", "c"))
    made.publish(job)
    return made


def test_what_no_cut_has_is_given_up_and_merged_again(group: Group) -> None:
    """Twice, where the table is maintained before, gets a column and a wider type."""
    group.start().maintain([NAME], dt.timedelta(0))
    for _ in range(2):
        group.merge(group.start(), (2**40, "west", "c"), (1, "east", "d"), kind="bigint", note=True)
        assert group.rows() == {(2, "west"), (2**40, "west")}
    job = group.start()
    assert group.rows() == group.rows(of_cut=True) == {(1, "east"), (2, "west")}
    group.merge(job, (3, "east", "c"), kind="bigint", note=True)
    group.publish(job)
    assert group.rows() == group.rows(of_cut=True) == {(1, "east"), (2, "west"), (3, "east")}
    assert job.read_applied(TABLE) > 0
    group.merge(job, (4, "west", "c"), emptied="west")
    group.publish(job)
    assert group.rows() == group.rows(of_cut=True) == {(1, "east"), (3, "east"), (4, "west")}


def test_a_table_that_did_not_change_for_months_goes_back_and_is_read_at_its_cut(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta refuses versions that are older than it keeps removed files."""
    for file in (group.folder / "public" / "t" / "_delta_log").iterdir():
        os.utime(file, (0, 0))
    job = group.start()
    group.merge(job, (3, "east", "c"))
    reader = DeltaReader(group.spark, str(group.folder))
    monkeypatch.setattr(DeltaReader, "is_of_group", lambda _: True)
    assert reader.read_table(SHARED, NAME, group.versions[NAME]).count() == 2
    with pytest.raises(AnalysisException, match="DELETED_FILE_RETENTION"):
        group.rows(of_cut=True)
    group.start()
    assert group.rows() == {(1, "east"), (2, "west")}


def test_a_merge_that_changes_nothing_is_a_version_of_its_own(group: Group) -> None:
    job = group.start()
    group.merge(job, (77, "east", "d"))
    group.publish(job)
    group.merge(group.start(), (1, "east", "d"))
    group.start()
    assert group.rows() == {(1, "east"), (2, "west")}


def test_the_first_rows_that_no_cut_has_are_given_up(spark: SparkSession, tmp_path: Path) -> None:
    group = Group(spark, tmp_path)
    group.merge(group.start(), (1, "east", "c"))
    job = group.start()
    assert (group.rows(), job.read_applied(TABLE)) == (set(), 0)
    group.merge(job, (2, "west", "c"))
    group.publish(job)
    assert group.rows() == group.rows(of_cut=True) == {(2, "west")}
    assert group.start().read_applied(TABLE) > 0


def test_a_table_that_the_last_cut_does_not_name_stays_as_earlier_cuts_had_it(group: Group) -> None:
    """All its shards wait for a reload, or have left."""
    group.number, group.versions = 2, {}
    job = group.start()
    assert group.rows() == {(1, "east"), (2, "west")}
    group.merge(job, (3, "east", "c"))
    for _ in range(2):
        job = group.start()
        assert group.rows() == {(1, "east"), (2, "west")}
    group.merge(job, (3, "east", "c"), emptied="east")
    group.publish(job)
    assert group.rows() == {(2, "west"), (3, "east")}


def test_a_table_that_was_dropped_and_made_again_is_not_the_one_of_the_last_cut(group: Group) -> None:
    """Its versions begin again, and the last cut may name one of them."""
    shutil.rmtree(group.folder)
    job = group.start()
    assert job.read_applied(TABLE) == 0
    group.merge(job, (3, "west", "c"))
    assert job.version_of(TABLE) == group.versions[NAME]
    job = group.start()
    assert (group.rows(), job.read_applied(TABLE)) == (set(), 0)
    group.merge(job, (3, "west", "c"))
    group.publish(job)
    assert group.start().read_applied(TABLE) > 0
    assert group.rows() == {(3, "west")}


def test_a_version_that_is_gone_is_refused(group: Group) -> None:
    group.versions = {NAME: "40"}
    with pytest.raises(Refused, match=r"the version 40 of public\.t, which the last cut names, is not in its history"):
        group.start()


def test_a_table_whose_cuts_are_gone_is_refused(group: Group) -> None:
    for number in (3, 4):
        job = group.start()
        group.merge(job, (number, "east", "c"))
        group.publish(job)
    group.number, group.versions = 0, {}
    with pytest.raises(
        Refused, match=r"public\.t has a merge for cut 3, and twofold\.cuts ends with 0: .*\n.*\n.*--sink"
    ):
        group.start()
    assert len(group.rows()) == 4


def test_two_jobs_at_once_end_in_the_cut_of_one(group: Group) -> None:
    """The second gives up what the first has merged; the first publishes it all the same."""
    first = group.start()
    group.merge(first, (3, "east", "c"))
    second = group.start()
    group.publish(first)
    group.merge(second, (4, "east", "c"))
    with pytest.raises(Refused, match=r"another writer committed to public\.t"):
        group.merge(first, (5, "east", "c"))
    assert group.rows(of_cut=True) == {(1, "east"), (2, "west"), (3, "east")}
    third = group.start()
    assert group.rows() == group.rows(of_cut=True)
    group.merge(third, (5, "east", "c"))
    group.publish(third)
    assert group.rows() == {(1, "east"), (2, "west"), (3, "east"), (5, "east")}


def test_a_table_that_somebody_compacts_meanwhile_is_merged(group: Group) -> None:
    job = group.start()
    group.spark.sql(f"OPTIMIZE {group.table}")
    group.spark.sql(f"ALTER TABLE {group.table} SET TBLPROPERTIES ('a' = 'b')")
    group.merge(job, (3, "east", "c"))
    group.publish(job)
    assert group.rows() == group.rows(of_cut=True) == {(1, "east"), (2, "west"), (3, "east")}


def test_a_sharded_table_in_the_folder_of_a_member_is_refused(group: Group) -> None:
    with pytest.raises(TableRefused, match=r"east\.t would be in the folder of the member east"):
        group.start().prepare(replace(TABLE, schema="east"), columns_of("id int"))
