"""The changelog job against a real broker, a real registry and real Iceberg tables."""

from __future__ import annotations

from typing import Any

import pytest

from fix_spark import Lake
from spark_writer import table
from twofold_spark.changelog import Changelog
from twofold_spark.errors import Refused
from twofold_spark.registry import Registry
from twofold_spark.sinks import iceberg_tables


def _log(lake: Lake, name: str) -> list[tuple[str, int | None, str | None]]:
    rows = lake.spark.table(f"{lake.catalog}.public_changelog.{name}").orderBy("lsn", "op").collect()
    return [
        (row["op"], (row["after"] or row["before"] or {"id": None})["id"], row["after"]["v"] if row["after"] else None)
        for row in rows
    ]


def test_every_committed_change_is_there_once_also_after_a_lost_checkpoint(lake: Lake) -> None:
    w = lake.writer
    events, others = (w.table(table(n, {"id": "int8", "v": "text"})) for n in ("events", "others"))
    with w.commit(gid="global 1") as tx:
        for i in range(5):
            tx.upsert(events, {"id": i, "v": "first"})
        tx.upsert(others, {"id": 1, "v": "o"})
    with w.abort() as tx:
        tx.upsert(events, {"id": 1, "v": "aborted"})
    with w.commit() as tx:
        tx.upsert(events, {"id": 1, "v": "second"})
        tx.delete(events, 2, tombstone=True)
    lake.changelog()
    expected = [*(("c", i, "first") for i in range(5)), ("u", 1, "second"), ("d", 2, None)]
    assert _log(lake, events) == expected
    assert _log(lake, others) == [("c", 1, "o")]

    lake.checkpoint = "another: the first is lost"
    w.evolve(events, more="int4")
    with w.commit() as tx:
        tx.upsert(events, {"id": 9, "v": "third", "more": 4})
        tx.truncate(others)
    lake.changelog(batch_rows=4)
    assert _log(lake, events) == [*expected, ("c", 9, "third")]
    assert [op for op, _, _ in _log(lake, others)] == ["c", "t", "t", "t"]
    first = lake.spark.table(f"{lake.catalog}.public_changelog.events").orderBy("lsn").first()
    assert first is not None
    assert (first["gid"], first["total_order"], first["after"]["more"]) == ("global 1", 1, None)


def test_a_record_that_is_no_change_stops_the_job_and_is_named(lake: Lake) -> None:
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    with w.commit() as tx:
        tx.upsert(events, {"id": 1, "v": "good"})
        tx.raw(events, b"key", b"\0\0\0\0\0not Avro of ours")
    with pytest.raises(Refused, match=r"events-0@1 cannot be decoded"):
        lake.changelog()


@pytest.mark.parametrize("there_already", [False, True])
def test_of_two_jobs_that_append_one_batch_the_second_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, there_already: bool
) -> None:
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    expected = [("c", 1, "first")] if there_already else []
    if there_already:
        with w.commit() as tx:
            tx.upsert(events, {"id": 1, "v": "first"})
        lake.changelog()
    with w.commit() as tx:
        tx.upsert(events, {"id": 2, "v": "second"})
        tx.delete(events, 2, tombstone=True)
    w.visible()
    read = lake.spark.read.format("kafka").options(**lake.kafka.options("read_committed"))
    batch = read.option("subscribe", w.topics[events].name).load()
    paused, replacement, third = (
        Changelog(lake.kafka, Registry(w.registry), lake.prefix, catalog=lake.catalog) for _ in range(3)
    )
    prepare = iceberg_tables.prepare

    def meanwhile(*arguments: Any, **named: Any) -> None:
        """Between the look at the table and the rows."""
        monkeypatch.setattr(iceberg_tables, "prepare", prepare)
        replacement(batch, 1)
        prepare(*arguments, **named)

    monkeypatch.setattr(iceberg_tables, "prepare", meanwhile)
    with pytest.raises(Refused, match=r"another job appended to .*events.*\n.*appended twice.*\n.*one changelog job"):
        paused(batch, 1)
    third(batch, 1)
    assert _log(lake, events) == [*expected, ("c", 2, "second"), ("d", 2, None)]
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
    assert _log(lake, events) == [("c", 1, "first"), ("u", 1, "second")]
    assert lake.spark.sql(f"SELECT * FROM {lake.catalog}.public_changelog.events.snapshots").count() == 2
