"""One table's trouble in the changelog, against a real broker, a real registry and real Iceberg
tables: it stops all, or that table alone, and nothing is lost by it."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.spark import Lake
from helpers.spark.changelog_tables import delete, ids, lose, recreate_topic, sql, written
from helpers.spark.process import run
from helpers.spark.writer import Writer, table
from twofold_spark import session
from twofold_spark.changelog.changelog_job import Changelog
from twofold_spark.errors import TableRefused
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.registry import Registry


def test_a_record_that_is_no_change_stops_the_job_and_is_named(lake: Lake) -> None:
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    with w.commit() as tx:
        tx.upsert(events, {"id": 1, "v": "good"})
        tx.raw(events, b"key", b"\0\0\0\0\0not Avro of ours")
    with pytest.raises(TableRefused, match=r"events-0@1 cannot be decoded"):
        lake.changelog()


def test_what_retention_took_before_it_was_appended_is_refused_and_a_new_table_begins(lake: Lake) -> None:
    w = lake.writer
    events, idle = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "idle"))
    written(lake, events, 1, 2, 3)
    written(lake, idle, 1)
    lake.changelog()
    lose(lake, events, before=4)  # what was appended, and its marker
    lose(lake, idle, before=2)
    written(lake, events, 4, 5)
    lake.changelog()
    assert ids(lake, events) == [1, 2, 3, 4, 5]

    written(lake, events, 6, 7, 8)  # the offsets 7 to 9
    lose(lake, events, before=9)
    for _ in range(2):  # it is not forgotten either
        with pytest.raises(TableRefused, match=r"events-0 from offset 9 on.* before 7\n.* 7 to 8: .*\n.*RENAME TO"):
            lake.changelog()
    assert ids(lake, events) == [1, 2, 3, 4, 5]
    sql(lake, "ALTER TABLE {table} RENAME TO events_before")
    lake.changelog()
    written(lake, events, 9)
    lake.changelog()
    assert ids(lake, events) == [8, 9]
    assert ids(lake, "events_before") == [1, 2, 3, 4, 5]
    assert ids(lake, idle) == [1]


def test_a_topic_that_was_recreated_is_refused(lake: Lake) -> None:
    """By the job that runs on, and by each start. It has as many records again as its table has
    appended.
    """
    w = lake.writer
    shape = table("events", {"id": "int8", "v": "text"})
    events = w.table(shape, partitions=1)
    written(lake, events, 1, 2)
    w.visible()
    running = lake.changelog_job()
    running.run_turn()
    recreate_topic(lake, events)
    for i in range(3, 8):
        written(lake, events, i)
    w.visible()
    refusal = pytest.raises(
        TableRefused, match=r"events was deleted and recreated .*\n.* begin at 0 again\n.*RENAME TO"
    )
    with refusal:
        running.run_turn()
    running.close()
    for _ in range(2):
        with refusal:
            lake.changelog()
    assert ids(lake, events) == [1, 2]
    sql(lake, "ALTER TABLE {table} RENAME TO events_before")
    lake.changelog()
    assert ids(lake, events) == [3, 4, 5, 6, 7]
    assert ids(lake, "events_before") == [1, 2]


def test_a_table_of_another_topic_is_refused(lake: Lake) -> None:
    """A person renames it as the source's table was renamed, or two prefixes share a catalog."""
    w = lake.writer
    sold, events = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("sold", "events"))
    written(lake, sold, 1, 2)
    lake.changelog()
    sql(lake, "ALTER TABLE {c}.public_changelog.sold RENAME TO events")
    for i in range(3, 8):
        written(lake, events, i)
    delete(lake, sold)
    with pytest.raises(TableRefused, match=r"topic \S+sold, and not those of \S+events\n.*\n.*RENAME TO"):
        lake.changelog()
    assert ids(lake, events) == [1, 2]
    sql(lake, "ALTER TABLE {table} RENAME TO events_before")
    lake.changelog()
    assert ids(lake, events) == [3, 4, 5, 6, 7]


def test_a_prefix_that_leaves_its_group_does_not_go_on_in_another_table(lake: Lake) -> None:
    """The group's catalog of its tables is found in the warehouse, by a process that has not opened
    it.
    """
    events = lake.writer.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    written(lake, events, 1)
    lake.writer.visible()
    group = (lake.prefix, f"{lake.prefix}.other")
    session.open_member_catalogs(lake.spark, lake.warehouse, lake.catalog, group)
    job = Changelog(lake.spark, lake.kafka, Registry(lake.writer.registry), group, catalog=lake.catalog)
    job.run_turn()
    job.close()
    said = run(lake, "--trigger", "available-now", command="changelog", status=5)
    assert "was made with another --sharded or other prefixes" in said
    former = f"{session.member_catalog(lake.catalog, lake.prefix)}.public_changelog.events"
    lake.spark.sql(f"ALTER TABLE {former} RENAME TO public_changelog.events_before")
    run(lake, "--trigger", "available-now", command="changelog")
    assert ids(lake, events) == [1]


