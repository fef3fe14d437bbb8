"""Chooses what a merge into an Iceberg table writes: its files again, or the changes beside them;
and which rows of a large table it reads, those that the batch may change.

Beside them (merge-on-read) each merge leaves a file that all later merges open until compaction. In
another file it marks which rows of the older files count no more. For a table of a few kilobytes
that is more work than to rewrite it (copy-on-write). So it is for a batch that changes most of a
table's rows, of whatever size: all the files that it leaves behind are read by the next one.

Without a filter Spark shuffles and sorts the keys of the whole table, to join them with the
batch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType

from twofold_spark.row_columns import OP
from twofold_spark.sinks.interface import SMALL_TABLE_ROWS, MirrorTable
from twofold_spark.sinks.merge_sql import SPARK, escape_literal

WriteMode = Literal["by-size", "merge-on-read", "copy-on-write"]
WRITE_MODES: tuple[WriteMode, ...] = get_args(WriteMode)
MERGE_MODE = "write.merge.mode"
"""The table's property that a MERGE looks at."""
_SMALL_ROWS, _SMALL_BYTES = 10_000, 256 << 10
_SMALL_AGAIN = 2
"""A table becomes small again at that part of the limits, or it would change at each batch."""


@dataclass(frozen=True, slots=True)
class MergedTable:
    """A table before a merge: its mode, and how large it is; None is not known."""

    mode: str | None
    rows: int | None
    bytes: int | None

    def choose_mode(self, asked: WriteMode, changed: int | None) -> str:
        """Choose the mode of a merge that changes at most so many rows.

        A size that is not known is a large one.
        """
        if asked != "by-size":
            return asked
        part = 1 if self.mode == "copy-on-write" else _SMALL_AGAIN
        fits = self.rows is not None and self.rows * part <= _SMALL_ROWS
        small = fits and self.bytes is not None and self.bytes * part <= _SMALL_BYTES
        return "copy-on-write" if small or self.is_mostly_changed(changed) else "merge-on-read"

    def is_mostly_changed(self, changed: int | None) -> bool:
        """Whether a merge that changes so many rows changes most of them."""
        return changed is not None and self.rows is not None and changed * 2 > self.rows


def list_mode_properties(mode: str) -> Mapping[str, str]:
    """List the properties of a table with this mode.

    MERGE is the mirror's statement; UPDATE and DELETE are people's.
    """
    return {MERGE_MODE: mode, "write.update.mode": mode, "write.delete.mode": mode}


_LISTED_KEYS = 10_000
"""Up to so many keys of a batch are listed in the MERGE; more become a Bloom filter."""
_FIND_FILES = "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled"
"""Whether Spark reads a table that it rewrites a first time, to find the files with such rows."""
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
_BLOOM_FILTER = {
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "64m",
    _BROADCAST: "-1",
}
"""With these settings Spark makes the Bloom filter.

Without the last one Spark expects to broadcast the small side of the join, which never happens
here, and makes no filter.
"""


class MergeFilter:
    """Filters the rows that a MERGE reads of a large table.

    `all_files`: merges rewrite a table only where all of its files have rows that change.
    """

    def __init__(self, spark: SparkSession, *, all_files: bool) -> None:
        self._defaults = {_BROADCAST: spark.conf.get(_BROADCAST) or ""}
        spark.conf.set(_FIND_FILES, str(not all_files).lower())

    def apply(
        self, table: MirrorTable, rows: DataFrame, count: int | None, merged: MergedTable
    ) -> tuple[DataFrame, str]:
        """Return the batch's rows and the condition of the table's rows; set Spark's settings.

        `count` is how many rows the batch has, at most.
        """
        is_large = bool(table.key) and (merged.rows or 0) >= SMALL_TABLE_ROWS and not merged.is_mostly_changed(count)
        among = _list_keys(table, rows) if is_large and (count is None or count <= _LISTED_KEYS) else "true"
        bloom = is_large and among == "true"
        # Another table's merge may change these settings at the same time. A slower plan is the
        # worst effect.
        for key, value in (_BLOOM_FILTER if bloom else self._defaults).items():
            rows.sparkSession.conf.set(key, value)
        # Spark makes a Bloom filter only of a side with a condition.
        return (rows.where(f"{OP} <> ''") if bloom else rows), among


def _list_keys(table: MirrorTable, rows: DataFrame) -> str:
    """Build the condition that lists the batch's keys.

    It is `true` if there are many, or if SQL has no literal of their type.
    """
    key = rows.select(table.key[0])
    if not isinstance(key.schema[0].dataType, IntegerType | LongType | StringType):
        return "true"
    values = [row[0] for row in key.limit(_LISTED_KEYS + 1).collect()]
    if len(values) > _LISTED_KEYS:
        return "true"
    listed = ", ".join(str(v) if isinstance(v, int) else f"'{escape_literal(v)}'" for v in set(values) if v is not None)
    return f"t.{SPARK.quote(table.key[0])} IN ({listed or 'NULL'})"
