"""The rows of the changelog's tables: one for each change."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from twofold_spark.sources import decoding
from twofold_spark.sources.registry import Subject

UNREADABLE = "twofold: unreadable"
"""An error of Spark with this text names the place of a record that cannot be decoded."""

_OF_GID = ("global_id", "branch")
_CHANGE: decoding.EnvelopeParts = {
    **decoding.CHANGE,
    "special": frozenset(),
    "source": frozenset({"lsn", "gid", "ts_us", *_OF_GID}),
    "transaction": frozenset({"id", "total_order"}),
}


def count_changes(records: DataFrame) -> tuple[frozenset[int], int]:
    """Return the schema ids of the records, and how many of them are no tombstones."""
    identifier = f.conv(f.hex(f.substring("value", 2, 4)), 16, 10).cast("long")
    row = records.agg(f.collect_set(identifier), f.count("value")).first()
    assert row is not None, "an aggregate of no rows is a row"
    return frozenset(row[0]), row[1]


def select_changelog_rows(records: DataFrame, subject: Subject, *, skip_unreadable: bool) -> DataFrame:
    """Decode the records into the changelog's rows.

    An unreadable record fails the read, or is skipped.
    """
    place = f.concat_ws("@", f.col("partition").cast("string"), f.col("offset").cast("string"))
    fail = f.raise_error(f.concat(f.lit(f"{UNREADABLE} "), place)).cast("string")
    op: Column = f.coalesce(f.col("e.op"), fail)
    decoded = (
        records.where(f.col("value").isNotNull())
        .withColumn("e", decoding.decode_envelope(f.col("value"), subject, _CHANGE))
        .where(f.lit(not skip_unreadable) | f.col("e.op").isNotNull())
    )
    # A connector that is older than this job does not write them.
    present = decoded.select("e.source.*").columns
    of_gid = (f.col(f"e.source.{name}") if name in present else f.lit(None).cast("string") for name in _OF_GID)
    return decoded.select(
        op.alias("op"),
        f.col("e.before"),
        f.col("e.after"),
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
    )
