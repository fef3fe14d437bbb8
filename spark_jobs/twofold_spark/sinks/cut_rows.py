"""Cuts where tables have versions: rows of `twofold.cuts`, a row for each source; and the reader of
such a mirror.
"""

from __future__ import annotations

import datetime as dt
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.sinks import sharding
from twofold_spark.sinks.cuts import CUTS, NO_LIMIT, OF_GROUP, Cut, CutLimit, GlobalCut, MissingRow
from twofold_spark.sinks.sharding import SHARED, Sharding

KEY = "twofold.key"
"""The property of a table that names the columns that it is merged by."""
TOPIC = "twofold.topic"
"""The property of a table that names the topic whose rows it has."""
STREAM = "twofold.stream"
"""The property of a table that has the id of the stream whose numbers it has."""

COLUMNS = (
    "number bigint, prefix string, joined boolean, sequence bigint, commit_offset bigint, applied_lsn bigint, "
    "committed_at timestamp, published_at timestamp, whole boolean, "
    "tables array<struct<name: string, version: bigint>>, backfilling array<string>, stopped array<string>, "
    "stream_id string, stale array<string>, skipped array<string>"
)

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""As `format_rows` writes them. A session may ask for Spark's older parser of times, whose own
format takes microseconds for milliseconds.
"""


def make_rows(cut: GlobalCut) -> list[dict[str, Any]]:
    """Make the rows of a cut, published now."""
    now = dt.datetime.now(dt.UTC)
    return [
        {
            "number": cut.number,
            "prefix": prefix,
            "joined": joined,
            "sequence": part.sequence,
            "commit_offset": part.offset,
            "applied_lsn": part.applied_lsn,
            "committed_at": _EPOCH + dt.timedelta(microseconds=part.committed_us),
            "published_at": now,
            "whole": part.whole,
            "tables": [{"name": name, "version": int(version)} for name, version in part.versions.items()],
            "backfilling": list(part.backfilling),
            "stopped": list(part.stopped),
            "stream_id": part.stream_id,
            "stale": list(part.stale),
            "skipped": [str(row) for row in part.skipped],
        }
        for prefix, part, joined in cut.parts
    ]


def format_rows(rows: Iterable[Mapping[str, Any]], columns: str) -> Column:
    """Make rows with these columns the literal of an array."""
    text = json.dumps([*rows], default=lambda at: at.isoformat(timespec="microseconds"))
    return f.from_json(f.lit(text), f"array<struct<{columns}>>", _TIMES)


def combine_rows(number: int, rows: Iterable[Any]) -> GlobalCut:
    """Make a cut of its rows; their `tables` are a mapping here, and `committed_us` is a number."""
    parts: dict[bool, dict[str, Cut]] = {True: {}, False: {}}
    for row in rows:
        parts[row["joined"]][row["prefix"]] = Cut(
            sequence=row["sequence"],
            applied_lsn=row["applied_lsn"],
            committed_us=row["committed_us"],
            whole=row["whole"],
            versions=row["tables"],
            backfilling=tuple(row["backfilling"]),
            stopped=tuple(row["stopped"]),
            stream_id=row["stream_id"],
            offset=row["commit_offset"],
            stale=tuple(row["stale"]),
            skipped=tuple(map(MissingRow.parse, row["skipped"])),
        )
    return GlobalCut(number, parts[True], parts[False])


def find_first_kept(cuts: DataFrame, keep: dt.timedelta) -> int:
    """Return the number of the cut that readers got `keep` ago: older cuts had been replaced.

    A reader may have begun with a cut just before the next one came. So a cut's age counts from its
    successor, however old the cut is itself. A cut that is not whole replaces none. 0 if the first
    cut is younger than `keep`.
    """
    is_whole = f.bool_and(f.expr("whole OR NOT joined"))
    each = cuts.groupBy("number").agg(is_whole.alias("whole"), f.max("published_at").alias("published_at"))
    ago = f"current_timestamp() - INTERVAL '{keep.total_seconds():.6f}' SECOND"
    row = each.where(f"whole AND published_at < {ago}").agg(f.max("number")).first()
    return row[0] or 0 if row is not None else 0


def find_cut(cuts: DataFrame, limit: CutLimit, *, first: bool = False) -> GlobalCut | None:
    """Read the last cut that is whole and within the limit, or the first."""
    columns = "number", "whole", "sequence", "applied_lsn", f.unix_micros("committed_at").alias("committed_us")
    found = defaultdict[int, bool](lambda: True)
    for row in cuts.where("joined").select(*columns).collect():
        found[row["number"]] &= row["whole"] and limit.admits(row["sequence"], row["applied_lsn"], row["committed_us"])
    numbers = [number for number, is_good in found.items() if is_good]
    return _read(cuts, min(numbers) if first else max(numbers)) if numbers else None


def read_last(cuts: DataFrame) -> GlobalCut | None:
    """Read the last cut, whole or not."""
    row = cuts.agg(f.max("number")).first()
    return _read(cuts, row[0]) if row is not None and row[0] is not None else None


def _read(cuts: DataFrame, number: int) -> GlobalCut:
    rows = cuts.where(f.col("number") == number).withColumn("committed_us", f.unix_micros("committed_at")).collect()
    versions = ({entry["name"]: str(entry["version"]) for entry in row["tables"]} for row in rows)
    return combine_rows(
        number, ({**row.asDict(), "tables": of_row} for row, of_row in zip(rows, versions, strict=True))
    )


class VersionedTables(ABC):
    """The tables (`schema.name`) in a catalog of Iceberg, or in a folder of Delta."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @abstractmethod
    def name(self, table: str) -> str:
        """Return the table's name in SQL."""

    @abstractmethod
    def has(self, table: str) -> bool:
        """Whether the table exists."""

    @abstractmethod
    def create(self, table: str, columns: str, properties: Mapping[str, str]) -> None:
        """Create the table."""

    @abstractmethod
    def read_property(self, table: str, key: str) -> str:
        """Return a property of the table; an empty text if it has none."""

    @abstractmethod
    def of_member(self, prefix: str) -> Self:
        """Return the tables of a group's member."""

    def read_key(self, table: str) -> tuple[str, ...]:
        return tuple(column for column in self.read_property(table, KEY).split(",") if column)


class VersionedReader:
    """Cuts and tables of a mirror; `own` are the tables where the cuts are."""

    is_lasting = True

    def __init__(self, own: VersionedTables) -> None:
        self._own = own

    def pin(self) -> AbstractContextManager[Self]:
        return nullcontext(self)  # a cut names versions, which stay

    def find_cut(self, limit: CutLimit = NO_LIMIT, *, first: bool = False) -> GlobalCut | None:
        if not self._own.has(CUTS):
            return None
        return find_cut(self._own.spark.table(self._own.name(CUTS)), limit, first=first)

    def is_of_group(self) -> bool:
        return self._own.read_property(CUTS, OF_GROUP) == str(True)

    def read_sharding(self) -> Sharding:
        return Sharding.parse(self._own.read_property(CUTS, sharding.PROPERTY))

    def read_table(self, prefix: str, name: str, version: str) -> DataFrame:
        return self._own.spark.sql(f"SELECT * FROM {self._of(prefix).name(name)} VERSION AS OF {int(version)}")

    def read_key(self, prefix: str, name: str) -> tuple[str, ...]:
        return self._of(prefix).read_key(name)

    def _of(self, prefix: str) -> VersionedTables:
        return self._own.of_member(prefix) if prefix != SHARED and self.is_of_group() else self._own
