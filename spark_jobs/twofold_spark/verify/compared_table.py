"""One table in the source and in the mirror: sums of row digests, and rows of some buckets.

Each side computes its digests itself, PostgreSQL in SQL and Spark in columns, from the same text of
each value (`row_digest`). The driver receives some thousand buckets, or the rows of the buckets
that it asks for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from twofold_avro.names import postgres_name
from twofold_common.table_names import quote_identifier
from twofold_spark.errors import SetupError
from twofold_spark.readers.cut_tables import read_source
from twofold_spark.row_columns import COPIES, KEY_TEXT
from twofold_spark.sinks.interface import Reader
from twofold_spark.sources.source_database import PublishedTable, SourceDatabase
from twofold_spark.verify import row_digest
from twofold_spark.verify.row_digest import ColumnPair

BUCKETS_AT_ONCE = 64
"""Differing buckets whose rows are compared at a time."""
_FEWEST_BUCKETS = 4096


def choose_bucket_count(rows: int) -> int:
    """Choose so many buckets that the driver holds as many sums as rows.

    Both numbers then grow as the square root of the table.
    """
    return max(_FEWEST_BUCKETS, math.isqrt(BUCKETS_AT_ONCE * rows))


class ComparedTable:
    """One table on both sides."""

    def __init__(
        self,
        source: SourceDatabase,
        reader: Reader,
        prefix: str,
        table: str,
        left_out: Collection[str],
        published: PublishedTable | None,
    ) -> None:
        """`left_out`: columns that are not compared, by their names in the source.

        `published`: what the publication has; None if it lacks the table, or is not known.
        """
        self._source = source
        self._reader = reader
        self._prefix = prefix
        self._table = table
        schema, _, name = table.partition(".")
        names = postgres_name(schema), postgres_name(name)
        columns = source.read_columns(*names)
        if not columns:
            raise SetupError(
                f"the source has no table {quote_identifier(*names)}: give --source the database that is mirrored"
            )
        self._from = source.select_from(*names, published)
        self.unpublished = [c.name for c in columns if published is not None and c.name not in published.columns]
        self._mirror_key = read_source(reader, prefix).read_key(table)
        types = {field.name: field.dataType for field in self._read_mirror().schema}
        by_name = {postgres_name(escaped): escaped for escaped in types}
        pairs = [
            ColumnPair(c, by_name.get(c.name, c.name), types.get(by_name.get(c.name, c.name)))
            for c in columns
            if c.name not in {*left_out, *self.unpublished}
        ]
        self._pairs = pairs
        self.key = _identifying_columns(self._mirror_key, pairs)
        self.buckets = choose_bucket_count(int(source.read_value(f"SELECT count(*) FROM {self._from}")))

    def count_inexpressible(self) -> dict[str, int]:
        """Count the source's values that the mirror's column type cannot express: null there."""
        counts = {
            p.source.name: row_digest.count_inexpressible(p)
            for p in self._pairs
            if row_digest.has_inexpressible_values(p)
        }
        if not counts:
            return {}
        (found,) = self._source.read_rows(f"SELECT {', '.join(counts.values())} FROM {self._from}")
        return {column: count for column, count in zip(counts, found, strict=True) if count}

    def sum_source_buckets(self) -> dict[int, tuple[int, int]]:
        """Return the number of rows and the sum of digests of each bucket in the source."""
        rows = self._source.read_rows(
            f"SELECT {row_digest.source_bucket('k', self.buckets)} AS bucket, count(*) AS n, "
            f"sum({row_digest.source_number('r')})::text AS total FROM ({self._source_digests()}) d GROUP BY 1"
        )
        return {int(bucket): (int(n), int(total)) for bucket, n, total in rows}

    def sum_mirror_buckets(self) -> dict[int, tuple[int, int]]:
        rows = (
            self._mirror_digests()
            .groupBy(row_digest.mirror_bucket(f.col("k"), self.buckets).alias("bucket"))
            .agg(f.count("*").alias("n"), f.sum(row_digest.mirror_number(f.col("r"))).alias("total"))
            .collect()
        )
        return {row["bucket"]: (row["n"], int(row["total"])) for row in rows}

    def read_source_rows(self, buckets: set[int]) -> dict[str, str]:
        listed = ", ".join(map(str, sorted(buckets)))
        where = f"{row_digest.source_bucket('k', self.buckets)} IN ({listed})"
        return _group_by_key(
            self._source.read_rows(
                f"SELECT t, r || ' ' || count(*) AS r FROM ({self._source_digests()}) d WHERE {where} GROUP BY t, r"
            )
        )

    def read_mirror_rows(self, buckets: set[int]) -> dict[str, str]:
        inside = row_digest.mirror_bucket(f.col("k"), self.buckets).isin(sorted(buckets))
        counted = self._mirror_digests().where(inside).groupBy("t", "r").count()
        rows = counted.select("t", f.concat_ws(" ", "r", f.col("count").cast("string"))).collect()
        return _group_by_key(rows)

    def _source_digests(self) -> str:
        return (
            f"SELECT {row_digest.source_text(self.key)} AS t, {row_digest.source_md5(self.key)} AS k, "
            f"{row_digest.source_md5(self._pairs)} AS r FROM {self._from}"
        )

    def _mirror_digests(self) -> DataFrame:
        return self._read_mirror().select(
            row_digest.mirror_text(self.key).alias("t"),
            row_digest.mirror_md5(self.key).alias("k"),
            row_digest.mirror_md5(self._pairs).alias("r"),
        )

    def _read_mirror(self) -> DataFrame:
        mirror = read_source(self._reader, self._prefix)[self._table]
        if COPIES not in mirror.columns or self._mirror_key:
            return mirror
        return mirror.withColumn(COPIES, f.explode(f.sequence(f.lit(1), f.col(COPIES)))).drop(COPIES)


def _identifying_columns(key: Sequence[str], pairs: Sequence[ColumnPair]) -> Sequence[ColumnPair]:
    """Return the columns that identify and name a row.

    All columns do in a keyless table, and where the source no longer has the mirror's key.
    """
    of_mirror = {pair.mirror: pair for pair in pairs}
    # A key column itself, or its text in the message key.
    texts = {KEY_TEXT + pair.mirror: ColumnPair(pair.source, KEY_TEXT + pair.mirror, StringType()) for pair in pairs}
    found = [of_mirror.get(name) or texts.get(name) for name in key]
    known = [pair for pair in found if pair is not None]
    return known if key and len(known) == len(key) else pairs


def _group_by_key(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Join each key's rows (digest and count) in an order that both sides share.

    A wrong mirror may have several rows of one key.
    """
    found: dict[str, list[str]] = {}
    for key, row in rows:
        found.setdefault(key, []).append(row)
    return {key: ", ".join(sorted(its)) for key, its in found.items()}
