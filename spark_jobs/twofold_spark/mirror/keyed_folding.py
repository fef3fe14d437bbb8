"""The last state of every key in a batch: what the sinks merge.

Of one key the order of offsets is the order of commits (the connector's promise 3), and a key lives in one partition,
so the last offset wins; one aggregation does it, and counts on the way what each partition held. MERGE is never given
two rows of one key: it would refuse them on update and insert both in silence when they are new.

A folded row: the key's columns and all others, `OP` (`d` or anything else), `UNCHANGED` (columns whose TOASTed value
PostgreSQL did not send: what the table has stays). A truncate empties its partition: what came before it is dropped
here, and the sink replaces the table instead of merging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType

from twofold_spark.errors import TableRefused
from twofold_spark.mirror import toast_values
from twofold_spark.mirror.toast_values import COPIES, KEY, KEY_TEXT, OP, UNCHANGED, persisted
from twofold_spark.sinks import Table
from twofold_spark.sources import decoding
from twofold_spark.sources.registry import Subject


@dataclass(frozen=True, slots=True)
class Folded:
    """A topic's batch, folded; what is cached of it is held until it is merged."""

    rows: DataFrame
    columns: StructType
    """The table's columns: the union of all versions."""
    counts: dict[int, int]
    """Records read of each partition, tombstones included: compared with what the commit records say."""
    changes: int
    """The records that are no tombstones."""
    unreadable: int
    """Records that cannot be decoded, or whose schema id is not known (yet)."""
    truncated: bool
    unchanged: tuple[str, ...]
    """Columns that `UNCHANGED` has of any row."""
    bytes: int
    nameless: bool = False
    """Rows without a key where the registry has one: they are folded into one, and must not be merged."""

    def check(self, table: Table) -> None:
        """Refuses rows that are not a table's."""
        if self.nameless:
            raise TableRefused(
                f"{table.topic} has rows without a key, and the registry has a key for them, the subject {table.topic}-key",
                at_stake="all of these rows but one",
                repair=f"if {table} has no primary key any more, delete that subject; then `twofold backfill start {table}`",
            )


def changes(raw: DataFrame, subject: Subject, parts: decoding.Parts) -> DataFrame:
    """The records of a topic as columns: where they lie, and the envelope; `unreadable` marks what has none."""
    decoded = raw.withColumn("e", decoding.envelope(f.col("value"), subject, parts))
    unreadable = f.col("value").isNotNull() & f.col("e.op").isNull()
    return decoded.select(
        "partition", "offset", "key", f.length("value").alias("bytes"), unreadable.alias("unreadable"), "e.*"
    )


def fold_multiset(raw: DataFrame, subject: Subject, held: ExitStack) -> Folded:
    """A keyless table's batch: each distinct row with by how many copies it grows or shrinks, in `_copies`.

    Its updates and deletes have the whole old row (REPLICA IDENTITY FULL; without it PostgreSQL refuses them), so a value
    that was not sent again is in `before`.
    """
    records = persisted(changes(raw, subject, decoding.CHANGE), held)
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
    columns = _columns(subject, row, StructField(COPIES, LongType()))
    gone = f.when(f.col("op").isin("u", "d"), f.struct(f.lit(-1).alias("n"), f.col("before").alias("image")))
    came = f.when(f.col("op") != "d", f.struct(f.lit(1).alias("n"), whole_after(row).alias("image")))
    rows = (
        alive(records, truncates)
        .select(f.explode(f.array_compact(f.array(gone, came))).alias("x"))
        .groupBy("x.image")
        .agg(f.sum("x.n").alias(COPIES))
        .where(f.col(COPIES) != 0)
        .select("image.*", COPIES, f.when(f.col(COPIES) < 0, "d").otherwise("u").alias(OP), _nothing())
    )
    return Folded(
        rows=rows,
        columns=columns,
        counts={row["partition"]: row["n"] for row in found},
        changes=sum(row["changes"] for row in found),
        unreadable=sum(row["unreadable"] for row in found),
        truncated=bool(truncates),
        unchanged=(),
        bytes=sum(row["bytes"] or 0 for row in found),
    )


def whole_after(columns: StructType) -> Column:
    """The new row of a keyless table's record, with the values of the old one that were not sent again."""
    return f.struct(
        *(
            f.when(f.array_contains("unchanged", c), f.col("before")[c]).otherwise(f.col("after")[c]).alias(c)
            for c in columns.names
        )
    )


def _nothing() -> Column:
    return f.array().cast("array<string>").alias(UNCHANGED)


