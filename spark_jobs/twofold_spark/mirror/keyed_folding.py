"""Folds the batch of a table with a key: the last state of every key.

For one key the order of offsets is the order of commits (the connector's promise 3), and a key lies
in one partition. So the last offset wins. One aggregation finds it, and counts what each partition
holds. MERGE never gets two rows of one key: on an update it would refuse them, and it would
silently insert both if they are new.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import cast

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from twofold_spark.mirror import toast_values
from twofold_spark.mirror.folded_rows import FoldedRows, cache_until_closed, no_unchanged, table_columns
from twofold_spark.row_columns import KEY, KEY_TEXT, OP
from twofold_spark.sources import decoding
from twofold_spark.sources.change_rows import decode_changes, drop_truncated, row_image
from twofold_spark.sources.registry import Subject


def fold_keyed(
    raw: DataFrame,
    subject: Subject,
    keys: Subject,
    key: tuple[str, ...],
    read_current: Callable[[StructType], DataFrame | None],
    held: ExitStack,
    *,
    decode_all: bool,
) -> FoldedRows:
    """Fold the records in one pass; a second one only fills in unchanged TOASTed values.

    A record that a later one of its key replaces within the batch is not needed, so it is not
    decoded. With `decode_all` it is, to find the records that cannot be decoded.

    `key` are the columns that the merge goes by: the row's own, or `_key_<column>`, the text in the
    message key, where the row's column may be null because its type cannot express the value.
    `read_current` reads the table as it is before this batch, with these columns.
    """
    cached = cache_until_closed(_select_last(raw, subject, decode_all=decode_all), held)
    found = _count_partitions(cached)
    truncates = {row["partition"]: row["truncate"] for row in found if row["truncate"] is not None}
    row = cast("StructType", cached.schema["image"].dataType)
    texts = [name for name, field in zip(key, keys.latest["fields"], strict=True) if name != field["name"]]
    columns = table_columns(subject, row, *(StructField(name, StringType()) for name in texts))
    unchanged: tuple[str, ...] = ()
    keyless_rows = any(row["keyless"] for row in found)
    if any(row["partial"] for row in found) and not keyless_rows:
        records = drop_truncated(decode_changes(raw, subject, decoding.CHANGE), truncates)
        own = tuple(name.removeprefix(KEY_TEXT) if name in texts else name for name in key)
        rows, unchanged = toast_values.fill_unchanged(
            records, own, lambda: None if truncates else read_current(columns), held
        )
    else:
        rows = drop_truncated(cached, truncates)
        rows = rows.select("image.*", f.col("op").alias(OP), no_unchanged(), f.col("key").alias(KEY))
    for name in texts:
        rows = rows.withColumn(name, decoding.decode_record(f.col(KEY), keys)[name.removeprefix(KEY_TEXT)])
    return FoldedRows(
        rows=rows.drop(KEY),
        columns=columns,
        counts={row["partition"]: row["n"] for row in found},
        changes=sum(row["changes"] for row in found),
        unreadable=sum(row["unreadable"] for row in found),
        truncated=bool(truncates),
        unchanged=unchanged,
        bytes=sum(row["bytes"] or 0 for row in found),
        keyless_rows=keyless_rows,
    )


def _select_last(raw: DataFrame, subject: Subject, *, decode_all: bool) -> DataFrame:
    """Select the last record of every key, decoded, and counts of all its records.

    With `decode_all` it is the last record that can be decoded. Otherwise the schema id alone tells
    whether a record is readable.
    """
    value = f.col("value")
    op = decoding.decode_envelope(value, subject, decoding.OP)["op"] if decode_all else f.lit("?")
    readable = value.isNotNull() & (op.isNotNull() if decode_all else ~decoding.has_unknown_schema(value, subject))
    seen = raw.select("partition", "offset", "key", "value", readable.alias("readable"))
    # Spark sorts for this. With the hash first it compares two longs, not two keys.
    last = seen.groupBy(f.xxhash64("key"), "partition", "key").agg(
        f.max(f.when(f.col("readable"), f.struct("offset", "value"))).alias("last"),
        f.count("*").alias("n"),
        f.count("value").alias("changes"),
        f.sum(f.length("value")).alias("bytes"),
        f.sum((value.isNotNull() & ~f.col("readable")).cast("long")).alias("unreadable"),
    )
    decoded = last.withColumn("e", decoding.decode_envelope(f.col("last.value"), subject, decoding.CHANGE))
    # The schema is known, but the bytes do not match it.
    malformed = f.col("last").isNotNull() & f.col("e.op").isNull()
    return decoded.select(
        "partition",
        "key",
        f.col("last.offset").alias("offset"),
        "n",
        "changes",
        "bytes",
        (f.col("unreadable") + malformed.cast("long")).alias("unreadable"),
        f.col("e.op").alias("op"),
        row_image("e.").alias("image"),
        (f.size("e.unchanged") > 0).alias("partial"),
        # A truncate has no key. A partition's last record without a key is a row without one, or a
        # truncate that came after such rows.
        f.when(f.col("e.op") == "t", f.col("last.offset")).alias("truncate"),
        (f.col("key").isNull() & (f.col("e.op") != "t")).alias("keyless"),
    )


def _count_partitions(last: DataFrame) -> list[Row]:
    """Add up the counts of each partition, in the one pass that computes the selected records."""
    counts = last.groupBy("partition").agg(
        *(f.sum(n).alias(n) for n in ("n", "changes", "unreadable", "bytes")),
        *(f.max(n).alias(n) for n in ("partial", "truncate", "keyless")),
    )
    return counts.collect()
