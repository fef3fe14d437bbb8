"""One table on both sides, for `verify`: buckets of rows' digests, and the rows of some buckets.

Each side computes its own, PostgreSQL in SQL and Spark in columns, from the same text of each value (`digest`); what
comes to the driver is a number of buckets, or the rows of those that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from twofold_avro.names import postgres_name
from twofold_spark.errors import MissingGround
from twofold_spark.mirror.toast_values import COPIES, KEY_TEXT
from twofold_spark.readers.cut_tables import read_cut
from twofold_spark.sinks import Reader
from twofold_spark.sources.source_database import Source, identifier
from twofold_spark.verify import row_digest
from twofold_spark.verify.row_digest import Pair

LOOKED_INTO = 64
"""Differing buckets that are looked into at a time, row by row."""
_FEWEST = 4096


def buckets_for(rows: int) -> int:
    """So many that the driver holds no more rows of those that are looked into than sums of all; both grow as the table's root."""
    return max(_FEWEST, math.isqrt(LOOKED_INTO * rows))


class Sides:
    """One table on both sides."""

    def __init__(self, spark: SparkSession, source: Source, reader: Reader, table: str) -> None:
        self._spark = spark
        self._source = source
        self._reader = reader
        self._table = table
        schema, _, name = table.partition(".")
        self._from = f"{identifier(postgres_name(schema))}.{identifier(postgres_name(name))}"
        columns = source.columns(postgres_name(schema), postgres_name(name))
        if not columns:
            raise MissingGround(f"the source has no table {self._from}: is --source the database that is mirrored?")
        types = {field.name: field.dataType for field in self._mirror().schema}
        by_name = {postgres_name(escaped): escaped for escaped in types}
        pairs = [Pair(c, by_name.get(c.name, c.name), types.get(by_name.get(c.name, c.name))) for c in columns]
        self._pairs = pairs
        self.key = _known_by(reader.key_of(table), pairs)
        self.buckets = buckets_for(int(source.value(f"SELECT count(*) FROM {self._from}")))

    def unsaid(self) -> dict[str, int]:
        """How many values of the source the mirror has as null, because their column's type cannot say them."""
        counts = {p.source.name: row_digest.source_unsaid(p) for p in self._pairs if row_digest.may_be_unsaid(p)}
        if not counts:
            return {}
        (found,) = self._source.rows(f"SELECT {', '.join(counts.values())} FROM {self._from}")
        return {column: count for column, count in zip(counts, found, strict=True) if count}

    def source_buckets(self) -> dict[int, tuple[int, int]]:
        rows = self._source.rows(
            f"SELECT {row_digest.source_bucket('k', self.buckets)} AS bucket, count(*) AS n, "
            f"sum({row_digest.source_number('r')})::text AS total FROM ({self._source_digests()}) d GROUP BY 1"
        )
        return {int(bucket): (int(n), int(total)) for bucket, n, total in rows}

    def mirror_buckets(self) -> dict[int, tuple[int, int]]:
        rows = (
            self._mirror_digests()
            .groupBy(row_digest.mirror_bucket(f.col("k"), self.buckets).alias("bucket"))
            .agg(f.count("*").alias("n"), f.sum(row_digest.mirror_number(f.col("r"))).alias("total"))
            .collect()
        )
        return {row["bucket"]: (row["n"], int(row["total"])) for row in rows}

    def source_rows(self, buckets: set[int]) -> dict[str, str]:
        listed = ", ".join(map(str, sorted(buckets)))
        where = f"{row_digest.source_bucket('k', self.buckets)} IN ({listed})"
        return _by_key(
            self._source.rows(
                f"SELECT t, r || ' ' || count(*) AS r FROM ({self._source_digests()}) d WHERE {where} GROUP BY t, r"
            )
        )

    def mirror_rows(self, buckets: set[int]) -> dict[str, str]:
        inside = row_digest.mirror_bucket(f.col("k"), self.buckets).isin(sorted(buckets))
        counted = self._mirror_digests().where(inside).groupBy("t", "r").count()
        rows = counted.select("t", f.concat_ws(" ", "r", f.col("count").cast("string"))).collect()
        return _by_key(rows)

    def _source_digests(self) -> str:
        return (
            f"SELECT {row_digest.source_text(self.key)} AS t, {row_digest.source_md5(self.key)} AS k, "
            f"{row_digest.source_md5(self._pairs)} AS r FROM {self._from}"
        )

    def _mirror_digests(self) -> DataFrame:
        return self._mirror().select(
            row_digest.mirror_text(self.key).alias("t"),
            row_digest.mirror_md5(self.key).alias("k"),
            row_digest.mirror_md5(self._pairs).alias("r"),
        )

    def _mirror(self) -> DataFrame:
        mirror = read_cut(self._spark, reader=self._reader)[self._table]
        if COPIES not in mirror.columns or self._reader.key_of(self._table):
            return mirror
        return mirror.withColumn(COPIES, f.explode(f.sequence(f.lit(1), f.col(COPIES)))).drop(COPIES)


def _known_by(key: Sequence[str], pairs: Sequence[Pair]) -> Sequence[Pair]:
    """What a row is known by, and its text names it: of a keyless table, and where the source has no longer the mirror's key, the whole row."""
    of_mirror = {pair.mirror: pair for pair in pairs}
    # A key's column itself, or the text that the message key has of it.
    texts = {KEY_TEXT + pair.mirror: Pair(pair.source, KEY_TEXT + pair.mirror, StringType()) for pair in pairs}
    found = [of_mirror.get(name) or texts.get(name) for name in key]
    known = [pair for pair in found if pair is not None]
    return known if key and len(known) == len(key) else pairs


def _by_key(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Each key's rows, digest and count, in an order that is the same on both sides: a wrong mirror may have several of one key."""
    found: dict[str, list[str]] = {}
    for key, row in rows:
        found.setdefault(key, []).append(row)
    return {key: ", ".join(sorted(its)) for key, its in found.items()}
