"""From a topic's records to the changelog's rows.

Each change becomes a row. `op`, `before` and `after` say what changed. `lsn`, `transaction_id`,
`total_order`, `gid` and `source_us` are its place in the source. For a gid in a known form there
are also `global_id` and `branch`. `partition` and `offset` are its place in Kafka, with `_member`,
the topic's prefix, in a sharded table. Tombstones only repeat a delete, and are not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from twofold_spark.changelog.changelog_tables import ONLY, ChangelogTable
from twofold_spark.row_columns import MEMBER
from twofold_spark.sinks import column_changes
from twofold_spark.sources import decoding
from twofold_spark.sources.registry import Subject

UNREADABLE = "twofold: unreadable"
"""An error of Spark with this text names the place of a record that cannot be decoded."""

_IMAGES = ("before", "after")
_OF_GID = ("global_id", "branch")
_CHANGE: decoding.EnvelopeParts = {
    **decoding.CHANGE,
    "special": frozenset(),
    "source": frozenset({"lsn", "gid", "ts_us", *_OF_GID}),
    "transaction": frozenset({"id", "total_order"}),
}


@dataclass(frozen=True, slots=True)
class MemberRecords:
    """Records of one of a table's topics."""

    member: str
    """Its prefix; `ONLY` of a table that is not sharded."""
    topic: str
    records: DataFrame
    ids: frozenset[int] = frozenset()
    """The schema ids that they have, as far as they were counted."""


class Counted(NamedTuple):
    """What is counted in a member's records."""

    ids: frozenset[int]
    changes: int
    """Without tombstones, which are no changes."""


def count_changes(records: Iterable[MemberRecords]) -> dict[str, Counted]:
    """Count the changes of each member that has some."""
    values = (each.records.select(f.lit(each.member).alias("member"), "value") for each in records)
    identifier = decoding.schema_id(f.col("value"))
    counted = reduce(DataFrame.union, values).where(f.col("value").isNotNull()).groupBy("member")
    rows = counted.agg(f.collect_set(identifier), f.count("value")).collect()
    return {row[0]: Counted(frozenset(row[1]), row[2]) for row in rows}


def select_changelog_rows(each: MemberRecords, subject: Subject, *, skip_unreadable: bool) -> DataFrame:
    """Decode the records into the changelog's rows.

    An unreadable record fails the read, or is skipped.
    """
    place = f.concat(f.lit(f"{UNREADABLE} {each.topic}-"), f.col("partition"), f.lit("@"), f.col("offset"))
    op: Column = f.coalesce(f.col("e.op"), f.raise_error(place).cast("string"))
    decoded = (
        each.records.where(f.col("value").isNotNull())
        .withColumn("e", decoding.decode_envelope(f.col("value"), _CHANGE, subject))
        .where(f.lit(not skip_unreadable) | f.col("e.op").isNotNull())
    )
    # A connector that is older than this job does not write them.
    present = decoded.select("e.source.*").columns
    of_gid = (f.col(f"e.source.{name}") if name in present else f.lit(None).cast("string") for name in _OF_GID)
    return decoded.select(
        op.alias("op"),
        *(f.col(f"e.{name}") for name in _IMAGES),
        f.col("e.source.lsn").alias("lsn"),
        f.col("e.transaction.id").alias("transaction_id"),
        f.col("e.transaction.total_order").alias("total_order"),
        f.col("e.source.gid").alias("gid"),
        f.col("e.source.ts_us").alias("source_us"),
        f.col("e.unchanged"),
        f.col("e.special"),
        f.col("partition"),
        f.col("offset"),
        *(column.alias(name) for name, column in zip(_OF_GID, of_gid, strict=True)),
        *(f.lit(member).alias(MEMBER) for member in (each.member,) if member != ONLY),
    )


def unite_columns(table: ChangelogTable, shards: Sequence[StructType]) -> StructType:
    """Return the changelog's columns, with all shards' columns in `before` and `after`."""
    united = shards[0]
    if len(shards) > 1:
        images = {
            name: column_changes.unite_columns(
                table.label,
                (cast("StructType", columns[name].dataType) for columns in shards),
                refuse=table.refuse_type,
            )
            for name in _IMAGES
        }
        united = StructType([StructField(c.name, images.get(c.name, c.dataType), metadata=c.metadata) for c in united])
    names = cast("StructType", united["after"].dataType).names
    counts = Counter(name.lower() for name in names)
    if twice := sorted(name for name in names if counts[name.lower()] > 1):
        raise table.refuse_case(twice)
    return united
