"""One story through every sink: whatever the connector writes, the tables come out as the writer's
model has them."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter

import psycopg
import pytest

from fixtures.spark import KEPT_CORE, KEPT_SHORT, Lake
from helpers.spark.writer import table
from twofold_avro.records import SkippedRow
from twofold_spark.errors import Refused, SetupError, TableRefused
from twofold_spark.sinks.cuts import MissingRow
from twofold_spark.sinks.sink_choice import SinkChoice

DOCS = table("docs", {"id": "int8", "title": "text", "body": "text"})
LINES = table("lines", {"a": "int4", "b": "text"}, key=())
PAGES = table("pages", {"path": "text", "version": "int4"}, key=("path",))
CELLS = table("cells", {"x": "int4", "y": "text", "value": "int4"}, key=("x", "y"))
PERIODS = table("periods", {"until": "date", "name": "text"}, key=("until",))


@pytest.mark.parametrize("kept", KEPT_CORE, indirect=True)
def test_the_tables_are_what_was_committed(kept: Lake) -> None:
    """Also where rows are told apart by keys that their type cannot say."""
    w = kept.writer
    docs, lines, periods = w.table(DOCS), w.table(LINES, partitions=1), w.table(PERIODS)
    once, twice = {"a": 1, "b": None}, {"a": 2, "b": "x"}

    def period(until: str, name: str, op: str) -> None:
        """Both infinities are null in the row; the message key has their text."""
        tx._record(periods, op, {"until": until}, None, {"until": None, "name": name}, w.lsn())

    with w.commit() as tx:
        for i in range(20):
            tx.upsert(docs, {"id": i, "title": f"t{i}", "body": f"b{i}"})
        for row in (once, twice, twice):
            tx.keyless(lines, "c", after=row)
        for until in ("infinity", "-infinity"):
            period(until, f"first {until}", "c")
    kept.mirror()
    with w.abort() as tx:
        tx.upsert(docs, {"id": 1, "title": "aborted", "body": "aborted"})
    w.evolve(docs, more="int4")
    with w.commit() as tx:
        tx.upsert(docs, {"id": 1, "title": "short", "more": 4}, unchanged=("body",))
        tx.rekey(docs, 2, {"id": 200, "title": "was 2", "more": None}, unchanged=("body",))
        tx.delete(docs, 3, tombstone=True)
        tx.keyless(lines, "d", before=twice)
        tx.keyless(lines, "u", before=once, after={"a": 3, "b": None})
        period("infinity", "second", "u")
        period("infinity", "third", "u")
    kept.checkpoint = "another: the first is lost"
    kept.mirror(batch_rows=1)
    w.model[docs] = {key: {"more": None, **row} for key, row in w.model[docs].items()}
    assert kept.rows(docs) == w.model[docs]
    copies = Counter({(row["a"], row["b"]): row["_copies"] for row in kept.table(lines).collect()})
    assert copies == {(2, "x"): 1, (3, None): 1}
    told_apart = {row["_key_until"]: row["name"] for row in kept.table(periods).collect()}
    assert told_apart == {"-infinity": "first -infinity", "infinity": "third"}
    assert kept.cut().stale == ()
    assert kept.cut().skipped == ()
    w.skipped = (SkippedRow(w.topics[docs].name, 0x1A_0000_0BC0, b"\x02"), SkippedRow(w.topics[lines].name, 7, None))
    w.stale = (w.topics[docs].name, "bank.public.not_in_the_mirror")
    with w.commit() as tx:
        tx.truncate(docs)
        tx.upsert(docs, {"id": 7, "title": "after", "body": "b", "more": 1})
    kept.mirror()
    assert kept.cut().stale == ("public.docs",)
    assert kept.cut().skipped == (
        MissingRow("public.docs", 0x1A_0000_0BC0, b"\x02"),
        MissingRow("public.lines", 7, None),
    )
    assert kept.rows(docs) == w.model[docs] == {7: {"id": 7, "title": "after", "body": "b", "more": 1}}
    assert [a.cut.sequence for a in kept.applied] == [1, 2, 3]
    assert kept.cut().cut.sequence == 3


def test_a_key_is_found_in_a_large_table_whatever_its_text_means_to_spark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are written into the statement, where Spark looks for variables."""
    monkeypatch.setattr("twofold_spark.sinks.merge_plan.SMALL_TABLE_ROWS", 0)
    w = lake.writer
    pages = w.table(PAGES)
    paths = ["/users/${id}/edit", "${env:HOME}", "a'b\\c", "\\u0024{id}", '"', "%s", "$", ""]
    for version in range(2):
        with w.commit() as tx:
            for path in paths:
                tx.upsert(pages, {"path": path, "version": version})
        lake.mirror()
    assert lake.rows(pages) == w.model[pages]
    with w.commit() as tx:
        for path in paths:
            tx.delete(pages, path)
    lake.mirror()
    assert lake.table(pages).count() == 0


