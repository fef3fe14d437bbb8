"""The sinks by themselves: what two jobs at once leave in a table, and tables that somebody
dropped."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from fixtures.connector import wait_until
from fixtures.spark import Lake
from helpers.spark.writer import table
from twofold_spark import session
from twofold_spark.errors import (
    SPARK_ERRORS,
    Refused,
    ServerAway,
    SetupError,
    TableRefused,
    describe_causes,
    explain_conflict,
)
from twofold_spark.sinks import iceberg_commits, merge_sql
from twofold_spark.sinks.cuts import Cut, GlobalCut
from twofold_spark.sinks.interface import MirrorTable, Sink, TableBatch
from twofold_spark.sinks.jdbc_sink import JdbcPlace
from twofold_spark.sinks.jdbc_tables import Run, check_time_zone, connect, failing_on_lost_days, transaction
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import SHARED, Sharding
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources.postgres_connection import build_jdbc_url


@dataclass
class _Job:
    """A sink in a session of its own, as each job has it; a batch is one more copy of one row."""

    spark: SparkSession
    prefix: str
    place: Place
    sink: Sink

    @classmethod
    def start(cls, lake: Lake) -> _Job:
        spark = lake.spark.newSession()
        for name, value in lake.catalog_choice.settings(str(lake.warehouse), lake.catalog).items():
            spark.conf.set(name, value)
        place = lake.make_place()
        place.open(spark, (lake.prefix,))
        return cls(spark, lake.prefix, place, place.make_sink(spark, lake.prefix))

    def applied(self, *tables: MirrorTable) -> list[int]:
        return [self.sink.read_applied(table) for table in tables]

    def merge(
        self,
        table: MirrorTable,
        sequence: int,
        *,
        replace: bool = False,
        change: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    ) -> None:
        rows = change(
            self.spark.sql(
                "SELECT 1 AS a, 1L AS _copies, 'u' AS _twofold_op, CAST(array() AS array<string>) AS _twofold_unchanged"
            )
        )
        self.sink.prepare(table, rows.drop("_twofold_op", "_twofold_unchanged").schema)
        self.sink.merge(table, TableBatch(rows, 1, replace, ()), sequence=sequence)

    def publish(self, sequence: int, *tables: MirrorTable) -> None:
        versions = {str(table): version for table in tables if (version := self.sink.version_of(table)) is not None}
        cut = Cut(sequence, sequence, 0, whole=True, versions=versions, backfilling=(), stopped=())
        self.place.publish(GlobalCut(self.place.next_number, {self.prefix: cut}))

    def copies(self, table: MirrorTable) -> int:
        """How often the row is there."""
        rows = self.sink.read_current(table)
        assert rows is not None
        (row,) = rows.collect()
        return int(row["_copies"])


def _tables(lake: Lake, *names: str) -> list[MirrorTable]:
    for name in names:
        lake.writer.table(table(name, {"a": "int4"}, key=()), partitions=1)
    return [MirrorTable(f"{lake.prefix}.public.{name}", "public", name, ()) for name in names]


def _cut_5(lake: Lake, *tables: MirrorTable) -> None:
    job = _Job.start(lake)
    assert job.applied(*tables) == [0] * len(tables)
    for each in tables:
        job.merge(each, 5)
    job.publish(5, *tables)
    job.place.close()


def _job_at_6(lake: Lake, t: MirrorTable) -> _Job:
    """Behind an earlier job's cut."""
    _cut_5(lake, t)
    job = _Job.start(lake)
    job.applied(t)
    job.merge(t, 6)
    job.publish(6, t)
    return job


def _two_jobs(lake: Lake, *tables: MirrorTable) -> tuple[_Job, _Job]:
    """Both have looked at the same tables."""
    one, other = _Job.start(lake), _Job.start(lake)
    assert one.applied(*tables) == other.applied(*tables)
    return one, other


def test_of_two_jobs_that_meet_in_iceberg_each_takes_back_what_it_laid_on_the_others(lake: Lake) -> None:
    t, u, fresh = _tables(lake, "t", "u", "fresh")
    _cut_5(lake, t, u)
    one, other = _two_jobs(lake, t, u, fresh)
    for first, second, each in ((one, other, t), (other, one, u), (one, other, fresh)):
        first.merge(each, 12)
        with pytest.raises(Refused, match="another writer committed"):
            second.merge(each, 12)
    after = _Job.start(lake)
    assert after.applied(t, u, fresh) == [12, 12, 12]
    assert [after.copies(each) for each in (t, u, fresh)] == [2, 2, 1]