def test_the_topics_of_a_connector_whose_prefix_goes_on_behind_this_one_are_no_tables(lake: Lake) -> None:
    """Its commit records are named as a table of a schema. So is a true table of that schema."""
    w = lake.writer
    events = w.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    messages = w.table(table("messages", {"id": "int8", "v": "text"}, schema="west"), partitions=1)
    written(lake, events, 1)
    written(lake, messages, 1)
    other = Writer(w.bootstrap, w.registry, f"{w.prefix}.east")
    other.table(table("events", {"id": "int8", "v": "text"}), partitions=1)
    with other.commit() as tx:
        tx.upsert("events", {"id": 2, "v": "v"})
    other.visible()
    lake.changelog()
    assert ids(lake, events) == [1]
    names = sql(lake, "SHOW TABLES IN {c}.west_changelog")
    assert [each["tableName"] for each in names] == [messages]
    assert [each["namespace"] for each in sql(lake, "SHOW NAMESPACES IN {c}")] == ["public_changelog", "west_changelog"]


def test_a_deleted_topic_is_told_once(lake: Lake) -> None:
    w = lake.writer
    events, others = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "others"))
    written(lake, events, 1)
    written(lake, others, 1)
    w.visible()
    said: list[str] = []
    job = lake.changelog_job(on_table_error="go-on", warn=said.append)
    job.run_turn()
    delete(lake, events)
    written(lake, others, 2)
    w.visible()
    while job.run_turn():
        pass
    job.close()
    assert [line.partition("\n")[0].rpartition(": ")[2] for line in said] == [
        f"the topic {w.topics[events].name} does not exist any more"
    ]
    lake.changelog()
    assert (ids(lake, events), ids(lake, others)) == ([1], [1, 2])


def test_a_table_with_an_unreadable_record_is_left_and_caught_up_while_the_others_go_on(lake: Lake) -> None:
    w = lake.writer
    names = ("events", "new", "others")
    events, new, others = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in names)
    written(lake, events, 1)
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
        while job.run_turn():
            pass
        for name in (events, others):
            written(lake, name, 10 * round_)
        w.visible()
        while job.run_turn():
            pass
        job.close()
        assert ids(lake, events) == [1], "as it was"
        assert len(said) == 2 * round_, "each start says so"
    assert ids(lake, others) == [1, 10, 20]
    assert all("the other tables go on" in line and "--unreadable skip" in line for line in said)
    with pytest.raises(TableRefused, match="cannot be decoded"):
        lake.changelog()
    lake.changelog(unreadable="skip")
    assert ids(lake, events) == [1, 2, 3, 10, 20]
    assert ids(lake, new) == [2, 3]
    assert ids(lake, others) == [1, 10, 20]
    assert lake.spark.table(f"{lake.catalog}.twofold.quarantine").count() == 2


def test_columns_that_differ_in_case_alone_are_their_tables_trouble(lake: Lake) -> None:
    """Spark ignores case. The versions of the subject have both, as the source's column was
    renamed."""
    w = lake.writer
    events, others = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "others"))
    written(lake, events, 1)
    lake.changelog()
    w.table(table(events, {"id": "int8", "V": "text"}), partitions=1)
    with w.commit() as tx:
        tx.upsert(events, {"id": 2, "V": "v"})
    written(lake, others, 1)
    said: list[str] = []
    lake.changelog(on_table_error="go-on", warn=said.append)
    assert ids(lake, others) == [1]
    assert "has columns that differ in case alone: V, v" in said[0]
    w.delete_subject(f"{w.topics[events].name}-value")
    w.table(table(events, {"id": "int8", "w": "text"}), partitions=1)
    with w.commit() as tx:
        tx.upsert(events, {"id": 3, "w": "w"})
    lake.changelog(unreadable="skip")
    assert ids(lake, events) == [1, 3]
    assert lake.spark.table(f"{lake.catalog}.twofold.quarantine").count() == 1


@pytest.mark.parametrize("trouble", ["type", pytest.param("retention", marks=pytest.mark.slow)])
def test_the_others_go_on_without_a_table_that_needs_a_new_one(lake: Lake, trouble: str) -> None:
    w = lake.writer
    events, others = (w.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "others"))
    written(lake, events, 1)
    lake.changelog()
    if trouble == "type":
        sql(lake, "ALTER TABLE {table} DROP COLUMN after")
        sql(lake, "ALTER TABLE {table} ADD COLUMN after int")
    for name in (events, others):
        written(lake, name, 2, 3)
    if trouble == "retention":
        lose(lake, events, before=3)
    for _ in range(2):
        with pytest.raises(TableRefused, match=r"\n.*\n.*RENAME TO"):
            lake.changelog()
    said: list[str] = []
    lake.changelog(on_table_error="go-on", warn=said.append)
    assert ids(lake, others) == [2, 3]
    assert len(said) == 1
    sql(lake, "ALTER TABLE {table} RENAME TO events_before")
    lake.changelog()
    assert ids(lake, events) == ([1, 2, 3] if trouble == "type" else [3])


def test_retention_that_comes_while_records_are_read_is_the_tables_trouble(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, others = (
        lake.writer.table(table(n, {"id": "int8", "v": "text"}), partitions=1) for n in ("events", "others")
    )
    committed = kafka_reader.read_committed

    def lost(*arguments: Any) -> Any:
        """Between the look at the offsets and the reading."""
        if arguments[2].endswith(".events"):
            lose(lake, events, before=3)
        return committed(*arguments)

    for name in (events, others):
        written(lake, name, 1)
    lake.changelog()
    for name in (events, others):
        written(lake, name, 2, 3)
    monkeypatch.setattr(kafka_reader, "read_committed", lost)
    said: list[str] = []
    lake.changelog(on_table_error="go-on", warn=said.append)
    assert ids(lake, others) == [1, 2, 3]
    assert len(said) == 1
    assert "while the job read them" in said[0]
