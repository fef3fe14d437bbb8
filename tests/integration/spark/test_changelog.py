"""The changelog job against a real broker, a real registry and real Iceberg tables."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fix_spark import Lake
from spark_writer import table
from twofold_avro import schemas
from twofold_spark.errors import Refused, TableRefused
from twofold_spark.running import Trigger
from twofold_spark.sinks import iceberg_tables


def _log(lake: Lake, name: str) -> list[tuple[str, int | None, str | None]]:
    rows = lake.spark.table(f"{lake.catalog}.public_changelog.{name}").orderBy("lsn", "op").collect()
    return [
        (row["op"], (row["after"] or row["before"] or {"id": None})["id"], row["after"]["v"] if row["after"] else None)
        for row in rows
    ]


def _sql(lake: Lake, statement: str) -> list[Any]:
    return lake.spark.sql(statement.format(table=f"{lake.catalog}.public_changelog.events", c=lake.catalog)).collect()


def _written(lake: Lake, name: str, *ids: int, value: str = "v") -> None:
    with lake.writer.commit() as tx:
        for i in ids:
            tx.upsert(name, {"id": i, "v": value}, op="c")


def _ids(lake: Lake, name: str) -> list[int | None]:
    return [i for _, i, _ in _log(lake, name)]


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
    assert _log(lake, events) == expected
    assert _log(lake, others) == [("c", 1, "o")]

    w.evolve(events, more="int4")
    with w.commit() as tx:
        tx.upsert(events, {"id": 9, "v": "third", "more": 4})
        tx.truncate(others)
    lake.changelog(batch_rows=4)
    assert _log(lake, events) == [*expected, ("c", 9, "third")]
    assert [op for op, _, _ in _log(lake, others)] == ["c", "t", "t", "t"]
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
    paused, replacement, third = (lake.changelog_job() for _ in range(3))
    prepare = iceberg_tables.prepare

    def meanwhile(*arguments: Any, **named: Any) -> None:
        """Between the look at the table and the rows."""
        monkeypatch.setattr(iceberg_tables, "prepare", prepare)
        replacement.turn()
        prepare(*arguments, **named)

    monkeypatch.setattr(iceberg_tables, "prepare", meanwhile)
    with pytest.raises(Refused, match=r"another job appended to .*events.*\n.*appended twice.*\n.*one changelog job"):
        paused.turn()
    assert not third.turn()
    for job in (paused, replacement, third):
        job.close()
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


def test_what_retention_took_before_it_was_appended_is_refused_and_a_new_table_begins(lake: Lake) -> None:
    w = lake.writer
    events, idle = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "idle"))
    _written(lake, events, 1, 2, 3)
    _written(lake, idle, 1)
    lake.changelog()
    _lose(lake, events, before=4)  # what was appended, and its marker
    _lose(lake, idle, before=2)
    _written(lake, events, 4, 5)
    lake.changelog()
    assert _ids(lake, events) == [1, 2, 3, 4, 5]

    _written(lake, events, 6, 7, 8)  # the offsets 7 to 9
    _lose(lake, events, before=9)
    for _ in range(2):  # it is not forgotten either
        with pytest.raises(TableRefused, match=r"events-0 from the offset 9 on.* before 7\n.* 7 to 8: .*\n.*RENAME TO"):
            lake.changelog()
    assert _ids(lake, events) == [1, 2, 3, 4, 5]
    _sql(lake, "ALTER TABLE {table} RENAME TO events_before")
    lake.changelog()
    _written(lake, events, 9)
    lake.changelog()
    assert _ids(lake, events) == [8, 9]
    assert _ids(lake, "events_before") == [1, 2, 3, 4, 5]
    assert _ids(lake, idle) == [1]


def test_retention_may_take_what_was_rolled_back_and_never_appended(lake: Lake) -> None:
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    _written(lake, events, 1)
    lake.changelog()
    with w.abort() as tx:
        tx.upsert(events, {"id": 2, "v": "aborted"})
    lake.changelog()
    _lose(lake, events, before=4)
    lake.changelog()
    _written(lake, events, 3)
    lake.changelog()
    assert _ids(lake, events) == [1, 3]


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
    lake.changelog()
    assert _log(lake, events) == [("c", 3, "0"), ("c", 4, "0")]


@pytest.mark.parametrize("noted", [True, False], ids=["ended well", "killed"])
def test_compaction_and_expired_snapshots_lose_nothing_and_repeat_nothing(lake: Lake, noted: bool) -> None:
    """Whether or not the job had the time to note how far it was."""
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=2)
    for first in (0, 10, 20):
        _written(lake, events, *range(first, first + 10))
        w.visible()
        job = lake.changelog_job()
        job.turn()
        if noted:
            job.run(Trigger.parse("available-now"))
        job.close()
    _sql(lake, "CALL {c}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    if noted:  # the rows alone would say less
        _sql(lake, "DELETE FROM {table} WHERE after.id >= 20")
    in_an_hour = "timestamp_seconds(unix_seconds(now()) + 3600)"
    _sql(
        lake, f"CALL {{c}}.system.expire_snapshots(table => '{{table}}', older_than => {in_an_hour}, retain_last => 1)"
    )
    kept = _sql(lake, "SELECT summary FROM {table}.snapshots")
    assert len(kept) == 1
    assert "twofold.offsets" not in kept[0][0]
    there = list(range(20 if noted else 30))
    lake.changelog()
    assert _ids(lake, events) == there
    _written(lake, events, 30, 31)
    lake.changelog()
    assert _ids(lake, events) == [*there, 30, 31]


def test_a_table_that_was_taken_back_is_brought_forward_again(lake: Lake) -> None:
    events = lake.writer.table(table("events", {"id": "int8", "v": "text"}), partitions=2)
    for i in range(3):
        _written(lake, events, i)
        lake.changelog()
    first = _sql(lake, "SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at")[0][0]
    _sql(lake, f"CALL {{c}}.system.rollback_to_snapshot('{{table}}', {first})")
    assert _ids(lake, events) == [0]
    _written(lake, events, 3)
    lake.changelog()
    assert _ids(lake, events) == [0, 1, 2, 3]


@pytest.mark.parametrize("job_runs_on", [True, False])
def test_a_topic_that_was_made_anew_is_refused(lake: Lake, job_runs_on: bool) -> None:
    """Though it has as many records again as its table has appended."""
    w = lake.writer
    shape = table("events", {"id": "int8", "v": "text"})
    events = w.table(shape, partitions=1)
    _written(lake, events, 1, 2)
    w.visible()
    running = lake.changelog_job()
    running.turn()
    _make_anew(lake, events)
    for i in range(3, 8):
        _written(lake, events, i)
    w.visible()
    refusal = pytest.raises(TableRefused, match=r"events was deleted and made anew .*\n.* begin anew\n.*RENAME TO")
    if job_runs_on:
        with refusal:
            running.turn()
    running.close()
    for _ in range(2):
        with refusal:
            lake.changelog()
    assert _ids(lake, events) == [1, 2]
    _sql(lake, "ALTER TABLE {table} RENAME TO events_before")
    lake.changelog()
    assert _ids(lake, events) == [3, 4, 5, 6, 7]
    assert _ids(lake, "events_before") == [1, 2]


def test_a_deleted_topic_is_told_once(lake: Lake) -> None:
    w = lake.writer
    events, others = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "others"))
    _written(lake, events, 1)
    _written(lake, others, 1)
    w.visible()
    said: list[str] = []
    job = lake.changelog_job(on_table_error="go-on", warn=said.append)
    job.turn()
    _delete(lake, events)
    _written(lake, others, 2)
    w.visible()
    while job.turn():
        pass
    job.close()
    assert [line.partition("\n")[0].rpartition(": ")[2] for line in said] == [
        f"the topic {w.topics[events].name} is not there any more"
    ]
    lake.changelog()
    assert (_ids(lake, events), _ids(lake, others)) == ([1], [1, 2])


def test_a_table_with_an_unreadable_record_is_left_and_caught_up_while_the_others_go_on(lake: Lake) -> None:
    w = lake.writer
    names = ("events", "new", "others")
    events, new, others = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in names)
    _written(lake, events, 1)
    lake.changelog()
    with w.commit() as tx:
        for name in (events, new):
            tx.upsert(name, {"id": 2, "v": "before"})
            tx.raw(name, b"key", b"\0\0\0\0\0not Avro of ours")
            tx.upsert(name, {"id": 3, "v": "after"})
        tx.upsert(others, {"id": 1, "v": "o"})
    said: list[str] = []
    for round_ in (1, 2):
        w.visible()
        job = lake.changelog_job(on_table_error="go-on", warn=said.append, batch_rows=3)
        while job.turn():
            pass
        for name in (events, others):
            _written(lake, name, 10 * round_)
        w.visible()
        while job.turn():
            pass
        job.close()
        assert _ids(lake, events) == [1], "as it was"
        assert len(said) == 2 * round_, "each start says so"
    assert _ids(lake, others) == [1, 10, 20]
    assert all("the others go on" in line and "--unreadable skip" in line for line in said)
    with pytest.raises(TableRefused, match="cannot be decoded"):
        lake.changelog()
    lake.changelog(unreadable="skip")
    assert _ids(lake, events) == [1, 2, 3, 10, 20]
    assert _ids(lake, new) == [2, 3]
    assert _ids(lake, others) == [1, 10, 20]
    assert lake.spark.table(f"{lake.catalog}.twofold.quarantine").count() == 2


@pytest.mark.parametrize("trouble", ["type", "retention"])
def test_the_others_go_on_without_a_table_that_needs_a_new_one(lake: Lake, trouble: str) -> None:
    w = lake.writer
    events, others = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "others"))
    _written(lake, events, 1)
    lake.changelog()
    if trouble == "type":
        _sql(lake, "ALTER TABLE {table} DROP COLUMN after")
        _sql(lake, "ALTER TABLE {table} ADD COLUMN after int")
    for name in (events, others):
        _written(lake, name, 2, 3)
    if trouble == "retention":
        _lose(lake, events, before=3)
    for _ in range(2):
        with pytest.raises(TableRefused, match=r"\n.*\n.*RENAME TO"):
            lake.changelog()
    said: list[str] = []
    lake.changelog(on_table_error="go-on", warn=said.append)
    assert _ids(lake, others) == [2, 3]
    assert len(said) == 1
    _sql(lake, "ALTER TABLE {table} RENAME TO events_before")
    lake.changelog()
    assert _ids(lake, events) == ([1, 2, 3] if trouble == "type" else [3])


def _delete(lake: Lake, name: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": lake.writer.bootstrap})
    topic = lake.writer.topics[name].name
    for future in admin.delete_topics([topic], operation_timeout=30).values():
        future.result(30)
    deadline = time.monotonic() + 30
    while topic in admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline, f"{topic} is still there"
    return admin


def _make_anew(lake: Lake, name: str) -> None:
    admin, topic = _delete(lake, name), lake.writer.topics[name]
    for future in admin.create_topics([NewTopic(topic.name, topic.partitions, 1)]).values():
        future.result(30)
    deadline = time.monotonic() + 30
    while (
        not (there := admin.list_topics(timeout=30).topics.get(topic.name)) or len(there.partitions) < topic.partitions
    ):
        assert time.monotonic() < deadline, f"{topic.name} is not there"


def _lose(lake: Lake, name: str, *, before: int, partition: int = 0) -> None:
    """As retention does."""
    lake.writer.visible()
    admin = AdminClient({"bootstrap.servers": lake.writer.bootstrap})
    place = TopicPartition(lake.writer.topics[name].name, partition, before)
    for future in admin.delete_records([place]).values():
        future.result(30)
