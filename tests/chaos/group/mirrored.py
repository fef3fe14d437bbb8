"""A group's warehouse, read by plain SQL as docs/use/spark.md describes it: the rows of
`twofold.global_cuts` name the cut of each member, and a member's cut names its tables' versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from chaos.tables import session

CATALOG: Final = "twofold"
TABLES: Final = frozenset({"public.account", "public.part"})


def open_session(warehouse: Path, folders: Mapping[str, Path], jars: str) -> SparkSession:
    """With a catalog for each member in its folder."""
    spark = session(warehouse, jars)
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


def catalog_of(prefix: str) -> str:
    return f"{CATALOG}_{prefix}"


@dataclass(frozen=True, slots=True)
class GlobalCut:
    """A row of the global cuts, with the rows of the members' cuts that it names."""

    number: int
    sequences: dict[str, int]
    parts: dict[str, Any]
    """By prefix; None if the member has no such cut."""

    def __str__(self) -> str:
        return f"{self.number} {self.sequences}"

    @property
    def missing(self) -> list[str]:
        """The members whose cut it names and who have no such cut."""
        return [prefix for prefix, sequence in self.sequences.items() if sequence and self.parts[prefix] is None]

    @property
    def complete(self) -> bool:
        """Every member has all its tables. False while one of them has no cut yet, or loads."""
        return all(part is not None and self._whole(part) >= TABLES for part in self.parts.values())

    def follows(self, before: GlobalCut) -> bool:
        return self.number == before.number + 1 and all(
            self.sequences[prefix] >= sequence for prefix, sequence in before.sequences.items()
        )

    @staticmethod
    def _whole(part: Any) -> set[str]:
        loading = {f"public.{topic.rpartition('.')[2]}" for topic in part["backfilling"]}
        return {each["name"] for each in part["tables"]} - loading


class Mirrored:
    """The global cuts of a warehouse."""

    def __init__(self, spark: SparkSession, prefixes: list[str]) -> None:
        self._spark = spark
        self._prefixes = prefixes

    def cuts(self) -> list[GlobalCut]:
        """All, in the order of their numbers."""
        name = f"{CATALOG}.twofold.global_cuts"
        if not self._spark.catalog.tableExists(name):
            return []
        rows = self._spark.table(name).orderBy("number").collect()
        members = {prefix: self._members_cuts(prefix) for prefix in self._prefixes}
        return [self._cut(row, members) for row in rows]

    def last_of_each(self) -> GlobalCut:
        """The members' own last cuts, which nothing makes one."""
        cuts = {prefix: self._members_cuts(prefix) for prefix in self._prefixes}
        last = {prefix: max(its, default=0) for prefix, its in cuts.items()}
        return GlobalCut(0, last, {prefix: cuts[prefix].get(sequence) for prefix, sequence in last.items()})

    def rows_of_last(self) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
        """Of each table, by prefix; nothing if there is no complete cut."""
        cuts = self.cuts()
        if not cuts or not cuts[-1].complete:
            return {}
        columns = {"account": ("id", "balance"), "part": ("transfer", "branch", "branches", "amount")}
        return {
            table: {
                prefix: sorted(tuple(row) for row in self._table(cuts[-1], prefix, table).select(*names).collect())
                for prefix in self._prefixes
            }
            for table, names in columns.items()
        }

    def tables(self, cut: GlobalCut, name: str) -> list[DataFrame]:
        """One of each database, as of a complete cut."""
        return [self._table(cut, prefix, name) for prefix in self._prefixes]

    def _table(self, cut: GlobalCut, prefix: str, name: str) -> DataFrame:
        (version,) = (each["version"] for each in cut.parts[prefix]["tables"] if each["name"] == f"public.{name}")
        return self._spark.sql(f"SELECT * FROM {catalog_of(prefix)}.public.{name} VERSION AS OF {version}")

    def _members_cuts(self, prefix: str) -> dict[int, Any]:
        name = f"{catalog_of(prefix)}.twofold.cuts"
        if not self._spark.catalog.tableExists(name):
            return {}
        return {row["sequence"]: row for row in self._spark.table(name).where("whole").collect()}

    @staticmethod
    def _cut(row: Any, members: dict[str, dict[int, Any]]) -> GlobalCut:
        sequences = {each["prefix"]: each["sequence"] for each in row["members"]}
        parts = {prefix: members[prefix].get(sequence) for prefix, sequence in sequences.items()}
        return GlobalCut(row["number"], sequences, parts)