def fold(
    raw: DataFrame,
    subject: Subject,
    keys: Subject,
    key: tuple[str, ...],
    current: Callable[[StructType], DataFrame | None],
    held: ExitStack,
    *,
    every: bool,
) -> Folded:
    """One pass over the records, which decodes each key's last one; a second only where TOASTed values are carried over.

    A record that a later one of its key replaces within the batch says nothing that is needed, so it is not decoded; with
    `every` it is, to find the ones that cannot be.
    `key` is what the merge goes by: the row's own columns, or for one that has values which its type cannot say (they
    are null in the row) `_key_<column>`, the text that the message key has of it. `current` gives the table as it is
    before this batch, with these columns. What is cached is released with `held`.
    """
    cached = persisted(_last(raw, subject, every=every), held)
    found = (
        cached.groupBy("partition")
        .agg(
            *(f.sum(n).alias(n) for n in ("n", "changes", "unreadable", "bytes")),
            *(f.max(n).alias(n) for n in ("partial", "truncate", "nameless")),
        )
        .collect()
    )
    truncates = {row["partition"]: row["truncate"] for row in found if row["truncate"] is not None}
    row = cast("StructType", cached.schema["image"].dataType)
    texts = [name for name, field in zip(key, keys.latest["fields"], strict=True) if name != field["name"]]
    columns = _columns(subject, row, *(StructField(name, StringType()) for name in texts))
    unchanged: tuple[str, ...] = ()
    nameless = any(row["nameless"] for row in found)
    if any(row["partial"] for row in found) and not nameless:
        records = alive(changes(raw, subject, decoding.CHANGE), truncates)
        own = tuple(name.removeprefix(KEY_TEXT) if name in texts else name for name in key)
        rows, unchanged = toast_values.carried(records, own, lambda: None if truncates else current(columns), held)
    else:
        rows = alive(cached, truncates).select("image.*", f.col("op").alias(OP), _nothing(), f.col("key").alias(KEY))
    for name in texts:
        rows = rows.withColumn(name, decoding.record(f.col(KEY), keys)[name.removeprefix(KEY_TEXT)])
    return Folded(
        rows=rows.drop(KEY),
        columns=columns,
        counts={row["partition"]: row["n"] for row in found},
        changes=sum(row["changes"] for row in found),
        unreadable=sum(row["unreadable"] for row in found),
        truncated=bool(truncates),
        unchanged=unchanged,
        bytes=sum(row["bytes"] or 0 for row in found),
        nameless=nameless,
    )


def _columns(subject: Subject, row: StructType, *own: StructField) -> StructType:
    """The table's: the row's, and those that are the mirror's own."""
    columns = StructType([*row.fields, *own])
    counts = Counter(name.lower() for name in (*columns.names, OP, UNCHANGED, KEY))
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise TableRefused(
            f"{subject.name} has columns that would be there twice in the mirror's table: {', '.join(twice)}. Case makes no "
            f"difference there, and `{COPIES}` of a table without a key and `{KEY_TEXT}<column of the key>` are its own",
            at_stake="the values of one of the two",
            repair=f"give the table a primary key if it is `{COPIES}`, else rename the column and delete that subject, whose "
            "versions have it, and start connector and mirror again; then `twofold backfill start`",
        )
    return columns


def _last(raw: DataFrame, subject: Subject, *, every: bool) -> DataFrame:
    """Of every key the last record, decoded, and what there was of it.

    Where every record is looked at, the last one is the last that can be read. Where not, the others are known by their
    schema's id alone.
    """
    value = f.col("value")
    op = decoding.envelope(value, subject, decoding.OP)["op"] if every else f.lit("?")
    readable = value.isNotNull() & (op.isNotNull() if every else ~decoding.unknown(value, subject))
    seen = raw.select("partition", "offset", "key", "value", readable.alias("readable"))
    # Spark sorts for this; by the hash first, it compares two longs and not two keys.
    last = seen.groupBy(f.xxhash64("key"), "partition", "key").agg(
        f.max(f.when(f.col("readable"), f.struct("offset", "value"))).alias("last"),
        f.count("*").alias("n"),
        f.count("value").alias("changes"),
        f.sum(f.length("value")).alias("bytes"),
        f.sum((value.isNotNull() & ~f.col("readable")).cast("long")).alias("unreadable"),
    )
    decoded = last.withColumn("e", decoding.envelope(f.col("last.value"), subject, decoding.CHANGE))
    # A record whose schema is known and whose bytes are not what it says.
    torn = f.col("last").isNotNull() & f.col("e.op").isNull()
    return decoded.select(
        "partition",
        "key",
        f.col("last.offset").alias("offset"),
        "n",
        "changes",
        "bytes",
        (f.col("unreadable") + torn.cast("long")).alias("unreadable"),
        f.col("e.op").alias("op"),
        toast_values.image("e.").alias("image"),
        (f.size("e.unchanged") > 0).alias("partial"),
        # A truncate has no key. Rows without one are a partition's last record without one, or a truncate took them.
        f.when(f.col("e.op") == "t", f.col("last.offset")).alias("truncate"),
        (f.col("key").isNull() & (f.col("e.op") != "t")).alias("nameless"),
    )


def alive(records: DataFrame, truncates: Mapping[int, int]) -> DataFrame:
    """The records of rows that came after their partition's last truncate."""
    rows = records.where(f.col("op").isNotNull() & (f.col("op") != "t"))
    if not truncates:
        return rows
    last = f.coalesce(*(f.when(f.col("partition") == p, f.lit(o)) for p, o in sorted(truncates.items())), f.lit(-1))
    return rows.where(f.col("offset") > last)