def test_what_two_jobs_left_in_iceberg_is_not_taken_for_an_interrupted_batch(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_commits, "take_back", lambda *_: None)  # it was killed before it could
    t, fresh = _tables(lake, "t-1", "fresh")
    _cut_5(lake, t)
    one, other = _two_jobs(lake, t, fresh)
    for each in (t, fresh):
        one.merge(each, 12)
        with pytest.raises(Refused, match="another writer committed"):
            other.merge(each, 20)
    after = _Job.start(lake)
    with pytest.raises(Refused, match=r"two writers merged into public\.fresh .*\n.*\n.*drop the mirror's table"):
        after.applied(fresh)
    with pytest.raises(Refused, match=r"two writers merged into public\.t-1 ") as refused:
        after.applied(t)
    back = re.search(r"ALTER TABLE .*VERSION \d+", str(refused.value))
    assert back is not None
    after.spark.sql(back.group())
    assert _Job.start(lake).applied(t) == [5]
    assert after.copies(t) == 1


def test_a_batch_that_was_interrupted_twice_is_gone_on_from(lake: Lake) -> None:
    t, u = _tables(lake, "t", "u")
    _cut_5(lake, t, u)
    killed = _Job.start(lake)
    assert killed.applied(t, u) == [5, 5]
    killed.merge(t, 12)
    killed = _Job.start(lake)
    assert killed.applied(t, u) == [12, 5]
    for each in (t, u):
        killed.merge(each, 20)
    after = _Job.start(lake)
    assert after.applied(t, u) == [20, 20]
    after.publish(20, t, u)
    assert _Job.start(lake).applied(t, u) == [20, 20]


@pytest.fixture
def delta(lake: Lake) -> Lake:
    lake.choice = SinkChoice("delta", str(lake.warehouse / "delta"))
    return lake


def _two_jobs_in_delta(delta: Lake) -> tuple[MirrorTable, _Job, _Job]:
    (t,) = _tables(delta, "t")
    _cut_5(delta, t)
    return t, *_two_jobs(delta, t)


def _assert_merged_once(delta: Lake, t: MirrorTable, sequence: int) -> None:
    """One of two merges has changed the table."""
    after = _Job.start(delta)
    assert after.applied(t) == [sequence]
    assert after.copies(t) == 2


def test_a_job_in_delta_does_not_merge_onto_what_another_did_since_it_looked(delta: Lake) -> None:
    t, one, other = _two_jobs_in_delta(delta)
    other.merge(t, 10)
    with pytest.raises(Refused, match=r"another writer brought public\.t from 5 to 10"):
        one.merge(t, 12)
    _assert_merged_once(delta, t, 10)


