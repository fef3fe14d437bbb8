"""A backlog of commit records, whatever they hold: a bounded part of it is in the driver at once,
and it is applied in order."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame

from fixtures.spark import Lake
from helpers.spark.writer import table
from twofold_avro import records, schemas
from twofold_spark.sources import commit_topic, member_topics
from twofold_spark.sources.commit_records import OffsetRange
from twofold_spark.sources.registry import Registry


class _Counted(OffsetRange):
    """A range that says how many there are."""

    alive = most = 0

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        _Counted.alive += 1
        _Counted.most = max(_Counted.most, _Counted.alive)

    def __del__(self) -> None:
        _Counted.alive -= 1


def test_a_backlog_is_applied_with_a_bounded_number_of_ranges_in_the_driver(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Counted.alive = _Counted.most = 0
    monkeypatch.setattr(commit_topic, "OffsetRange", _Counted)
    monkeypatch.setattr(commit_topic, "COMMITS_PER_TASK", 10)
    monkeypatch.setattr(member_topics, "RANGES_PER_BATCH", 90)
    tasks: list[int] = []
    decoded = commit_topic._decode_rows

    def spy(batch: DataFrame, subject: Any) -> Any:
        tasks.append(batch.rdd.getNumPartitions())
        return decoded(batch, subject)

    monkeypatch.setattr(commit_topic, "_decode_rows", spy)
    w = lake.writer
    names = [w.table(table(name, {"id": "int8", "v": "int8"})) for name in ("a", "b")]
    for n in range(40):
        with w.commit() as tx:
            for name in names:
                # So many that each partition has some, whatever the keys' schema id makes of their
                # hashes.
                for i in range(60):
                    tx.upsert(name, {"id": i, "v": n})
    lake.mirror(tables_at_once=1)
    lake.assert_equal()
    batches = [(a.cut.sequence, a.changes) for a in lake.applied]
    assert [sequence for sequence, _ in batches] == [15, 30, 40], "batches of 90 ranges: six in each of 40 records"
    # The last record of the batch before is kept, a record more than the batch has been looked at,
    # and what is read of one table is joined: three ranges, and one in progress.
    assert 90 <= _Counted.most <= 90 + 6 + 6 + 4
    assert tasks == [8, 6, 3], "80 offsets, each record has a marker; then from the last record that had room"


def test_a_schema_that_comes_in_the_midst_of_the_records_is_asked_for(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_topic, "COMMITS_PER_TASK", 2)
    w, registry = lake.writer, Registry(lake.writer.registry)
    w.table(table("a", {"id": "int8"}))
    subject = registry.find_subject(f"{lake.prefix}.commits-value")
    assert subject is not None

    def commits(many: int) -> None:
        for _ in range(many):
            with w.commit() as tx:
                tx.upsert("a", {"id": 1})

    commits(3)
    known = schemas.fixed("commit")
    more = {"name": "more", "type": ["null", "string"], "default": None}
    w._commit_id = w._register(subject.name, {**known, "fields": [*known["fields"], more]})
    as_known = records.Commit.to_bytes
    monkeypatch.setattr(records.Commit, "to_bytes", lambda commit, identifier: as_known(commit, identifier) + b"\0")
    commits(4)
    w.visible()
    found = commit_topic.CommitTopic(lake.kafka, registry, lake.prefix).read_after(lake.spark, -1)
    assert [commit.sequence for commit in found] == list(range(1, 8))
    assert w._commit_id not in subject.ids
