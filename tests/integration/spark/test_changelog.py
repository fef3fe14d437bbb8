"""The changelog job against a real broker, a real registry and real Iceberg tables."""

from __future__ import annotations

import pytest

from fix_spark import Lake
from spark_writer import table
from twofold_spark.errors import Refused


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