def _do_just_before(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Between a job's look at a table and its merge."""
    statement = merge_sql.merge_statement

    def just_before(*arguments: Any, **named: Any) -> str:
        monkeypatch.setattr(merge_sql, "merge_statement", statement)
        do()
        return statement(*arguments, **named)

    monkeypatch.setattr(merge_sql, "merge_statement", just_before)


def test_a_table_in_delta_that_two_jobs_merged_into_is_refused_until_it_is_dropped(
    delta: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    t, one, other = _two_jobs_in_delta(delta)
    _do_just_before(monkeypatch, lambda: other.merge(t, 10))
    with pytest.raises(Refused, match="two jobs merged into"):
        one.merge(t, 12)
    version = other.sink.version_of(t)
    assert version is not None
    assert [row["_copies"] for row in delta.reader.read_table(delta.prefix, str(t), version).collect()] == [2], (
        "its cut is right"
    )
    with pytest.raises(Refused, match="drop the mirror's table"):
        _Job.start(delta).applied(t)
    delta.drop("t")
    assert _Job.start(delta).applied(t) == [0]


def test_a_merge_that_delta_rejects_because_of_another_one_is_told_in_one_sentence(delta: Lake, tmp_path: Path) -> None:
    """The other one commits while this one reads its rows: Delta itself rejects the merge."""
    t, one, other = _two_jobs_in_delta(delta)
    reads, goes_on = str(tmp_path / "reads"), str(tmp_path / "goes on")

    def wait() -> bool:
        Path(reads).touch()
        while not Path(goes_on).exists():
            time.sleep(0.01)
        return True

    waiting = f.udf(lambda value: value if wait() else None, "int")
    with ThreadPoolExecutor(1) as pool:
        merge = pool.submit(one.merge, t, 12, change=lambda rows: rows.withColumn("a", waiting("a")))
        try:
            wait_until(lambda: merge.done() or Path(reads).exists(), 90, "it reads")
            other.merge(t, 10)
        finally:
            Path(goes_on).touch()
        with pytest.raises(SPARK_ERRORS) as rejected:
            merge.result()
    assert "another job wrote" in str(explain_conflict(describe_causes(rejected.value)))
    _assert_merged_once(delta, t, 10)


def test_a_merge_that_delta_skips_since_another_job_has_its_number_spoils_nothing(
    delta: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    t, one, other = _two_jobs_in_delta(delta)
    _do_just_before(monkeypatch, lambda: other.merge(t, 12))
    with pytest.raises(Refused, match=r"another writer committed to public\.t "):
        one.merge(t, 10)
    _assert_merged_once(delta, t, 12)


def test_a_table_in_delta_whose_property_asks_for_compaction_is_not_compacted_behind_a_merge(delta: Lake) -> None:
    """Its commit would be taken for another job's."""
    (t,) = _tables(delta, "t")
    _cut_5(delta, t)
    asks = "'delta.autoOptimize.autoCompact' = 'true'"
    for name in ("public/t", "twofold/cuts"):
        delta.spark.sql(f"ALTER TABLE delta.`{delta.choice.address}/{name}` SET TBLPROPERTIES ({asks})")
    job = _Job.start(delta)
    job.spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    for number in (6, 7, 8):
        job.applied(t)
        job.merge(t, number, change=_another_row(number))
        job.publish(number, t)
    assert job.applied(t) == [8]


def _another_row(value: int) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.withColumn("a", f.lit(value))


def test_a_table_in_delta_that_a_person_restored_is_refused_until_its_rows_are_back(delta: Lake) -> None:
    """By a time, then by a version; the number of the last merge stays."""
    (t,) = _tables(delta, "t")
    job = _job_at_6(delta, t)
    name = f"delta.`{delta.choice.address}/public/t`"
    history = delta.spark.sql(f"DESCRIBE HISTORY {name}")
    (first,) = history.where("version = 1").selectExpr("CAST(timestamp AS string) AS at").collect()
    for former in (f"TIMESTAMP AS OF '{first['at']}'", "VERSION AS OF 1"):
        delta.spark.sql(f"RESTORE TABLE {name} TO {former}")
        with pytest.raises(Refused, match="RESTORE has brought back former rows"):
            job.merge(t, 7)
        with pytest.raises(Refused, match=r"RESTORE has brought back former rows of public\.t ") as refused:
            job.applied(t)
        back = re.search(r"RESTORE TABLE .* TO VERSION AS OF \d+", str(refused.value))
        assert back is not None
        delta.spark.sql(back.group())
        assert job.applied(t) == [6]
        assert job.copies(t) == 2
    job.merge(t, 7)
    job.publish(7, t)
    assert _Job.start(delta).applied(t) == [7]
    assert job.copies(t) == 3


def test_cuts_in_delta_that_a_person_restored_are_refused_until_they_are_back(delta: Lake) -> None:
    (t,) = _tables(delta, "t")
    job = _job_at_6(delta, t)
    name = f"delta.`{delta.choice.address}/twofold/cuts`"
    versions = [row["version"] for row in delta.spark.sql(f"DESCRIBE HISTORY {name}").collect()]
    for change in (f"RESTORE TABLE {name} TO VERSION AS OF {versions[1]}", f"DELETE FROM {name}"):
        delta.spark.sql(change)
        with pytest.raises(Refused, match=r"ends with cut [01], and cut 2 was published(?s:.*)SET .*=false; RESTORE"):
            _Job.start(delta)
        delta.spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {versions[0]}")
    job = _Job.start(delta)
    assert job.applied(t) == [6]
    job.merge(t, 7)
    job.publish(7, t)
    assert job.copies(t) == 3


def test_a_table_in_delta_whose_folder_alone_came_from_a_backup_is_refused_until_it_is_reloaded(delta: Lake) -> None:
    """The process may end between the reload's merge and the cut, or before the merge."""
    (t,) = _tables(delta, "t")
    _cut_5(delta, t)
    folder, backup = Path(delta.choice.address, "public", "t"), delta.warehouse / "backup"
    shutil.copytree(folder, backup)
    job = _Job.start(delta)
    for sequence in (6, 7):
        job.applied(t)
        job.merge(t, sequence)
        job.publish(sequence, t)
    delta.drop("t")
    shutil.copytree(backup, folder)
    with pytest.raises(Refused, match=r"public\.t is at 5 again, after cut 7 had it: .*from a backup\n.*\n.*drop the"):
        _Job.start(delta).applied(t)
    delta.drop("t")
    job = _Job.start(delta)
    assert job.applied(t) == [0]
    job.sink.prepare(t, StructType().add("a", "integer").add("_copies", "long"))
    job = _Job.start(delta)
    assert job.applied(t) == [0]
    job.merge(t, 8, replace=True)
    assert _Job.start(delta).applied(t) == [8]


@pytest.mark.slow
def test_a_reader_in_delta_that_met_the_cuts_in_the_making_sees_them_when_they_are_there(delta: Lake) -> None:
    (t,) = _tables(delta, "t")
    _cut_5(delta, t)
    elsewhere = delta.warehouse / "elsewhere"
    (elsewhere / "twofold" / "cuts" / "_delta_log").mkdir(parents=True)
    reader = SinkChoice("delta", str(elsewhere)).make_reader(delta.spark, catalog=delta.catalog)
    assert reader.find_cut() is None
    shutil.copytree(delta.choice.address, elsewhere, dirs_exist_ok=True)
    cut = reader.find_cut()
    assert cut is not None
    assert cut.members[delta.prefix].sequence == 5


@pytest.mark.slow
def test_nothing_is_applied_of_a_table_that_somebody_dropped(kept: Lake) -> None:
    t, u = _tables(kept, "t", "u")
    _cut_5(kept, t, u)
    kept.drop("t")
    job = _Job.start(kept)
    assert job.applied(t, u) == [0, 5]
    job.merge(t, 6, replace=True)
    job.merge(u, 6)
    job.publish(6, t, u)
    assert job.applied(t, u) == [6, 6]
    assert [job.copies(each) for each in (t, u)] == [1, 2]
    job.place.close()


def test_a_table_in_postgresql_that_is_dropped_under_the_job_is_not_begun_in_its_middle(
    lake: Lake, database: str
) -> None:
    lake.choice = SinkChoice("jdbc", database)
    (t,) = _tables(lake, "t")
    _cut_5(lake, t)
    job = _Job.start(lake)
    assert job.applied(t) == [5]
    lake.drop("t")
    with pytest.raises(TableRefused, match="twofold backfill start"):
        job.merge(t, 6)
    job.merge(t, 6, replace=True)
    job.publish(6, t)
    assert job.copies(t) == 1
    job.place.close()


@pytest.mark.parametrize("is_known", [True, False], ids=["under_the_job", "between_two_jobs"])
def test_a_table_in_postgresql_that_was_made_again_is_refused_until_it_is_reloaded(
    lake: Lake, database: str, *, is_known: bool
) -> None:
    """As `pg_restore --clean -t t` makes it. A rewrite of the table is none of it."""
    lake.choice = SinkChoice("jdbc", database)
    (t,) = _tables(lake, "t")
    _cut_5(lake, t)
    job = _Job.start(lake)
    assert job.applied(t) == [5]
    with psycopg.connect(database, autocommit=True) as person:
        person.execute("VACUUM FULL public.t")
        job.merge(t, 6, change=_widen)
        job.publish(6, t)
        person.execute("CREATE TABLE dump AS SELECT * FROM public.t")
        job.merge(t, 7)
        _make_again(person, "public.t", "dump")
        refused = r"public.*t.* is not the one .*made again\n.*missing\n.*DROP TABLE .*backfill start"
        with pytest.raises(TableRefused, match=refused) as named:
            job.publish(7, t)
        assert (named.value.prefix, named.value.table) == (lake.prefix, "public.t")
        with pytest.raises(TableRefused, match=refused):
            job.merge(t, 7)
        if not is_known:
            job.place.close()
            job = _Job.start(lake)
            with pytest.raises(TableRefused, match=refused):
                job.applied(t)
    lake.drop("t")
    job.merge(t, 7, replace=True)
    job.publish(7, t)
    assert job.applied(t) == [7]
    job.merge(t, 8)
    job.publish(8, t)
    assert job.copies(t) == 2
    job.place.close()


def test_a_table_in_postgresql_that_a_person_vouches_for_is_gone_on_with(lake: Lake, database: str) -> None:
    lake.choice = SinkChoice("jdbc", database)
    (t,) = _tables(lake, "t")
    _cut_5(lake, t)
    with psycopg.connect(database, autocommit=True) as person:
        person.execute("CREATE TABLE dump AS SELECT * FROM public.t")
        for sequence in (6, 7):
            job = _Job.start(lake)
            _make_again(person, "public.t", "dump")
            with pytest.raises(TableRefused, match=r"UPDATE .*mirrored.* SET relid = NULL") as refused:
                job.applied(t)
            person.execute(refused.value.repair.rpartition(": ")[2].encode())
            job.merge(t, sequence)
            job.publish(sequence, t)
            assert job.copies(t) == 2
            job.place.close()


def test_a_table_in_postgresql_that_is_dropped_behind_its_staging_is_refused_and_not_made_of_the_batchs_rows(
    lake: Lake, database: str
) -> None:
    """A reload makes it again."""
    lake.choice = SinkChoice("jdbc", database)
    (t,) = _tables(lake, "t")
    job = _job_at_6(lake, t)
    with psycopg.connect(database, autocommit=True) as person:
        for replace_rows in (False, True):
            job.applied(t)
            job.merge(t, 7, replace=replace_rows)
            person.execute("DROP TABLE IF EXISTS public.t")
            with nullcontext() if replace_rows else pytest.raises(TableRefused, match="was dropped from the mirror"):
                job.publish(7, t)
    assert job.copies(t) == 1
    assert job.applied(t) == [7]
    job.place.close()


def test_a_place_in_postgresql_that_was_restored_whole_is_gone_on_with_by_the_next_job(
    lake: Lake, database: str
) -> None:
    """Its tables are as old as its cut. The job that ran meanwhile knows a later one."""
    lake.choice = SinkChoice("jdbc", database)
    t, u = _tables(lake, "t", "u")
    _cut_5(lake, t, u)
    own = ("public.t", "public.u", "twofold.mirrored", "twofold.cuts")
    with psycopg.connect(database, autocommit=True) as person:
        for each in own:
            person.execute(f"CREATE TABLE dump_{each.replace('.', '_')} AS SELECT * FROM {each}".encode())
        before = _Job.start(lake)
        assert before.applied(t) == [5]
        before.merge(t, 6)
        before.publish(6, t, u)
        for each in own:
            _make_again(person, each, f"dump_{each.replace('.', '_')}")
        with pytest.raises(Refused, match=r"was restored while the job ran\n.*\n.*start again"):
            before.merge(t, 7)
        with pytest.raises(Refused, match="was restored while the job ran"):
            before.publish(7)
        before.place.close()
        after = _Job.start(lake)
        assert after.applied(t, u) == [5, 5]
        after.merge(t, 6)
        after.publish(6, t, u)
        assert [after.copies(each) for each in (t, u)] == [2, 1]
        _make_again(person, "public.u", "dump_public_u")
        with pytest.raises(TableRefused, match="is not the one"):
            after.merge(u, 7)
        after.place.close()
        _make_again(person, "twofold.cuts", "dump_twofold_cuts")
        with pytest.raises(Refused, match=r"cuts was restored or made again without (?s:.*)the whole database"):
            _Job.start(lake)


def test_a_sharded_table_in_postgresql_that_was_made_again_is_reloaded_in_each_member(
    lake: Lake, database: str
) -> None:
    lake.choice = SinkChoice("jdbc", database)
    shared = MirrorTable("*.public.t", "public", "t", ())
    part = Cut(5, 5, 0, whole=True, versions={"public.t": "now"}, backfilling=(), stopped=())

    def start() -> _Job:
        place = JdbcPlace(build_jdbc_url(database), of_group=True, sharding=Sharding.parse("public.t"))
        place.open(lake.spark, ("east", "west"))
        return _Job(lake.spark, SHARED, place, place.make_sink(lake.spark, SHARED))

    for _ in range(2):  # the second finds what members' lists have of it
        job = start()
        job.applied(shared)
        job.merge(shared, 5)
        job.place.publish(GlobalCut(job.place.next_number, {"east": part, "west": part}))
        job.place.close()
    job = start()
    with psycopg.connect(database, autocommit=True) as person:
        person.execute("CREATE TABLE dump AS SELECT * FROM public.t")
        _make_again(person, "public.t", "dump")
    for each in (shared, MirrorTable.by_name("public.t")):  # as a batch has it, and as a start
        with pytest.raises(TableRefused, match=r"is not the one (?s:.*)in each shard `.*backfill start"):
            job.applied(each)
    job.place.close()


def test_a_sharded_table_in_iceberg_that_the_last_cut_does_not_name_stays_as_earlier_cuts_had_it(lake: Lake) -> None:
    """One member's shard waits for its reload, so plain names stay, and all others leave."""
    members = ("east", "west")
    spark = session.fork_session(lake.spark)  # for merges set what the summaries of a session's snapshots say
    session.open_member_catalogs(spark, lake.warehouse, lake.catalog, members)
    shared = MirrorTable("*.public.t", "public", "t", ())
    begun = Cut(5, 5, 0, whole=True, versions={}, backfilling=(), stopped=())
    stopped = replace(begun, stopped=("public.t",))

    def start() -> _Job:
        place = lake.choice.make_place(of_group=True, sharding=Sharding.parse("public.t"), catalog=lake.catalog)
        place.open(spark, members)
        return _Job(spark, SHARED, place, place.make_sink(spark, SHARED))

    for west in (None, stopped):
        job = start()
        job.applied(shared)
        job.merge(shared, job.place.next_number)
        named = replace(begun, versions={"public.t": str(job.sink.version_of(shared))})
        job.place.publish(GlobalCut(job.place.next_number, {"east": named, "west": west or named}))
    job.place.publish(GlobalCut(job.place.next_number, {"west": stopped}, {"east": begun}))
    for _ in range(2):  # the second time what was not published is given up
        job = start()
        assert job.applied(shared) == [2]
        assert job.copies(shared) == 2
        job.merge(shared, job.place.next_number)
        assert job.copies(shared) == 3
    # It was not published, and a smaller batch without the table has its number.
    job = start()
    job.place.publish(GlobalCut(job.place.next_number, {"west": stopped}, {"east": begun}))
    assert start().applied(shared) == [2]
    assert job.copies(shared) == 2


def test_a_sharded_table_in_postgresql_stays_in_the_cuts_when_a_member_leaves(lake: Lake, database: str) -> None:
    lake.choice = SinkChoice("jdbc", database)
    shared = MirrorTable("*.public.t", "public", "t", ())
    part = Cut(5, 5, 0, whole=True, versions={"public.t": "now"}, backfilling=(), stopped=())
    for members in (("east", "west"), ("east",), ("east", "west")):
        place = JdbcPlace(build_jdbc_url(database), of_group=True, sharding=Sharding.parse("public.t"))
        place.open(lake.spark, members)
        job = _Job(lake.spark, SHARED, place, place.make_sink(lake.spark, SHARED))
        job.applied(shared)
        job.merge(shared, 5)
        others = {} if "west" in members else {"west": replace(part, versions={})}
        place.publish(GlobalCut(place.next_number, dict.fromkeys(members, part), others))
        place.close()
        cut = lake.reader.find_cut()
        assert cut is not None
        assert not cut.held_tables
        assert [(prefix, *each.versions) for prefix, each in cut.members.items()] == [(m, "public.t") for m in members]


def test_a_place_in_postgresql_of_a_version_that_kept_no_oids_gets_them(lake: Lake, database: str) -> None:
    lake.choice = SinkChoice("jdbc", database)
    (t,) = _tables(lake, "t")
    _cut_5(lake, t)
    with psycopg.connect(database, autocommit=True) as person:
        person.execute("ALTER TABLE twofold.mirrored DROP COLUMN relid, DROP COLUMN place")
        job = _Job.start(lake)
        assert job.applied(t) == [5]
        person.execute("CREATE TABLE dump AS SELECT * FROM public.t")
        _make_again(person, "public.t", "dump")
        with pytest.raises(TableRefused, match="is not the one"):
            job.merge(t, 6)
    job.place.close()


def _make_again(person: psycopg.Connection[Any], name: str, dump: str) -> None:
    """Drop a table and make it from another one, with its keys."""
    with person.transaction():
        person.execute(f"ALTER TABLE {name} RENAME TO former".encode())
        former = f"{name.partition('.')[0]}.former"
        person.execute(f"CREATE TABLE {name} (LIKE {former} INCLUDING ALL)".encode())
        person.execute(f"INSERT INTO {name} SELECT * FROM {dump}".encode())
        person.execute(f"DROP TABLE {former}".encode())


def test_tables_in_postgresql_whose_cuts_somebody_deleted_are_not_begun_again(lake: Lake, database: str) -> None:
    """Nothing but the last cut says what they have."""
    lake.choice = SinkChoice("jdbc", database)
    (t,) = _tables(lake, "t")
    _cut_5(lake, t)
    with psycopg.connect(database) as person:
        person.execute("TRUNCATE twofold.cuts")
    place = lake.make_place()
    with pytest.raises(Refused, match=r"twofold\.cuts is empty.*\n.*\n.*mirror into an empty database"):
        place.open(lake.spark, (lake.prefix,))
    place.close()


def test_a_task_of_a_job_before_writes_into_no_table_of_the_next(lake: Lake, database: str) -> None:
    """The job failed, and another one has begun; the task has not heard of that."""
    lake.choice = SinkChoice("jdbc", database)
    (t,) = _tables(lake, "t")
    _cut_5(lake, t)
    before = _Job.start(lake)
    before.applied(t)
    before.merge(t, 6)
    with psycopg.connect(database, autocommit=True) as task:
        (stage,) = _stages(task)
        before.place.close()
        after = _Job.start(lake)
        assert _stages(task) == []
        after.applied(t)
        after.merge(t, 6)
        with pytest.raises(psycopg.errors.UndefinedTable):
            task.execute(f"INSERT INTO {stage} VALUES (2, 1, 'u', '{{}}')".encode())
        after.publish(6, t)
        assert _stages(task) == []
    assert after.copies(t) == 2
    after.place.close()


def test_a_reader_that_stands_in_the_way_of_a_publication_costs_no_table(lake: Lake, database: str) -> None:
    """It reads two tables in one transaction, of which a batch changes the columns."""
    lake.choice = SinkChoice("jdbc", database)
    t, u = _tables(lake, "t", "u")
    _cut_5(lake, t, u)
    with psycopg.connect(database) as reader, ThreadPoolExecutor(1) as pool:
        # Of two that wait for each other, the one that looks ends: the job, and late enough.
        reader.execute(f'ALTER DATABASE "{reader.info.dbname}" SET deadlock_timeout = 5000'.encode())
        reader.commit()
        reader.execute("SET deadlock_timeout = 600000")
        job = _Job.start(lake)
        job.applied(t, u)
        for each in (t, u):
            job.merge(each, 6, change=lambda rows: rows.withColumn("b", f.lit(1)))
        reader.execute("SELECT FROM public.u")
        publication = pool.submit(job.publish, 6, t, u)
        waiting = "SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        wait_until(lambda: publication.done() or reader.execute(waiting).fetchall(), 90, "it waits for the reader")
        reader.execute("SELECT FROM public.t")
        reader.commit()
        publication.result()
        assert reader.execute("SELECT count(b) FROM public.t").fetchone() == (1,)
        reader.commit()
    job.place.close()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Etc/GMT-2", "Africa/Abidjan"])
def test_java_in_another_time_zone_than_utc_is_refused_where_timestamps_go_through_it(
    spark: SparkSession, zone: str
) -> None:
    """Abidjan has the time of UTC now, and had another one once."""
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    own = zones.getDefault()
    try:
        zones.setDefault(zones.getTimeZone(zone))
        with pytest.raises(SetupError, match=rf"is {zone}, .*-Duser\.timezone=UTC in --conf spark\.driver\."):
            check_time_zone(spark)
        zones.setDefault(zones.getTimeZone("GMT"))
        check_time_zone(spark)
    finally:
        zones.setDefault(own)


def test_days_that_javas_older_calendar_lacks_stop_their_table(lake: Lake, database: str) -> None:
    """JDBC would write other ones in PostgreSQL. The days around them are as in the source."""
    lake.choice = SinkChoice("jdbc", database)
    w = lake.writer
    w.table(table("days", {"id": "int8", "day": "date", "local": "timestamp"}), partitions=1)
    w.table(table("others", {"id": "int8"}), partitions=1)
    around = [dt.datetime(1582, 10, day, 12, 0, 0, 1) for day in (4, 15)]  # noqa: DTZ001
    lost = dt.datetime(1582, 10, 10)  # noqa: DTZ001
    with w.commit() as tx:
        tx.upsert("others", {"id": 0})
        for number, at in enumerate(around):
            tx.upsert("days", {"id": number, "day": at.date(), "local": at})
    lake.mirror()
    lake.assert_equal()
    for column, value in {"day": lost.date(), "local": lost}.items():
        before = w.model["days"][0]
        with w.commit() as tx:
            tx.upsert("others", {"id": 1})
            tx.upsert("days", {**before, column: value})
        said: list[str] = []
        lake.mirror(on_table_error="go-on", warn=said.append)
        assert f"{column} has a day from 1582-10-05 to 1582-10-14, which JDBC cannot write" in said[0]
        assert lake.cut().cut.stopped == ("public.days",)
        w.reload("days", [before, w.model["days"][1]])
        lake.mirror()
        lake.assert_equal()
    many = lake.spark.sql("SELECT array(null, date'1582-10-14') AS many")
    with pytest.raises(SPARK_ERRORS, match="many has a day"):
        failing_on_lost_days(many).collect()


def test_a_view_on_a_column_that_is_widened_is_named_with_its_repair(lake: Lake, database: str) -> None:
    lake.choice = SinkChoice("jdbc", database)
    (t,) = _tables(lake, "t")
    _cut_5(lake, t)
    job = _Job.start(lake)
    job.applied(t)
    with psycopg.connect(database, autocommit=True) as person:
        person.execute("CREATE VIEW public.v AS SELECT a FROM public.t")
        job.merge(t, 6, change=_widen)
        with pytest.raises(TableRefused, match=r'view v depends on column "a".*\n.*\n.*drop the view'):
            job.publish(6, t)
        person.execute("DROP VIEW public.v")
    job.merge(t, 6, change=_widen)
    job.publish(6, t)
    assert job.copies(t) == 2
    job.place.close()


def _widen(rows: DataFrame) -> DataFrame:
    return rows.withColumn("a", f.col("a").cast("bigint"))


def _stages(connection: psycopg.Connection[Any]) -> list[str]:
    """The staging tables."""
    found = connection.execute("SELECT oid::regclass::text FROM pg_class WHERE relname LIKE 'stage%' AND relkind = 'r'")
    return [name for (name,) in found]


def test_a_database_that_goes_away_is_told_and_hides_no_other_trouble(spark: SparkSession, database: str) -> None:
    def work(run: Run, when: str) -> None:
        run(f"CREATE TABLE {when} (id int)")
        with psycopg.connect(database, autocommit=True) as other:
            others = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            other.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {others}")
        if when == "at_a_statement":
            run("SELECT 1")
        if when == "while_something_else_fails":
            raise ZeroDivisionError("something else")

    away = r"^the mirror's database is away \(.*\); nothing is lost"
    expected: dict[str, tuple[type[Exception], str]] = {
        "at_a_statement": (ServerAway, away),
        "at_the_commit": (ServerAway, away),
        "while_something_else_fails": (ZeroDivisionError, "something else"),
    }
    for when, (kind, words) in expected.items():
        connection = connect(spark, build_jdbc_url(database))
        with pytest.raises(kind, match=words), transaction(connection) as run:
            work(run, when)
        with (
            pytest.raises(ServerAway, match=r"is away .This connection has been closed"),
            transaction(connection) as run,
        ):
            run("SELECT 1")
        connection.close()
