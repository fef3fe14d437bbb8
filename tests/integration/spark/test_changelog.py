"""The changelog job against a real broker, a real registry and real Iceberg tables."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fixtures.connector import wait_until
from fixtures.spark import Lake
from helpers.spark.changelog_tables import ids, log, lose, sql, written
from helpers.spark.writer import table
from twofold_avro import schemas
from twofold_spark.changelog import changelog_job
from twofold_spark.changelog.changelog_job import Changelog
from twofold_spark.errors import Refused
from twofold_spark.sinks import iceberg_tables
from twofold_spark.streaming import Trigger


@pytest.mark.core
def test_every_committed_change_is_there_once_over_several_starts(lake: Lake) -> None:
    w = lake.writer
    events, others = (w.table(table(n, {"id": "int8", "v": "text"})) for n in ("events", "others"))
    with w.commit(gid="4660_b3JkZXIgNw==_bGVkZ2Vy") as tx:
        for i in range(5):
            tx.upsert(events, {"id": i, "v": "first"})
        tx.upsert(others, {"id": 1, "v": "o"})
    with w.abort() as tx:
        tx.upsert(events, {"id": 1, "v": "aborted"})
    with w.commit(gid="opaque") as tx:
        tx.upsert(events, {"id": 1, "v": "second"})
        tx.delete(events, 2, tombstone=True)
    lake.changelog()
    expected = [*(("c", i, "first") for i in range(5)), ("u", 1, "second"), ("d", 2, None)]
    assert log(lake, events) == expected
    assert log(lake, others) == [("c", 1, "o")]

    w.evolve(events, more="int4")
    with w.commit() as tx:
        tx.upsert(events, {"id": 9, "v": "third", "more": 4})
        tx.truncate(others)
    lake.changelog(batch_rows=4)
    assert log(lake, events) == [*expected, ("c", 9, "third")]
    assert [op for op, _, _ in log(lake, others)] == ["c", "t", "t", "t"]
    rows = lake.spark.table(f"{lake.catalog}.public_changelog.events").orderBy("lsn").collect()
    assert (rows[0]["total_order"], rows[0]["after"]["more"], rows[-1]["after"]["more"]) == (1, None, 4)
    assert [(row["gid"], row["global_id"], row["branch"]) for row in (rows[0], rows[-2], rows[-1])] == [
        ("4660_b3JkZXIgNw==_bGVkZ2Vy", "4660:order 7", "ledger"),
        ("opaque", None, None),
        (None, None, None),
    ]


def test_a_connector_that_does_not_say_what_a_gid_means_may_be_older_than_the_job(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = schemas.envelope_schema

    def before(*arguments: Any) -> Any:
        schema = made(*arguments)
        (source,) = (field for field in schema["fields"] if field["name"] == "source")
        source["type"]["fields"] = [c for c in source["type"]["fields"] if c["name"] not in ("global_id", "branch")]
        return schema

    w, shape = lake.writer, table("events", {"id": "int8", "v": "text"})
    gids = ("1_YQ==_YQ==", "1_Yg==_Yg==")
    for gid, version in zip(gids, (before, made), strict=True):
        monkeypatch.setattr(schemas, "envelope_schema", version)
        events = w.table(shape)
        with w.commit(gid=gid) as tx:
            tx.upsert(events, {"id": 1, "v": "v"})
        lake.changelog()
    rows = lake.spark.table(f"{lake.catalog}.public_changelog.events").orderBy("lsn").collect()
    assert [(row["gid"], row["global_id"], row["branch"]) for row in rows] == [
        (gids[0], None, None),
        (gids[1], "1:b", "b"),
    ]


def test_of_two_jobs_that_append_one_batch_the_second_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the table is not there yet, and where it is."""
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    expected: list[tuple[str, int, str | None]] = []
    prepare = iceberg_tables.prepare_table
    for value in ("first", "second"):
        with w.commit() as tx:
            tx.upsert(events, {"id": 2, "v": value})
            tx.delete(events, 2, tombstone=True)
        w.visible()
        paused, replacement, third = (lake.changelog_job() for _ in range(3))

        def meanwhile(*arguments: Any, replacement: Changelog = replacement, **named: Any) -> None:
            """Between the look at the table and the rows."""
            monkeypatch.setattr(iceberg_tables, "prepare_table", prepare)
            replacement.run_turn()
            prepare(*arguments, **named)

        monkeypatch.setattr(iceberg_tables, "prepare_table", meanwhile)
        refusal = r"another job appended to .*events.*\n.*appended twice.*\n.*one changelog job"
        with pytest.raises(Refused, match=refusal):
            paused.run_turn()
        assert not third.run_turn()
        for job in (paused, replacement, third):
            job.close()
        expected += [("c", 2, value), ("d", 2, None)]
        assert log(lake, events) == expected
    snapshots = lake.spark.sql(f"SELECT operation FROM {lake.catalog}.public_changelog.events.snapshots")
    assert {row[0] for row in snapshots.collect()} == {"append"}, "streams of the changelog read nothing else"


