"""How far a changelog's table is: of every partition the offset below which all committed changes are in the table.

It is told by the table itself, so that nothing else can be ahead of it or be lost:
- by the snapshot that appended the rows (`twofold.offsets` in its summary), in one commit with them;
- where compaction and `expire_snapshots` left no such snapshot, by the rows, which have `partition` and `offset`;
- and by a table property of the same name, which outlives both. It is written when the table is made, when a stretch had nothing to
  append, and when the table has come to rest; of a state that the table was taken back from it says nothing, though the snapshot that it
  was noted of may be gone: then Iceberg's numbers of snapshots, which only grow, tell whether the present one can have come from it.
What is larger counts, since each of them is true.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from twofold_spark.sinks import iceberg_tables
from twofold_spark.sources.table_topics import Offsets, Topic

OFFSETS = "twofold.offsets"
TOPIC_ID = "twofold.topic-id"


@dataclass(frozen=True, slots=True)
class Position:
    """How far a table is, as of one snapshot."""

    ends: Offsets
    snapshot: int | None
    """None of a table that has no rows yet."""
    topic_id: str
    """Whose offsets these are; empty if that was not noted."""
    number: int = 0
    """Iceberg's sequence number of the snapshot."""
    taken_back: bool = False
    """Whether the table's note is of a state that it was taken back from, and so says nothing."""


def beginning(topic: Topic, beginnings: Offsets) -> Position:
    """Of a table that is not there yet: where Kafka begins."""
    return Position(beginnings, None, topic.id)


def position_of(spark: SparkSession, table: str) -> Position | None:
    """None of a table that is not there."""
    if not spark.catalog.tableExists(table):
        return None
    loaded = iceberg_tables.load(spark, table)
    snapshot = iceberg_tables.current_snapshot(loaded)
    note = json.loads(loaded.properties().get(OFFSETS) or "{}")
    taken_back = bool(note) and not _is_of(spark, loaded, note)
    ends, noted = _ends_appended(spark, table, loaded), {} if taken_back else _ends(note.get("ends", {}))
    known = {partition: max(ends.get(partition, 0), noted.get(partition, 0)) for partition in {*ends, *noted}}
    number = loaded.currentSnapshot().sequenceNumber() if snapshot is not None else 0
    return Position(known, snapshot, loaded.properties().get(TOPIC_ID) or "", number, taken_back)


def properties(position: Position) -> dict[str, str]:
    """What a table notes of a position."""
    note = json.dumps({"snapshot": position.snapshot, "number": position.number, "ends": dict(position.ends)})
    return {OFFSETS: note, **({TOPIC_ID: position.topic_id} if position.topic_id else {})}


def note(spark: SparkSession, table: str, position: Position) -> None:
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({iceberg_tables.properties_sql(properties(position))})")


def _is_of(spark: SparkSession, loaded: Any, note: dict[str, Any]) -> bool:
    """Whether the table, as it is, came from the state that was noted."""
    noted: int | None = note["snapshot"]
    if noted is None:
        return True
    if loaded.currentSnapshot() is None:
        return False
    snapshots = spark._jvm.org.apache.iceberg.util.SnapshotUtil  # type: ignore[union-attr]
    if loaded.snapshot(noted) is not None:
        return bool(snapshots.isAncestorOf(loaded, noted))
    # An older version of this job noted no number.
    return bool(note.get("number", 0) < snapshots.oldestAncestor(loaded).sequenceNumber())


def _ends_appended(spark: SparkSession, table: str, loaded: Any) -> dict[int, int]:
    said = iceberg_tables.summary_value(loaded, OFFSETS)
    if said is not None:
        return _ends(json.loads(said))
    if loaded.currentSnapshot() is None:
        return {}
    rows = spark.table(table).groupBy("partition").agg((f.max("offset") + 1).alias("end")).collect()
    return {row["partition"]: row["end"] for row in rows}


def _ends(said: dict[str, int]) -> dict[int, int]:
    return {int(partition): end for partition, end in said.items()}
