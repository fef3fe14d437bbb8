"""How far a changelog's table is: below these offsets it has all committed changes.

The table itself says so, in three places. So nothing else can be ahead of it, or be lost.

- The snapshot that appended the rows says it (`twofold.offsets` in its summary), in one commit with
  them. In a sharded table it says it of all members, also of those that had no rows.
- If compaction and `expire_snapshots` left no such snapshot, the rows say it: they have `partition`
  and `offset`, and in a sharded table the member.
- A table property of the same name says it, and outlives both. It is written when the table is
  created, when a range had nothing to append, when nothing was appended for a while, and at the
  start of a job behind one that was killed.

The largest value counts, because each of them is true. There is one exception: the property says
nothing if the table was rolled back from the state that it describes. The snapshot of that state
may be gone. Then Iceberg's sequence numbers, which only grow, tell whether the present snapshot can
descend from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from twofold_spark.changelog.changelog_tables import ONLY, MemberOffsets, MemberPartition, TableTopics
from twofold_spark.row_columns import MEMBER
from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.cut_rows import TOPIC
from twofold_spark.sinks.iceberg_commits import find_broken_head, give_up

OFFSETS = "twofold.offsets"
TOPIC_ID = "twofold.topic-id"
"""The property of a topic's id; of a member's topic the member's prefix follows, behind a slash."""


@dataclass(frozen=True, slots=True)
class TablePosition:
    """How far a table is, as of one snapshot."""

    ends: MemberOffsets
    snapshot: int | None
    """None of a table without rows."""
    topic_ids: Mapping[str, str]
    """By member, the topics of these offsets, as far as the table says."""
    is_sharded: bool
    """Whether the table has the member as a column."""
    topic: str = ""
    """The `ChangelogTable.name` that it was made for; empty if it does not say so."""
    number: int = 0
    """Iceberg's sequence number of the snapshot."""
    rolled_back: bool = False
    """Whether the table was rolled back from the state that its property describes."""
    is_recorded: bool = False
    """Whether the property says these ends."""


def initial_position(state: TableTopics, first_offsets: MemberOffsets) -> TablePosition:
    """Return the position of a table that does not exist yet: where Kafka begins."""
    return TablePosition(
        first_offsets, None, state.topic_ids, state.table.is_sharded, state.table.name, is_recorded=True
    )


def join_members(position: TablePosition, first_offsets: MemberOffsets) -> TablePosition:
    """Let members that a sharded table knows nothing of begin where Kafka does."""
    known = {*position.topic_ids, *(place.member for place in position.ends)}
    begun = {place: first for place, first in first_offsets.items() if place.member not in known}
    return replace(position, ends={**position.ends, **begun}) if position.is_sharded else position


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
    from_property = {} if rolled_back else parse_ends(recorded.get("ends", {}))
    from_rows = _read_appended_ends(spark, table, loaded)
    ends = {p: max(from_rows.get(p, 0), from_property.get(p, 0)) for p in {*from_rows, *from_property}}
    number = loaded.currentSnapshot().sequenceNumber() if snapshot is not None else 0
    return TablePosition(
        ends,
        snapshot,
        _read_topic_ids(loaded),
        _has_members(loaded),
        topic=str(loaded.properties().get(TOPIC) or ""),
        number=number,
        rolled_back=rolled_back,
        is_recorded=from_property == ends,
    )


def position_properties(position: TablePosition) -> dict[str, str]:
    recorded = {"snapshot": position.snapshot, "number": position.number, "ends": format_ends(position.ends)}
    return {OFFSETS: json.dumps(recorded), **{_id_property(m): i for m, i in position.topic_ids.items()}}


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


def _read_appended_ends(spark: SparkSession, table: str, loaded: Any) -> dict[MemberPartition, int]:
    summary = iceberg_tables.read_summary(loaded, OFFSETS)
    if summary is not None:
        return parse_ends(json.loads(summary))
    if loaded.currentSnapshot() is None:
        return {}
    member = f.col(MEMBER) if _has_members(loaded) else f.lit(ONLY)
    ends = (f.max("offset") + 1).alias("end")
    rows = spark.table(table).groupBy(member.alias("member"), "partition").agg(ends).collect()
    return {MemberPartition(row["member"], row["partition"]): row["end"] for row in rows}


def _has_members(loaded: Any) -> bool:
    return loaded.schema().findField(MEMBER) is not None


def _id_property(member: str) -> str:
    return TOPIC_ID if member == ONLY else f"{TOPIC_ID}/{member}"


def _read_topic_ids(loaded: Any) -> dict[str, str]:
    names = (name for name in loaded.properties() if name.partition("/")[0] == TOPIC_ID)
    return {name.partition("/")[2]: str(loaded.properties().get(name)) for name in names}


def format_ends(ends: MemberOffsets) -> dict[str, int]:
    """Format offsets for JSON: `0` is a partition, and `east/0` one of a member's topic."""
    return {f"{member}/{partition}" if member else f"{partition}": end for (member, partition), end in ends.items()}


def parse_ends(ends: Mapping[str, int]) -> dict[MemberPartition, int]:
    """Parse what `format_ends` has made."""
    places = {name: name.rpartition("/") for name in ends}
    return {MemberPartition(member, int(partition)): ends[name] for name, (member, _, partition) in places.items()}
