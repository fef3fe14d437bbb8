"""Selects the last record of every key of a batch, decoded, and counts all its records.

PySpark asks the JVM hundreds of times while it builds these expressions, which for a small batch
takes longer than its rows do. So they are built once for a subject, and every batch uses them.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from twofold_spark.sources import decoding
from twofold_spark.sources.change_rows import row_image
from twofold_spark.sources.registry import Subject


class LastRecords:
    """The expressions for one subject; several threads may use them.

    A record that a later one of its key replaces within the batch is not needed, so it is not
    decoded: the schema id alone tells whether it is readable. With `decode_all` it is decoded, to
    find those that cannot be, and the last record that can be is selected.
    """

    def __init__(self, subject: Subject, *, decode_all: bool) -> None:
        self.subject = subject
        partition, key, value, last = (f.col(name) for name in ("partition", "key", "value", "last"))
        op = decoding.decode_envelope(value, subject, decoding.OP)["op"] if decode_all else f.lit("?")
        readable = value.isNotNull() & (op.isNotNull() if decode_all else ~decoding.has_unknown_schema(value, subject))
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
        self._envelope = decoding.decode_envelope(f.col("last.value"), subject, decoding.CHANGE)
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
        )
        self._of_partition = (
            *(f.sum(n).alias(n) for n in ("n", "changes", "unreadable", "bytes")),
            *(f.max(n).alias(n) for n in ("partial", "truncate", "keyless")),
            f.count("*").alias("keys"),
        )

    def select(self, raw: DataFrame) -> DataFrame:
        """Select the last record of every key, with counts of all its records."""
        last = raw.select(*self._seen).groupBy(*self._place).agg(*self._of_key)
        return last.withColumn("e", self._envelope).select(*self._selected)

    def count_partitions(self, selected: DataFrame) -> list[Row]:
        """Add up the counts of each partition, in the one pass that computes these records."""
        return selected.groupBy("partition").agg(*self._of_partition).collect()
