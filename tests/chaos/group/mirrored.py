"""A group's mirror in Iceberg or Delta, read by plain SQL as docs/use/spark.md describes it: the
rows of `twofold.cuts` name each member's commit record and its tables' versions. `look` alone reads
as a user does, by `read_cut`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from chaos.group.shown import COLUMNS, GlobalCut, Rows, Shown, sum_up
from chaos.tables import session
from twofold_spark import DeltaReader, Tables, TwofoldError, read_cut

CATALOG: Final = "twofold"


def catalog_of(prefix: str) -> str:
    return f"{CATALOG}_{prefix}"


class Place(Protocol):
    """Where the tables are; the group's own are those of no prefix."""

    def name(self, prefix: str, table: str) -> str:
        """In SQL."""

    def exists(self, spark: SparkSession, prefix: str, table: str) -> bool: ...

    def read(self, spark: SparkSession) -> Tables: ...


class InIceberg:
    def name(self, prefix: str, table: str) -> str:
        return f"{catalog_of(prefix) if prefix else CATALOG}.{table}"

    def exists(self, spark: SparkSession, prefix: str, table: str) -> bool:
        return spark.catalog.tableExists(self.name(prefix, table))

    def read(self, spark: SparkSession) -> Tables:
        return read_cut(spark, catalog=CATALOG)


class InDelta:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def name(self, prefix: str, table: str) -> str:
        return f"delta.`{self._path(prefix, table)}`"

    def exists(self, spark: SparkSession, prefix: str, table: str) -> bool:
        return any((self._path(prefix, table) / "_delta_log").glob("*.json"))

    def read(self, spark: SparkSession) -> Tables:
        return read_cut(spark, reader=DeltaReader(spark, str(self._folder)))

    def _path(self, prefix: str, table: str) -> Path:
        return self._folder.joinpath(prefix, *table.split("."))


def open_session(warehouse: Path, folders: Mapping[str, Path], jars: str, *, in_delta: bool = False) -> SparkSession:
    """With a catalog for each member in its folder."""
    spark = session(warehouse, jars, in_delta=in_delta)
    # A cached table stays as it is for as long as somebody asks for it.
    spark.conf.set(f"spark.sql.catalog.{CATALOG}.cache-enabled", "false")
    for prefix, folder in folders.items():
        catalog = f"spark.sql.catalog.{catalog_of(prefix)}"
        folder.mkdir(parents=True, exist_ok=True)
        spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
        for name, value in {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{folder}/catalog.db?busy_timeout=30000",
            "jdbc.schema-version": "V1",
            "warehouse": str(folder),
            "cache-enabled": "false",
        }.items():
            spark.conf.set(f"{catalog}.{name}", value)
    return spark


class Mirrored:
    """The global cuts of a warehouse or a folder."""

    look_every_s = 15.0

    def __init__(self, spark: SparkSession, prefixes: list[str], place: Place) -> None:
        self._spark = spark
        self._prefixes = prefixes
        self._place = place
        self._looked_at = 0
        self._last_read: dict[tuple[str, str], tuple[int, list[tuple[Any, ...]]]] = {}
        """By prefix and table: a version and its rows. The next cut has most tables at the same."""

    def look(self) -> Shown | None:
        """What was looked at before is left out: the mirror needs the processors too."""
        try:
            read = self._place.read(self._spark)
            if read.number == self._looked_at:
                return None
            tables = [[read[f"{prefix}.public.{table}"] for prefix in self._prefixes] for table in COLUMNS]
        except (TwofoldError, KeyError):
            # None is published yet, a member is not in it, a table is loaded, or it has no row yet.
            return None
        accounts, parts = (
            reduce(DataFrame.unionByName, its).select(*names).collect()
            for its, names in zip(tables, COLUMNS.values(), strict=True)
        )
        sequences = {prefix: cut.sequence for prefix, cut in read.members.items()}
        shown = sum_up(f"read_cut {read.number} {sequences}", read.number, accounts, parts)
        self._looked_at = read.number
        return shown

    def cuts(self) -> list[GlobalCut]:
        if not self._place.exists(self._spark, "", "twofold.cuts"):
            return []
        found = defaultdict[int, dict[str, Any]](dict)
        rows = self._spark.table(self._place.name("", "twofold.cuts"))
        rows = rows.selectExpr("*", "unix_micros(published_at) / 1e6 AS at")
        for row in rows.where("joined").orderBy("number").collect():
            found[row["number"]][row["prefix"]] = row
        return [self._cut(number, rows) for number, rows in found.items()]

    def show(self, cut: GlobalCut) -> Shown:
        accounts, parts = (
            [row for prefix in self._prefixes for row in self._rows(cut, prefix, table)] if cut.has(table) else None
            for table in COLUMNS
        )
        return sum_up(f"global cut {cut}", cut.number, accounts, parts)

    def rows_of_last(self) -> Rows:
        cuts = self.cuts()
        if not cuts or not cuts[-1].complete:
            return {}
        return {
            table: {prefix: sorted(self._rows(cuts[-1], prefix, table)) for prefix in self._prefixes}
            for table in COLUMNS
        }

    def _rows(self, cut: GlobalCut, prefix: str, table: str) -> list[tuple[Any, ...]]:
        version = cut.version_of(prefix, f"public.{table}")
        read, rows = self._last_read.get((prefix, table), (None, []))
        if read != version:
            of, columns = self._place.name(prefix, f"public.{table}"), ", ".join(COLUMNS[table])
            found = self._spark.sql(f"SELECT {columns} FROM {of} VERSION AS OF {version}").collect()
            rows = [tuple(row) for row in found]
            self._last_read[prefix, table] = version, rows
        return rows

    def _cut(self, number: int, rows: Mapping[str, Any]) -> GlobalCut:
        sequences = {prefix: rows[prefix]["sequence"] if prefix in rows else 0 for prefix in self._prefixes}
        parts = {prefix: rows[prefix] if sequences[prefix] else None for prefix in self._prefixes}
        return GlobalCut(number, sequences, parts, max(row["at"] for row in rows.values()))
