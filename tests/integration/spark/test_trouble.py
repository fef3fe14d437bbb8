"""Odd and broken things: the mirror is right, or it refuses and says what to do."""

from __future__ import annotations

import random
import subprocess
import time
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from fixtures.spark import Lake
from helpers.security.guards import Door
from helpers.spark import process as spark_process
from helpers.spark.writer import Open, table
from helpers.topic_changes import delete_records, delete_topic
from twofold_spark.errors import SetupError, TableRefused
from twofold_spark.sinks.sink_choice import SinkChoice

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def _may_mount() -> bool:
    try:
        return subprocess.run([*_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _rows(lake: Lake, *names: str, ids: range) -> None:
    with lake.writer.commit() as tx:
        for name in names:
            for i in ids:
                tx.upsert(name, {"id": i, "v": f"v{i}"})


def test_an_empty_commit_record_is_a_cut_like_any_other(lake: Lake) -> None:
    t = lake.writer.table(table("t", {"id": "int8", "v": "text"}))
    with lake.writer.commit():
        pass
    _rows(lake, t, ids=range(3))
    with lake.writer.commit():
        pass
    lake.mirror(batch_rows=1)
    lake.assert_equal()
    assert [a.cut.sequence for a in lake.applied] == [1, 2, 3]
    assert lake.cut().cut.sequence == 3


@pytest.mark.slow
def test_a_table_of_300_columns(lake: Lake) -> None:
    columns = {"id": "int8", **{f"c{n}": ("int4", "text", "numeric", "float8")[n % 4] for n in range(299)}}
    wide = lake.writer.table(table("wide", columns))

    def row(i: int, version: int) -> dict[str, object]:
        values = (version, f"text {version}", f"{version}.50", version / 8)
        return {"id": i, **{f"c{n}": values[n % 4] for n in range(299)}}

    with lake.writer.commit() as tx:
        for i in range(50):
            tx.upsert(wide, row(i, 1))
    lake.mirror()
    with lake.writer.commit() as tx:
        for i in range(0, 50, 7):
            tx.upsert(wide, row(i, 2))
        tx.delete(wide, 1)
        tx.upsert(wide, row(3, 3), unchanged=tuple(f"c{n}" for n in range(1, 40, 4)))
    lake.mirror()
    lake.assert_equal()


def test_a_table_whose_topic_is_shortened_has_its_own_name(lake: Lake) -> None:
    name, schema = "表" * 21, "名" * 21
    shape = table(name, {"id": "int8", "v": "text"}, schema=schema)
    lake.writer.table(shape)
    topic = lake.writer.topics[name].name
    assert len(topic) == 249
    _rows(lake, name, ids=range(3))
    lake.mirror()
    lake.changelog()
    (mirrored,) = lake.cut()
    assert len(lake.cut()[mirrored].collect()) == 3
    schema_there, name_there = mirrored.split(".")
    assert lake.spark.table(f"{lake.catalog}.{schema_there}_changelog.{name_there}").count() == 3


def test_records_that_retention_took_stop_the_table_and_are_told(lake: Lake) -> None:
    w = lake.writer
    t, other = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("t", "other"))
    _rows(lake, t, other, ids=range(20))
    delete_records(w.bootstrap, w.topics[t].name, 10)
    with pytest.raises(TableRefused, match=r"holds 10 of the 20 records .*\n.*\n.*retention"):
        lake.mirror()
    lake.mirror(on_table_error="go-on", warn=lambda _: None)
    assert lake.cut().cut.stopped == ("public.t",)
    assert lake.rows(other, lake.cut()["public.other"]) == w.model[other]


@pytest.mark.core
def test_rows_that_were_aborted_behind_their_commit_record_stop_the_table_until_it_is_reloaded(lake: Lake) -> None:
    """A late end of Kafka's transaction does it. Records of the range are in the log, and no
    committed reader has them."""
    w = lake.writer
    t, other = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("t", "other"))
    _rows(lake, t, other, ids=range(5))
    with w.lose() as tx:
        tx.upsert(t, {"id": 7, "v": "lost"})
    _rows(lake, other, ids=range(5, 8))
    with pytest.raises(
        TableRefused, match=r"holds 5 of the 6 records .*\n.*\n.*twofold backfill start public\.t.*twofold audit"
    ):
        lake.mirror()
    lake.mirror(on_table_error="go-on", warn=lambda _: None)
    assert lake.cut().cut.stopped == ("public.t",)
    assert lake.rows(other, lake.cut()["public.other"]) == w.model[other]
    w.reload(t)
    lake.mirror()
    lake.changelog()
    lake.assert_equal()
    assert lake.cut().cut.stopped == ()


