"""Folds the batch of a table: the last state of every key; of a table without a key, which is a
multiset of rows, by how many copies each row grows or shrinks.

For one key the order of offsets is the order of commits (the connector's promise 3), and a key lies
in one partition. So the last offset wins (`LastRecords`). MERGE never gets two rows of one key: on
an update it would refuse them, and it would silently insert both if they are new.

PostgreSQL's equality says what one key is, and message keys are told apart by their bytes. They
differ in floats alone: 0 and -0 are one key of the table, with two message keys. Other values that
are equal and not identical (`numeric` 1.0 and 1.00, `citext`, `jsonb`) are text here. The sinks
tell such texts apart as the message keys do, and PostgreSQL names the former text where a key
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import cast

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType

from twofold_spark.mirror import toast_values
from twofold_spark.mirror.folded_rows import FoldedRows, cache_until_closed, no_unchanged, table_columns
from twofold_spark.row_columns import COPIES, KEY, KEY_TEXT, OP
from twofold_spark.sinks.merge_sql import SPARK, find_floats, is_float
from twofold_spark.sources import decoding
from twofold_spark.sources.decoding import decode_changes, drop_truncated, full_new_row, row_image
from twofold_spark.sources.registry import Subject


def fold_keyed(
    raw: DataFrame,
    last: LastRecords,
    keys: Subject,
    key: tuple[str, ...],
    read_current: Callable[[StructType], DataFrame | None],
    caches: ExitStack,
) -> FoldedRows:
    """Fold the records in one pass; a second one only fills in unchanged TOASTed values. It reads
    them again, and they are counted again.

    `key` are the columns that the merge goes by: the row's own, or `_key_<column>`, the text in the
    message key, where the row's column may be null because its type cannot express the value.
    `read_current` reads the table as it is before this batch, with these columns.
    """
    cached = cache_until_closed(last.select(raw), caches)
    found = last.count_partitions(cached)
    counts = {row["partition"]: row["n"] for row in found}
    truncates = {row["partition"]: row["truncate"] for row in found if row["truncate"] is not None}
    row = cast("StructType", cached.schema["image"].dataType)
    texts = [name for name, field in zip(key, keys.latest["fields"], strict=True) if name != field["name"]]
    columns = table_columns(last.subject, row, *(StructField(name, StringType()) for name in texts))
    unchanged: tuple[str, ...] = ()
    keyless_rows = any(row["keyless"] for row in found)
    if any(row["partial"] for row in found) and not keyless_rows:
        changes = cache_until_closed(decode_changes(raw, last.subject, decoding.CHANGE), caches)
        again = {row["partition"]: row["count"] for row in changes.groupBy("partition").count().collect()}
        if again != counts:
            # Kafka has lost some since they were counted, as to retention.
            caches.close()
            return fold_keyed(raw, last, keys, key, read_current, caches)
        records = drop_truncated(changes, truncates)
        own = tuple(name.removeprefix(KEY_TEXT) if name in texts else name for name in key)
        rows, unchanged = toast_values.fill_unchanged(
            records, own, lambda: None if truncates else read_current(columns), caches
        )
    else:
        rows = drop_truncated(cached, truncates)
        rows = rows.select("image.*", f.col("op").alias(OP), no_unchanged(), f.col("key").alias(KEY))
    for name in texts:
        rows = rows.withColumn(name, decoding.decode_record(f.col(KEY), keys)[name.removeprefix(KEY_TEXT)])
    return FoldedRows(
        rows=join_equal_keys(rows.drop(KEY), key, columns),
        columns=columns,
        counts=counts,
        positions=last_positions(found),
        changes=sum(row["changes"] for row in found),
        unreadable=sum(row["unreadable"] for row in found),
        truncated=bool(truncates),
        unchanged=unchanged,
        bytes=sum(row["bytes"] or 0 for row in found),
        keys=sum(row["keys"] for row in found),
        keyless_rows=keyless_rows,
    )


def join_equal_keys(rows: DataFrame, key: tuple[str, ...], columns: StructType) -> DataFrame:
    """Keep one row of keys that are equal and have two message keys: 0 and -0.

    The source has one row of them at most. So one of the two was deleted, or both: of two message
    keys, in two partitions, no offset says which came last.
    """
    if not any(is_float(columns[name].dataType) for name in key):
        return rows
    present = f.max_by(f.struct(*rows.columns), f.col(OP) != "d")
    return rows.groupBy(*key).agg(present.alias("_row")).select("_row.*")


class LastRecords:
    """The expressions that select the last record of each key, for one subject, or for those of
    several topics whose rows have the same columns; several threads may use them.

    PySpark asks the JVM hundreds of times while it builds them, which for a small batch takes
    longer than its rows do. So they are built once for a subject, and every batch uses them.

    A record that a later one of its key replaces within the batch is not needed, so it is not
    decoded: the schema id alone tells whether it is readable. With `decode_all` it is decoded, to
    find those that cannot be, and the last record that can be is selected.
    """

    def __init__(self, *subjects: Subject, decode_all: bool) -> None:
        self.subjects = subjects
        partition, key, value, last = (f.col(name) for name in ("partition", "key", "value", "last"))
        op = decoding.decode_envelope(value, decoding.OP, *subjects)["op"] if decode_all else f.lit("?")
        readable = value.isNotNull() & (
            op.isNotNull() if decode_all else ~decoding.has_unknown_schema(value, *subjects)
        )
        self._seen = (partition, f.col("offset"), key, value, readable.alias("readable"))
        # Spark sorts for this. With the hash first it compares two longs, not two keys.
        self._place = (f.xxhash64("key"), partition, key)
        self._of_key = (
            f.max(f.when(f.col("readable"), f.struct("offset", "value"))).alias("last"),
            f.count("*").alias("n"),
            f.count("value").alias("changes"),
            f.sum(f.length("value")).alias("bytes"),
            f.sum((value.isNotNull() & ~f.col("readable")).cast("long")).alias("unreadable"),
        )
        self._envelope = decoding.decode_envelope(f.col("last.value"), decoding.CHANGE, *subjects)
        op = f.col("e.op")
        # The schema is known, but the bytes do not match it.
        malformed = last.isNotNull() & op.isNull()
        self._selected = (
            partition,
            key,
            f.col("last.offset").alias("offset"),
            *(f.col(name) for name in ("n", "changes", "bytes")),
            (f.col("unreadable") + malformed.cast("long")).alias("unreadable"),
            op.alias("op"),
            row_image("e.").alias("image"),
            (f.size("e.unchanged") > 0).alias("partial"),
            # A truncate has no key. A partition's last record without a key is a row without one,
            # or a truncate that came after such rows.
            f.when(op == "t", f.col("last.offset")).alias("truncate"),
            (key.isNull() & (op != "t")).alias("keyless"),
            f.col("e.source.lsn").alias("lsn"),
        )
        self._of_partition = (
            *(f.sum(n).alias(n) for n in ("n", "changes", "unreadable", "bytes")),
            *(f.max(n).alias(n) for n in ("partial", "truncate", "keyless", "lsn")),
            f.count("*").alias("keys"),
        )

    @property
    def subject(self) -> Subject:
        return self.subjects[0]

    def select(self, raw: DataFrame) -> DataFrame:
        """Select the last record of every key, with counts of all its records."""
        last = raw.select(*self._seen).groupBy(*self._place).agg(*self._of_key)
        return last.withColumn("e", self._envelope).select(*self._selected)

    def count_partitions(self, selected: DataFrame) -> list[Row]:
        """Add up the counts of each partition, in the one pass that computes these records."""
        return selected.groupBy("partition").agg(*self._of_partition).collect()


def last_positions(found: Iterable[Row]) -> dict[int, int]:
    """Return the last position of each partition's rows, as they were counted."""
    return {row["partition"]: row["lsn"] for row in found if row["lsn"] is not None}


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
            f.max(f.when(f.col("key").isNotNull(), f.col("offset"))).alias("keyed"),
            f.sum("bytes").alias("bytes"),
            f.count("bytes").alias("changes"),
            f.max("source.lsn").alias("lsn"),
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
        positions=last_positions(found),
        changes=sum(row["changes"] for row in found),
        unreadable=sum(row["unreadable"] for row in found),
        truncated=bool(truncates),
        unchanged=(),
        bytes=sum(row["bytes"] or 0 for row in found),
        keyed_rows=any(row["keyed"] is not None and row["keyed"] > (row["truncate"] or -1) for row in found),
    )
