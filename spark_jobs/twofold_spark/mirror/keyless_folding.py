"""Folds the batch of a table without a key, which is a multiset of rows."""

from __future__ import annotations

from contextlib import ExitStack
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from twofold_spark.mirror.folded_rows import FoldedRows, cache_until_closed, no_unchanged, table_columns
from twofold_spark.row_columns import COPIES, OP
from twofold_spark.sinks.merge_sql import SPARK, find_floats
from twofold_spark.sources import decoding
from twofold_spark.sources.decoding import decode_changes, drop_truncated, full_new_row
from twofold_spark.sources.registry import Subject


def _identity(row: StructType, columns: StructType) -> Column:
    """Return what tells two rows apart: 0 and -0 are equal floats, and two values of a row."""
    floats = find_floats(columns)
    return f.struct(
        *(
            f.expr(SPARK.float_text(f"x.image.{SPARK.quote(name)}", floats[name])).alias(name)
            if name in floats
            else f.col("x.image")[name].alias(name)
            for name in row.names
        )
    ).alias("_identity")


def fold_keyless(raw: DataFrame, subject: Subject, caches: ExitStack) -> FoldedRows:
    """Return each distinct row, and in `_copies` by how many copies it grows or shrinks.

    Updates and deletes have the whole old row (REPLICA IDENTITY FULL, which PostgreSQL demands
    here). So an unchanged value that was not sent is in `before`.
    """
    records = cache_until_closed(decode_changes(raw, subject, decoding.CHANGE), caches)
    found = (
        records.groupBy("partition")
        .agg(
            f.count("*").alias("n"),
            f.sum(f.col("unreadable").cast("long")).alias("unreadable"),
            f.max(f.when(f.col("op") == "t", f.col("offset"))).alias("truncate"),
            f.sum("bytes").alias("bytes"),
            f.count("bytes").alias("changes"),
        )
        .collect()
    )
    truncates = {row["partition"]: row["truncate"] for row in found if row["truncate"] is not None}
    row = cast("StructType", records.schema["after"].dataType)
    columns = table_columns(subject, row, StructField(COPIES, LongType()))
    removed = f.when(f.col("op").isin("u", "d"), f.struct(f.lit(-1).alias("n"), f.col("before").alias("image")))
    added = f.when(f.col("op") != "d", f.struct(f.lit(1).alias("n"), full_new_row(row).alias("image")))
    rows = (
        drop_truncated(records, truncates)
        .select(f.explode(f.array_compact(f.array(removed, added))).alias("x"))
        .groupBy(_identity(row, columns))
        .agg(f.first("x.image").alias("image"), f.sum("x.n").alias(COPIES))
        .where(f.col(COPIES) != 0)
        .select("image.*", COPIES, f.when(f.col(COPIES) < 0, "d").otherwise("u").alias(OP), no_unchanged())
    )
    return FoldedRows(
        rows=rows,
        columns=columns,
        counts={row["partition"]: row["n"] for row in found},
        changes=sum(row["changes"] for row in found),
        unreadable=sum(row["unreadable"] for row in found),
        truncated=bool(truncates),
        unchanged=(),
        bytes=sum(row["bytes"] or 0 for row in found),
    )