def test_tombstones_alone_are_nothing_to_append(lake: Lake) -> None:
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    with w.commit() as tx:
        tx.upsert(events, {"id": 1, "v": "first"})
    lake.changelog()
    with w.commit() as tx:
        tx.raw(events, w.key_bytes(events, {"id": 1}), None)
    lake.changelog()
    with w.commit() as tx:
        tx.upsert(events, {"id": 1, "v": "second"})
    lake.changelog()
    assert log(lake, events) == [("c", 1, "first"), ("u", 1, "second")]
    assert lake.spark.sql(f"SELECT * FROM {lake.catalog}.public_changelog.events.snapshots").count() == 2


def test_retention_may_take_what_was_rolled_back_and_never_appended(lake: Lake) -> None:
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    written(lake, events, 1)
    lake.changelog()
    with w.abort() as tx:
        tx.upsert(events, {"id": 2, "v": "aborted"})
    lake.changelog()
    lose(lake, events, before=4)
    lake.changelog()
    written(lake, events, 3)
    lake.changelog()
    assert ids(lake, events) == [1, 3]


def test_a_changelog_may_begin_where_retention_has_been(lake: Lake) -> None:
    """The same holds in a partition that is empty now: earlier records are not missing later."""
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=2)
    for partition in range(2):
        with w.commit() as tx:
            for i in range(5):
                tx._record(events, "c", {"id": i}, None, {"id": i, "v": f"{partition}"}, w.lsn(), partition=partition)
    lose(lake, events, before=3, partition=0)
    lose(lake, events, before=6, partition=1)
    lake.changelog()
    lake.changelog()
    assert log(lake, events) == [("c", 3, "0"), ("c", 4, "0")]


@pytest.mark.parametrize("noted_by", ["its end", "the next start", "the quiet", None])
def test_compaction_and_expired_snapshots_lose_nothing_and_repeat_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, noted_by: str | None
) -> None:
    """Whether or not a job had the time to note how far it was."""
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=2)
    for first in (0, 10, 20):
        written(lake, events, *range(first, first + 10))
        w.visible()
        job = lake.changelog_job()
        if noted_by == "the quiet":
            _run_until_noted(lake, job, monkeypatch)
        else:
            job.run_turn()
        if noted_by == "its end":
            job.run(lake.warehouse / "checkpoint", Trigger.parse("available-now"))
        job.close()
    if noted_by == "the next start":
        job = lake.changelog_job()
        assert not job.run_turn()
        job.close()
    sql(lake, "CALL {c}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    if noted_by is not None:  # the rows alone would say less
        sql(lake, "DELETE FROM {table} WHERE after.id >= 20")
    _expire(lake)
    kept = sql(lake, "SELECT summary FROM {table}.snapshots")
    assert len(kept) == 1
    assert "twofold.offsets" not in kept[0][0]
    there = list(range(20 if noted_by is not None else 30))
    lake.changelog()
    assert ids(lake, events) == there
    written(lake, events, 30, 31)
    lake.changelog()
    assert ids(lake, events) == [*there, 30, 31]


@pytest.mark.parametrize("expired", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_table_that_was_taken_back_is_brought_forward_again(lake: Lake, expired: bool) -> None:
    """Also where the snapshots that it was taken back from are gone; in steps, between which more
    of them go."""
    events = lake.writer.table(table("events", {"id": "int8", "v": "text"}), partitions=2)
    for i in range(3):
        written(lake, events, i)
        lake.changelog()
    first = sql(lake, "SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at")[0][0]
    sql(lake, f"CALL {{c}}.system.rollback_to_snapshot('{{table}}', {first})")
    assert ids(lake, events) == [0]
    if expired:
        _expire(lake)
    written(lake, events, 3)
    lake.writer.visible()
    job = lake.changelog_job(batch_rows=1)
    job.run_turn()
    job.close()
    if expired:
        _expire(lake)
    lake.changelog()
    assert ids(lake, events) == [0, 1, 2, 3]


def _run_until_noted(lake: Lake, job: Changelog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between micro-batches: the turn that finds nothing new comes sooner."""
    monkeypatch.setattr(changelog_job, "_QUIET_S", 3)
    ending = threading.Event()

    def find_head() -> int | None:
        if not lake.spark.catalog.tableExists(f"{lake.catalog}.public_changelog.events"):
            return None
        heads = sql(lake, "SELECT snapshot_id FROM {table}.history ORDER BY made_current_at DESC LIMIT 1")
        return heads[0]["snapshot_id"] if heads else None

    former = find_head()

    def is_noted() -> bool:
        if (head := find_head()) == former:
            return False
        noted = sql(lake, "SHOW TBLPROPERTIES {table} ('twofold.offsets')")[0]["value"]
        return bool(json.loads(noted)["snapshot"] == head)

    def wait() -> None:
        try:
            wait_until(is_noted)
        finally:
            ending.set()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        job.run(lake.warehouse / "checkpoint", Trigger.parse("interval=100ms"), ending)
        waiting.result()


def _expire(lake: Lake) -> None:
    """All but the present snapshot."""
    in_an_hour = "timestamp_seconds(unix_seconds(now()) + 3600)"
    sql(lake, f"CALL {{c}}.system.expire_snapshots(table => '{{table}}', older_than => {in_an_hour}, retain_last => 1)")
    assert len(sql(lake, "SELECT 1 FROM {table}.snapshots")) == 1
