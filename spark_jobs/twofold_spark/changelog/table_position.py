"""How far a changelog's table is: below these offsets it has all committed changes.

The table itself says so, in three places. So nothing else can be ahead of it, or be lost.

- The snapshot that appended the rows says it (`twofold.offsets` in its summary), in one commit with
  them.
- If compaction and `expire_snapshots` left no such snapshot, the rows say it: they have `partition`
  and `offset`.
- A table property of the same name says it, and outlives both. It is written when the table is
  created, when a range had nothing to append, and when nothing was appended for a while.

The largest value counts, because each of them is true. There is one exception: the property says
nothing if the table was rolled back from the state that it describes. The snapshot of that state
may be gone. Then Iceberg's sequence numbers, which only grow, tell whether the present snapshot can
descend from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.iceberg_repeated import find_broken_head, give_up
from twofold_spark.sources.table_topics import Offsets, TopicState

OFFSETS = "twofold.offsets"
TOPIC_ID = "twofold.topic-id"


@dataclass(frozen=True, slots=True)
class TablePosition:
    """How far a table is, as of one snapshot."""

    ends: Offsets
    snapshot: int | None
    """None of a table without rows."""
    topic_id: str
    """The topic of these offsets; empty if the table does not say."""
    number: int = 0
    """Iceberg's sequence number of the snapshot."""
    rolled_back: bool = False
    """Whether the table was rolled back from the state that its property describes."""


def initial_position(topic: TopicState, first_offsets: Offsets) -> TablePosition:
    """Return the position of a table that does not exist yet: where Kafka begins."""
    return TablePosition(first_offsets, None, topic.id)


def read_position(spark: SparkSession, table: str) -> TablePosition | None:
    """Read a table's position; None if the table does not exist.

    An append whose files Iceberg has deleted is given up before.
    """
    if not spark.catalog.tableExists(table):
        return None
    loaded = iceberg_tables.load_table(spark, table)
    if broken := find_broken_head(loaded):
        give_up(spark, loaded, broken, iceberg_tables.MAIN)
    snapshot = iceberg_tables.current_snapshot(loaded)
    recorded = json.loads(loaded.properties().get(OFFSETS) or "{}")
    rolled_back = bool(recorded) and not _descends_from(spark, loaded, recorded)
    from_property = {} if rolled_back else _parse_ends(recorded.get("ends", {}))
    from_rows = _read_appended_ends(spark, table, loaded)
    ends = {p: max(from_rows.get(p, 0), from_property.get(p, 0)) for p in {*from_rows, *from_property}}
    number = loaded.currentSnapshot().sequenceNumber() if snapshot is not None else 0
    return TablePosition(ends, snapshot, loaded.properties().get(TOPIC_ID) or "", number, rolled_back)


def position_properties(position: TablePosition) -> dict[str, str]:
    """Return the table's properties that record a position."""
    recorded = json.dumps({"snapshot": position.snapshot, "number": position.number, "ends": dict(position.ends)})
    return {OFFSETS: recorded, **({TOPIC_ID: position.topic_id} if position.topic_id else {})}


def write_position(spark: SparkSession, table: str, position: TablePosition) -> None:
    iceberg_tables.set_properties(spark, table, position_properties(position))


def _descends_from(spark: SparkSession, loaded: Any, recorded: dict[str, Any]) -> bool:
    """Whether the table's present state descends from the recorded one."""
    snapshot: int | None = recorded["snapshot"]
    if snapshot is None:
        return True
    if loaded.currentSnapshot() is None:
        return False
    snapshots = spark._jvm.org.apache.iceberg.util.SnapshotUtil  # type: ignore[union-attr]
    if loaded.snapshot(snapshot) is not None:
        return bool(snapshots.isAncestorOf(loaded, snapshot))
    # A table may have been recorded without a number.
    return bool(recorded.get("number", 0) < snapshots.oldestAncestor(loaded).sequenceNumber())


def _read_appended_ends(spark: SparkSession, table: str, loaded: Any) -> dict[int, int]:
    summary = iceberg_tables.read_summary(loaded, OFFSETS)
    if summary is not None:
        return _parse_ends(json.loads(summary))
    if loaded.currentSnapshot() is None:
        return {}
    rows = spark.table(table).groupBy("partition").agg((f.max("offset") + 1).alias("end")).collect()
    return {row["partition"]: row["end"] for row in rows}


def _parse_ends(ends: dict[str, int]) -> dict[int, int]:
    return {int(partition): end for partition, end in ends.items()}