def test_rows_that_were_aborted_below_an_open_transaction_are_still_the_source_s(lake: Lake) -> None:
    """Nobody can tell then that no committed reader has them; the mirror's table is the source's,
    and the audit tells."""
    w = lake.writer
    t = w.table(table("t", {"id": "int8", "v": "text"}), partitions=1)
    with w.prepare("slot", "in doubt") as waiting:
        waiting.upsert(t, {"id": 1, "v": "in doubt"})
    with w.lose() as tx:
        tx.upsert(t, {"id": 7, "v": "lost"})
    lake.mirror()
    assert [row.id for row in lake.table(t).collect()] == [7]
    w.finish(waiting)
    lake.mirror()
    lake.assert_equal()


@pytest.mark.core
def test_a_deleted_topic_stops_the_table_and_is_told(lake: Lake) -> None:
    w = lake.writer
    t, other = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("t", "other"))
    _rows(lake, t, other, ids=range(5))
    delete_topic(w.bootstrap, w.topics[t].name)
    with pytest.raises(TableRefused, match=r"public\.t.* does not exist any more"):
        lake.mirror()


def test_policies_on_a_mirrored_table_hide_no_row_from_the_mirror(lake: Lake, database: str) -> None:
    """Somebody forces row security on the job's own table. DELETE and UPDATE would pass over the
    rows that a policy hides, and the cut would be published.
    """
    w, t = lake.writer, lake.writer.table(table("t", {"id": "int8", "v": "text"}))
    with psycopg.connect(database, autocommit=True) as admin:
        role = f"mirror_{w.prefix}"
        admin.execute(f"CREATE ROLE {role} LOGIN")
        admin.execute(f'ALTER DATABASE "{admin.info.dbname}" OWNER TO {role}')
        lake.choice = SinkChoice("jdbc", f"{database} user={role}")
        _rows(lake, t, ids=range(3))
        lake.mirror()
        admin.execute("ALTER TABLE public.t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        admin.execute("CREATE POLICY of_tenants ON public.t USING (false)")
        with w.commit() as tx:
            tx.delete(t, 2)
        with pytest.raises(TableRefused, match="row security that was added to it") as refused:
            lake.mirror()
        statement, _, _ = refused.value.repair.partition(";")
        admin.execute(statement)
        lake.mirror()
        assert admin.execute("SELECT id FROM public.t ORDER BY 1").fetchall() == [(0,), (1,)]
        admin.execute(f"DROP OWNED BY {role} CASCADE")
        admin.execute(f'ALTER DATABASE "{admin.info.dbname}" OWNER TO CURRENT_USER')
        admin.execute(f"DROP ROLE {role}")


def test_an_error_of_spark_in_one_table_is_that_tables(lake: Lake) -> None:
    """Somebody removed its files, which a merge must read."""
    t, other = (lake.writer.table(table(name, {"id": "int8", "v": "text"})) for name in ("t", "other"))
    _rows(lake, t, other, ids=range(3))
    lake.mirror()
    for file in (lake.warehouse / "public" / "t" / "data").glob("*.parquet"):
        file.unlink()
    _rows(lake, t, other, ids=range(2, 5))
    with pytest.raises(
        TableRefused, match=r"public.t: its changes cannot be applied: .*\n.*\n.*backfill start public.t"
    ):
        lake.mirror()
    lake.mirror(on_table_error="go-on")
    assert lake.rows(other) == lake.writer.model[other]
    assert lake.cut().cut.stopped == ("public.t",)
    with lake.writer.commit(kind="reload") as tx:
        tx.truncate(t)
    _rows(lake, t, ids=range(7))
    lake.mirror()
    lake.assert_equal()


@pytest.mark.slow
@pytest.mark.skipif(not _may_mount(), reason="no file system can be mounted here")
def test_a_full_disk_is_told_in_one_sentence_and_the_next_start_goes_on(lake: Lake) -> None:
    """The warehouse is a file system of some megabytes, which the job alone sees."""
    t = lake.writer.table(table("t", {"id": "int8", "body": "text"}), partitions=1)
    rng = random.Random(1)
    with lake.writer.commit() as tx:
        for number in range(4_000):
            tx.upsert(t, {"id": number, "body": rng.randbytes(1_000).hex()})
    lake.writer.visible()
    job = spark_process.make_line(lake, "--trigger", "available-now")
    mounted = 'mount -t tmpfs -o size=2m full "$0" && exec "$@"'
    line = [*_NAMESPACE, "sh", "-c", mounted, str(lake.warehouse), *job]
    with spark_process.in_its_own_group(line) as process:
        said = spark_process.finish(process, 3)
    assert "make room" in said.splitlines()[-1], said
    assert "py4j" not in said, said
    assert "\tat " not in said, said
    spark_process.run(lake, "--trigger", "available-now")
    lake.assert_equal()


def test_rows_without_a_key_are_not_folded_into_one(lake: Lake) -> None:
    """The primary key was dropped, and the registry keeps the subject of the key."""
    w = lake.writer
    t = w.table(table("t", {"id": "int8", "v": "text"}), partitions=1)
    _rows(lake, t, ids=range(3))
    lake.mirror()

    def nameless(tx: Open, *ids: int) -> None:
        for i in ids:
            tx._record(t, "c", None, None, {"id": i, "v": "nameless"}, w.lsn())

    with w.commit() as tx:
        nameless(tx, 10, 11, 12)
    with pytest.raises(TableRefused, match=r"-key\n.*\n.*`twofold backfill start public\.t`"):
        lake.mirror()
    assert lake.rows(t) == w.model[t]
    lake.mirror(on_table_error="go-on", warn=lambda _: None)
    with w.commit() as tx:
        nameless(tx, 13, 14)
    lake.mirror()  # the table waits for its truncate, and nobody is stopped by what it misses
    assert lake.cut().cut.stopped == ("public.t",)
    with w.commit() as tx:
        nameless(tx, 15, 16)
        tx.truncate(t)
        tx.upsert(t, {"id": 20, "v": "reloaded"}, op="r")
    lake.mirror()
    lake.assert_equal()
    assert lake.cut().cut.stopped == ()


def test_an_answer_of_the_registry_that_is_lost_is_asked_for_again(lake: Lake) -> None:
    t = lake.writer.table(table("t", {"id": "int8", "v": "text"}))
    _rows(lake, t, ids=range(3))
    door = Door(lake.writer.registry)
    lake.writer.registry, door.to_lose = door.url, 5
    try:
        lake.mirror()
        assert door.to_lose == 0
    finally:
        door.shut()
    lake.assert_equal()


@pytest.mark.core
def test_a_registry_that_is_away_ends_the_job_only_where_it_is_needed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twofold_spark.sources.registry.PATIENCE_S", 0.5)
    t = lake.writer.table(table("t", {"id": "int8", "v": "text"}))
    _rows(lake, t, ids=range(3))
    registry = lake.writer.registry
    lake.writer.registry = "http://127.0.0.1:9"
    with pytest.raises(
        SetupError, match=r"127\.0\.0\.1:9 has not answered for 0\.5 s .*then start the job; it continues where it was"
    ):
        lake.mirror()
    lake.writer.registry = registry
    lake.mirror()
    lake.assert_equal()


def _consumers(spark: SparkSession) -> int:
    """How many of Kafka's consumers the JVM holds, with what each of them fetched ahead."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    # The server's own class is closed to reflection; its interface is not.
    name = jvm.javax.management.ObjectName("kafka.consumer:type=app-info,*")
    types, values = gateway.new_array(jvm.java.lang.Class, 2), gateway.new_array(jvm.java.lang.Object, 2)
    types[0], types[1] = name.getClass(), jvm.java.lang.Class.forName("javax.management.QueryExp")
    values[0] = name
    query = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethod("queryNames", types)
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    return int(query.invoke(server, values).size())


def test_what_was_fetched_for_a_batch_is_not_kept_for_the_next_ones(lake: Lake) -> None:
    """Spark keeps a consumer for five minutes; those of a backlog filled the driver's memory."""
    t = lake.writer.table(table("t", {"id": "int8", "v": "text"}))
    for start in range(0, 50, 10):
        _rows(lake, t, ids=range(start, start + 10))
    lake.mirror(batch_rows=10)
    assert len(lake.applied) == 5
    deadline = time.monotonic() + 30
    while (held := _consumers(lake.spark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not held


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_200_tables_at_once(lake: Lake) -> None:
    names = [lake.writer.table(table(f"t{n}", {"id": "int8", "v": "text"}), partitions=1) for n in range(200)]
    _rows(lake, *names, ids=range(5))
    lake.mirror()
    _rows(lake, *names, ids=range(3, 8))
    lake.mirror()
    print(f"200 tables at once: {lake.applied[-1]}")
    lake.assert_equal()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_records_of_one_key(lake: Lake) -> None:
    w = lake.writer
    hot = w.table(table("hot", {"id": "int8", "v": "text"}))
    for _ in range(100):
        with w.commit() as tx:
            for i in range(10_000):
                tx.upsert(hot, {"id": 1, "v": f"v{i}"})
    lake.mirror()
    print(f"a million records of one key: {', '.join(map(str, lake.applied))}")
    lake.assert_equal()