@pytest.mark.slow
def test_many_keys_find_their_rows_in_a_large_table_by_a_filter(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twofold_spark.sinks.merge_plan.SMALL_TABLE_ROWS", 100)
    monkeypatch.setattr("twofold_spark.sinks.merge_plan._LISTED_KEYS", 10)
    lake.write_mode = "merge-on-read"
    w = lake.writer
    docs, cells = w.table(DOCS), w.table(CELLS)
    with w.commit() as tx:
        for i in range(500):
            tx.upsert(docs, {"id": i, "title": f"t{i}", "body": f"b{i}"})
            tx.upsert(cells, {"x": i, "y": f"{i % 7}", "value": i})
    lake.mirror()
    assert not lake.planned("might_contain")
    with w.commit() as tx:
        for i in range(100, 150):
            tx.upsert(docs, {"id": i, "title": "short", "body": f"b{i}"}, unchanged=("body",))
            tx.delete(docs, i + 100)
            tx.upsert(docs, {"id": i + 500, "title": "new", "body": f"b{i}"})
            tx.upsert(cells, {"x": i, "y": f"{i % 7}", "value": -i})
            tx.upsert(cells, {"x": i, "y": "new", "value": i})
    lake.mirror()
    assert lake.planned("might_contain") == 2
    lake.assert_equal()
    with w.commit() as tx:
        for i in range(100, 150):
            tx.rekey(docs, i + 200, {"id": i + 1000, "title": "moved", "body": f"b{i + 200}"}, unchanged=("body",))
        tx.upsert(cells, {"x": 1, "y": "1", "value": 0})
    lake.mirror()
    lake.assert_equal()
    assert lake.planned("might_contain") == 2, "few keys are named, and what is carried over is joined"


@pytest.mark.parametrize("kept", KEPT_SHORT, indirect=True)
def test_maintenance_keeps_the_last_cut_and_forgets_what_is_older(kept: Lake) -> None:
    w = kept.writer
    docs = w.table(DOCS)
    for version in range(3):
        with w.commit() as tx:
            for i in range(3):
                tx.upsert(docs, {"id": i, "title": f"t{version}", "body": None})
    kept.mirror(batch_rows=1, maintain_every=2, keep_cuts=dt.timedelta(0))
    with w.commit() as tx:
        tx.upsert(docs, {"id": 1, "title": "after", "body": "b"})
    kept.mirror()
    assert kept.rows(docs) == w.model[docs]
    if kept.choice.name != "jdbc":
        with pytest.raises(SetupError, match="no cut is published"):
            kept.cut(sequence=1)
        assert kept.rows(docs, kept.cut(sequence=2)["public.docs"])[1]["title"] == "t1"


@pytest.mark.parametrize("kept", KEPT_SHORT, indirect=True)
def test_a_table_that_cannot_follow_is_stopped_alone_until_it_is_reloaded(kept: Lake) -> None:
    w = kept.writer
    things, others = (w.table(table(n, {"id": "int8", "size": "int4"}), partitions=1) for n in ("things", "others"))

    def both(**row: object) -> None:
        with w.commit() as tx:
            tx.upsert(things, dict(row))
            tx.upsert(others, {"id": row["id"], "size": 1})

    both(id=1, size=1)
    kept.mirror()
    w.drop(things, "size")
    w.evolve(things, size="text")
    both(id=2, size="large")
    with pytest.raises(TableRefused, match="which is not a wider type"):
        kept.mirror()
    said: list[str] = []
    kept.mirror(on_table_error="go-on", warn=said.append)
    both(id=3, size="small")
    kept.mirror(on_table_error="go-on", warn=said.append)  # a new process: it knows from the cut
    assert len(said) == 1
    assert kept.rows(others) == w.model[others]
    assert set(kept.rows(others)) == {1, 2, 3}
    assert kept.cut().cut.stopped == ("public.things",)
    with pytest.raises(SetupError, match=r"twofold backfill start public\.things"):
        kept.cut()["public.things"]

    kept.drop(things)
    with w.commit() as tx:
        rows = dict(w.model[things])
        tx.truncate(things)
        for row in rows.values():
            tx.upsert(things, {"id": row["id"], "size": str(row["size"])}, op="r")
    kept.mirror()
    assert kept.cut().cut.stopped == ()
    assert kept.rows(things, kept.cut()["public.things"]) == w.model[things]
    kept.assert_equal()


@pytest.mark.parametrize("kept", KEPT_SHORT, indirect=True)
def test_a_row_that_a_keyless_table_does_not_have_is_not_taken_from_it_in_silence(kept: Lake) -> None:
    """A change of its columns makes PostgreSQL's old rows others than the mirror's; the same within
    one batch, and beyond a truncate."""
    w = kept.writer
    names = ("dropped", "added", "fewer", "fresh", "again", "fine")
    columns = {"a": "int4", "b": "text"}
    dropped, added, fewer, fresh, again, fine = (w.table(table(n, columns, key=()), partitions=1) for n in names)
    x, y = {"a": 1, "b": "x"}, {"a": 2, "b": "y"}
    with w.commit() as tx:
        for name in (dropped, added, fewer, again, fine):
            for row in (x, x, y):
                tx.keyless(name, "c", after=row)
    kept.mirror()
    with w.commit() as tx:
        tx.truncate(again)
        for name in (fresh, again):
            tx.keyless(name, "c", after=x)
        for name in (dropped, fresh, again):
            w.drop(name, "b")
            tx.keyless(name, "d", before={"a": 1})
        w.evolve(added, c="int4")
        tx.keyless(added, "u", before={**x, "c": 7}, after={"a": 3, "b": "x", "c": 7})
        for _ in range(3):
            tx.keyless(fewer, "d", before=x)
        for row in (x, x):
            tx.keyless(fine, "d", before=row)
    with pytest.raises(TableRefused, match="twofold backfill start"):
        kept.mirror()
    said: list[str] = []
    kept.mirror(on_table_error="go-on", warn=said.append)
    refused = sorted(f"public.{name}" for name in names if name != fine)
    assert kept.cut().cut.stopped == tuple(refused)
    assert sorted(repair.group(1) for text in said if (repair := re.search(r"backfill start (\S+)`", text))) == refused
    assert [row.asDict() for row in kept.table(fine).collect()] == [{**y, "_copies": 1}]
    if kept.choice.name == "iceberg":  # the others' tables of no cut have no name
        assert {row["_copies"] for row in kept.table(dropped).collect()} == {1, 2}


@pytest.mark.slow
def test_a_reader_of_postgresql_sees_the_cut_of_its_snapshot_also_across_a_truncate(lake: Lake, database: str) -> None:
    lake.choice = SinkChoice("jdbc", database)
    w = lake.writer
    docs = w.table(DOCS)
    with w.commit() as tx:
        for i in range(3):
            tx.upsert(docs, {"id": i, "title": "t", "body": None})
    lake.mirror()
    with psycopg.connect(database) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert reader.execute("SELECT max(sequence) FROM twofold.cuts").fetchone() == (1,)
        with w.commit() as tx:
            tx.truncate(docs)
            tx.upsert(docs, {"id": 7, "title": "after", "body": None})
        lake.mirror()
        assert reader.execute("SELECT id FROM docs ORDER BY id").fetchall() == [(0,), (1,), (2,)]
    lake.assert_equal()
    assert set(lake.rows(docs)) == {7}


def test_a_database_is_not_mirrored_into_itself(lake: Lake, database: str) -> None:
    lake.choice = SinkChoice("jdbc", database)
    w = lake.writer
    docs = w.table(DOCS)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE docs (id int8 PRIMARY KEY, title text, body text)")
        with w.commit() as tx:
            tx.upsert(docs, {"id": 1, "title": "t", "body": "b"})
        with pytest.raises(Refused, match="that the mirror did not create"):
            lake.mirror()
        assert connection.execute("SELECT count(*) FROM docs").fetchone() == (0,)
