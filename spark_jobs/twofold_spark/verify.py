"""`verify`: is the mirror what the source is? Bucket by bucket, while both are in use.

Each side adds up its rows' digests in some thousand buckets of keys, PostgreSQL by itself and Spark by itself; only what
differs is looked into, so nothing grows with the table but the time. Under load most of what differs is merely on its
way: a marker is put into the source's log (`pg_logical_emit_message`, which changes no table), and when the mirror's cut
has passed it, the same rows are looked at again. A row is different when the source has not touched it meanwhile and the
mirror, beyond the marker, still says something else. Rows that keep changing are looked at again until they rest.

The mirror is read by its cuts, as any reader should.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_avro.names import postgres_name
from twofold_spark import digest
from twofold_spark.carry import COPIES
from twofold_spark.cuts import read_cut
from twofold_spark.digest import Pair
from twofold_spark.errors import MissingGround
from twofold_spark.session import CATALOG
from twofold_spark.sinks.iceberg import key_of
from twofold_spark.source import Source, identifier

MARKER = "twofold.verify"
_BUCKETS = 4096
_LOOKED_INTO = 64
"""Differing buckets that are looked into at a time: what the driver holds stays small when all differ."""
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same on both sides."""

    table: str
    key: str
    source: str | None
    mirror: str | None

    def __str__(self) -> str:
        source, mirror = (value[:12] if value else "no such row" for value in (self.source, self.mirror))
        key = self.key if len(self.key) < 80 else f"{self.key[:77]}..."
        return f"{self.table} {key}: source {source}, mirror {mirror}"


@dataclass(frozen=True, slots=True)
class Compared:
    """One table's result."""

    table: str
    rows: int
    different: tuple[Difference, ...]
    buckets: int
    """How many buckets differ for good."""
    settled: bool
    """False where the mirror did not pass the marker in time, or a row never rested."""

    def __str__(self) -> str:
        if not self.buckets:
            return f"{self.table}: {self.rows} rows, equal"
        named = "".join(f"\n  {difference}" for difference in self.different[:_NAMED])
        more = f"\n  and {len(self.different) - _NAMED} more" if len(self.different) > _NAMED else ""
        doubt = "" if self.settled else "\n  (the mirror did not come to rest in time: it may only be behind)"
        return f"{self.table}: {self.rows} rows, DIFFERENT in {self.buckets} of {_BUCKETS} buckets:{named}{more}{doubt}"


class Verify:
    """Compares the tables of the mirror with the source."""

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        *,
        catalog: str = CATALOG,
        patience: float = 60,
        say: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._source = source
        self._catalog = catalog
        self._patience = patience
        self._say = say

    def run(self) -> list[Compared]:
        """Every table of the last cut, in order."""
        tables = sorted(self._first_cut())
        results = []
        for table in tables:
            result = self._table(table)
            self._say(str(result))
            results.append(result)
        return results

    def _first_cut(self) -> Iterable[str]:
        """The tables of the last cut; a mirror that has just been started may take a while to publish its first."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return read_cut(self._spark, catalog=self._catalog)
            except MissingGround:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def _table(self, table: str) -> Compared:
        sides = _Sides(self._spark, self._source, self._catalog, table)
        source, mirror = sides.source_buckets(), sides.mirror_buckets()
        rows = sum(count for count, _ in source.values())
        differing = {b for b in source.keys() | mirror.keys() if source.get(b) != mirror.get(b)}
        deadline = time.monotonic() + self._patience
        settled = True
        rows_before: dict[str, str] = {}
        while differing and settled:
            looked = set(sorted(differing)[:_LOOKED_INTO])
            rows_before = sides.source_rows(looked)
            settled = self._passed(deadline)
            rows_after, mirrored = sides.source_rows(looked), sides.mirror_rows(looked)
            unequal = {k for k in rows_after.keys() | mirrored.keys() if rows_after.get(k) != mirrored.get(k)}
            rested = {k for k in unequal if rows_before.get(k) == rows_after.get(k)}
            if not unequal:
                differing -= looked
                continue
            if unequal == rested or time.monotonic() > deadline:
                found = tuple(Difference(table, k, rows_after.get(k), mirrored.get(k)) for k in sorted(unequal))
                return Compared(table, rows, found, len(differing), settled and unequal == rested)
        return Compared(table, rows, (), len(differing), settled)

    def _passed(self, deadline: float) -> bool:
        """Puts a marker into the source's log and waits until the mirror has a cut beyond it."""
        marker = int(self._source.value(f"SELECT pg_logical_emit_message(false, '{MARKER}', '') - '0/0'::pg_lsn"))
        while read_cut(self._spark, catalog=self._catalog).cut.applied_lsn < marker:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True


