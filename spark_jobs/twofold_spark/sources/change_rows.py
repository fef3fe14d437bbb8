"""The records of a topic as changes, and the rows that a change has."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_spark.sources import decoding
from twofold_spark.sources.registry import Subject


def decode_changes(raw: DataFrame, subject: Subject, parts: decoding.EnvelopeParts) -> DataFrame:
    """Decode records into columns: their place, and the envelope.

    `unreadable` marks a record that has no envelope.
    """
    decoded = raw.withColumn("e", decoding.decode_envelope(f.col("value"), subject, parts))
    unreadable = f.col("value").isNotNull() & f.col("e.op").isNull()
    return decoded.select(
        "partition", "offset", "key", f.length("value").alias("bytes"), unreadable.alias("unreadable"), "e.*"
    )


def drop_truncated(changes: DataFrame, truncates: Mapping[int, int]) -> DataFrame:
    """Keep the changes of rows that came after their partition's last truncate."""
    rows = changes.where(f.col("op").isNotNull() & (f.col("op") != "t"))
    if not truncates:
        return rows
    last = f.coalesce(*(f.when(f.col("partition") == p, f.lit(o)) for p, o in sorted(truncates.items())), f.lit(-1))
    return rows.where(f.col("offset") > last)


def row_image(envelope: str = "") -> Column:
    """The row of a change: the new row, or the old row of a delete."""
    op, before, after = (f.col(envelope + name) for name in ("op", "before", "after"))
    return f.when(op == "d", before).otherwise(after)


def full_new_row(columns: StructType) -> Column:
    """The new row of a keyless table's change.

    Unchanged values that were not sent come from the old row.
    """
    return f.struct(
        *(
            f.when(f.array_contains("unchanged", c), f.col("before")[c]).otherwise(f.col("after")[c]).alias(c)
            for c in columns.names
        )
    )
