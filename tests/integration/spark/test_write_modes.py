"""What merges write into Iceberg's tables, by the mode and the table's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fixtures.spark import Killed, Lake
from helpers.spark.writer import table
from twofold_spark.sinks import merge_plan
from twofold_spark.sinks.iceberg_sink import IcebergSink
from twofold_spark.sinks.interface import MirrorTable, Sink, TableBatch
from twofold_spark.sinks.merge_plan import WriteMode

ROWS = table("rows", {"id": "int8", "v": "text"})


@dataclass(frozen=True, slots=True)
class Written:
    mode: str
    data_files: int
    delete_files: int


def _written(lake: Lake) -> Written:
    name = f"{lake.catalog}.public.rows"
    files = [row["content"] for row in lake.spark.table(f"{name}.files").collect()]
    return Written(lake.merge_mode("rows"), files.count(0), len(files) - files.count(0))


def _upsert(lake: Lake, first: int, end: int, value: str) -> None:
    with lake.writer.commit() as tx:
        for n in range(first, end):
            tx.upsert("rows", {"id": n, "v": value})
    lake.mirror()
    lake.assert_equal()


def test_a_table_is_rewritten_while_it_is_small(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_plan, "_SMALL_ROWS", 1_000)
    lake.writer.table(ROWS)
    for number in range(2):
        _upsert(lake, 0, 50, f"{number}")
    assert _written(lake) == Written("copy-on-write", data_files=1, delete_files=0)
    _upsert(lake, 50, 1_200, "many")
    grown = _written(lake)
    assert (grown.mode, grown.delete_files) == ("copy-on-write", 0), "it was small before this batch"
    _upsert(lake, 0, 10, "late")
    assert _written(lake) == Written("merge-on-read", grown.data_files + 1, delete_files=1)
    _upsert(lake, 0, 1_100, "most of them")
    rewritten = _written(lake)
    assert (rewritten.mode, rewritten.delete_files) == ("copy-on-write", 0)
    _upsert(lake, 0, 10, "late again")
    assert _written(lake) == Written("merge-on-read", rewritten.data_files + 1, delete_files=1)
    for first, end in ((60, 400), (400, 800), (800, 1_200)):
        with lake.writer.commit() as tx:
            for key in range(first, end):
                tx.delete("rows", key)
    lake.mirror(batch_rows=400, maintain_every=1)
    _upsert(lake, 0, 10, "few")
    assert _written(lake).mode == "copy-on-write"
    _upsert(lake, 0, 60, "all of them")
    assert _written(lake) == Written("copy-on-write", data_files=1, delete_files=0)


@pytest.mark.parametrize(
    ("mode", "then"),
    [("merge-on-read", (3, True)), pytest.param("copy-on-write", (1, False), marks=pytest.mark.slow)],
    ids=str,
)
def test_what_is_asked_for_also_counts_for_tables_that_exist(
    lake: Lake, mode: WriteMode, then: tuple[int, bool]
) -> None:
    lake.writer.table(ROWS, partitions=1)
    lake.write_mode = "copy-on-write" if mode == "merge-on-read" else "merge-on-read"
    _upsert(lake, 0, 50, "one")
    lake.write_mode = mode
    _upsert(lake, 0, 10, "two")
    _upsert(lake, 10, 20, "three")
    found = _written(lake)
    assert (found.mode, found.data_files, found.delete_files > 0) == (mode, *then)


@pytest.mark.parametrize(
    ("first", "then"), [pytest.param(3, 12, marks=pytest.mark.slow, id="rewrites"), pytest.param(12, 3, id="marks")]
)
def test_a_job_that_is_killed_between_the_mode_and_the_merge(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, first: int, then: int
) -> None:
    """The next start repeats the batch; the one after it changes the mode back."""
    monkeypatch.setattr(merge_plan, "_SMALL_ROWS", 0)
    lake.writer.table(ROWS, partitions=1)
    _upsert(lake, 0, 20, "one")
    _upsert(lake, 0, first, "two")
    with lake.writer.commit() as tx:
        for n in range(then):
            tx.upsert("rows", {"id": n, "v": "three"})

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(IcebergSink, "_merge", killed)
        with pytest.raises(Killed):
            lake.mirror()
    rewritten, marked = Written("copy-on-write", 1, delete_files=0), Written("merge-on-read", 2, delete_files=1)
    of_this, of_next = (rewritten, marked) if then > first else (marked, rewritten)
    assert _written(lake).mode == of_this.mode
    lake.mirror()
    lake.assert_equal()
    assert _written(lake) == of_this
    _upsert(lake, 0, first, "four")
    assert _written(lake) == of_next


class _Watched:
    """A sink, and how the sessions of its merges were set."""

    def __init__(self, sink: Sink, seen: list[str | None]) -> None:
        self._sink = sink
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def merge(self, table: MirrorTable, batch: TableBatch, *, sequence: int) -> None:
        self._sink.merge(table, batch, sequence=sequence)
        name = "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled"
        self._seen.append(batch.rows.sparkSession.conf.get(name))


@pytest.mark.parametrize(
    ("mode", "looks"), [("by-size", "false"), ("merge-on-read", "false"), ("copy-on-write", "true")]
)
def test_spark_looks_for_changed_files_first_only_where_large_tables_are_rewritten(
    lake: Lake, mode: WriteMode, looks: str
) -> None:
    lake.writer.table(ROWS)
    lake.write_mode = mode
    with lake.writer.commit() as tx:
        tx.upsert("rows", {"id": 1, "v": "one"})
    seen: list[str | None] = []
    lake.mirror(around=lambda sink, _: _Watched(sink, seen))
    assert seen == [looks]