class _Sides:
    """One table on both sides."""

    def __init__(self, spark: SparkSession, source: Source, catalog: str, table: str) -> None:
        self._spark = spark
        self._source = source
        self._catalog = catalog
        self._table = table
        schema, _, name = table.partition(".")
        self._from = f"{identifier(postgres_name(schema))}.{identifier(postgres_name(name))}"
        columns = source.columns(postgres_name(schema), postgres_name(name))
        if not columns:
            raise MissingGround(f"the source has no table {self._from}: is --source the database that is mirrored?")
        types = {field.name: field.dataType for field in self._mirror().schema}
        by_name = {postgres_name(escaped): escaped for escaped in types}
        pairs = [Pair(c, by_name.get(c.name, c.name), types.get(by_name.get(c.name, c.name))) for c in columns]
        key = key_of(spark, catalog, table)
        self._pairs = pairs
        # A keyless table's row is its own key.
        self._key = [pair for pair in pairs if pair.mirror in key] or pairs

    def source_buckets(self) -> dict[int, tuple[int, int]]:
        rows = self._source.rows(
            f"SELECT {digest.source_bucket('k', _BUCKETS)} AS bucket, count(*) AS n, "
            f"sum({digest.source_number('r')})::text AS total FROM ({self._source_digests()}) d GROUP BY 1"
        )
        return {int(bucket): (int(n), int(total)) for bucket, n, total in rows}

    def mirror_buckets(self) -> dict[int, tuple[int, int]]:
        rows = (
            self._mirror_digests()
            .groupBy(digest.mirror_bucket(f.col("k"), _BUCKETS).alias("bucket"))
            .agg(f.count("*").alias("n"), f.sum(digest.mirror_number(f.col("r"))).alias("total"))
            .collect()
        )
        return {row["bucket"]: (row["n"], int(row["total"])) for row in rows}

    def source_rows(self, buckets: set[int]) -> dict[str, str]:
        listed = ", ".join(map(str, sorted(buckets)))
        where = f"{digest.source_bucket('k', _BUCKETS)} IN ({listed})"
        return dict(
            _pairs(
                self._source.rows(
                    f"SELECT t, r || ' ' || count(*) AS r FROM ({self._source_digests()}) d WHERE {where} GROUP BY t, r"
                )
            )
        )

    def mirror_rows(self, buckets: set[int]) -> dict[str, str]:
        inside = digest.mirror_bucket(f.col("k"), _BUCKETS).isin(sorted(buckets))
        counted = self._mirror_digests().where(inside).groupBy("t", "r").count()
        rows = counted.select("t", f.concat_ws(" ", "r", f.col("count").cast("string"))).collect()
        return dict(_pairs([list(row) for row in rows]))

    def _source_digests(self) -> str:
        return (
            f"SELECT {digest.source_text(self._key)} AS t, {digest.source_md5(self._key)} AS k, "
            f"{digest.source_md5(self._pairs)} AS r FROM {self._from}"
        )

    def _mirror_digests(self) -> DataFrame:
        return self._mirror().select(
            digest.mirror_text(self._key).alias("t"),
            digest.mirror_md5(self._key).alias("k"),
            digest.mirror_md5(self._pairs).alias("r"),
        )

    def _mirror(self) -> DataFrame:
        mirror = read_cut(self._spark, catalog=self._catalog)[self._table]
        if COPIES not in mirror.columns:
            return mirror
        return mirror.withColumn(COPIES, f.explode(f.sequence(f.lit(1), f.col(COPIES)))).drop(COPIES)


def _pairs(rows: list[list[str]]) -> Iterator[tuple[str, str]]:
    for key, row in rows:
        yield key.partition(":")[2], row
