"""The changelog job against a real broker, a real registry and real Iceberg tables."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

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


def test_what_retention_took_while_the_checkpoint_was_lost_is_refused_and_a_new_table_begins(lake: Lake) -> None:
    w = lake.writer
    events, idle = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "idle"))

    def written(*ids: int) -> None:
        with w.commit() as tx:
            for i in ids:
                tx.upsert(events, {"id": i, "v": f"v{i}"})

    written(1, 2, 3)
    with w.commit() as tx:
        tx.upsert(idle, {"id": 1, "v": "kept"})
    lake.changelog()
    _lose(lake, events, before=4)  # what was appended, and its marker
    _lose(lake, idle, before=2)
    lake.checkpoint = "lost once: nothing is missing"
    written(4, 5)
    lake.changelog()
    assert [row[1] for row in _log(lake, events)] == [1, 2, 3, 4, 5]

    written(6, 7, 8)  # the offsets 7 to 9
    _lose(lake, events, before=9)
    lake.checkpoint = "lost again"
    for _ in range(2):  # it is not forgotten either
        with pytest.raises(Refused, match=r"events-0 from the offset 9 on.* ends before 6\n.* 6 to 8: .*\n.*RENAME TO"):
            lake.changelog()
    assert [row[1] for row in _log(lake, events)] == [1, 2, 3, 4, 5]
    lake.spark.sql(f"ALTER TABLE {lake.catalog}.public_changelog.events RENAME TO events_before")
    lake.changelog()
    written(9)
    lake.changelog()
    assert [row[1] for row in _log(lake, events)] == [8, 9]
    assert [row[1] for row in _log(lake, "events_before")] == [1, 2, 3, 4, 5]
    assert _log(lake, idle) == [("c", 1, "kept")]


def test_a_changelog_may_begin_where_retention_has_been(lake: Lake) -> None:
    """Also in a partition that has nothing any more: what was before its time is not missing later."""
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=2)
    for partition in range(2):
        with w.commit() as tx:
            for i in range(5):
                tx._record(events, "c", {"id": i}, None, {"id": i, "v": f"{partition}"}, w.lsn(), partition=partition)
    _lose(lake, events, before=3, partition=0)
    _lose(lake, events, before=6, partition=1)
    lake.changelog()
    lake.checkpoint = "another: the first is lost"
    lake.changelog()
    assert _log(lake, events) == [("c", 3, "0"), ("c", 4, "0")]


def _lose(lake: Lake, name: str, *, before: int, partition: int = 0) -> None:
    """As retention does."""
    lake.writer.visible()
    admin = AdminClient({"bootstrap.servers": lake.writer.bootstrap})
    place = TopicPartition(lake.writer.topics[name].name, partition, before)
    for future in admin.delete_records([place]).values():
        future.result(30)
