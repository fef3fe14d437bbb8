"""The mirror's tables as programs read them that know nothing of the product: pyiceberg, Delta's
own reader, and SQL in PostgreSQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession

from fixtures.spark import Lake
from helpers.spark.bank import MONEY
from helpers.spark.source_bank import Rows, SourceBank
from helpers.worker import Worker

_BANK = ("accounts", "vault")
_COPIES = "_copies"


class PlainTables(Protocol):
    """Tables of one mirror."""

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        """Return what the table's name has."""
        ...

    def read_total(self) -> int | None:
        """Return what both tables of the bank hold in the last cut; None before the first."""
        ...

    def read_totals(self) -> dict[int, int]:
        """Return the same of each cut that is kept, by its number."""
        ...


class IcebergTables:
    """By pyiceberg; cuts by the snapshots that `twofold.cuts` names."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._catalog.load_table(("public", name)).scan().to_arrow().to_pylist()
        return rows

    def read_total(self) -> int | None:
        cuts = self._read_cuts()
        return self._add_up(cuts[max(cuts)]) if cuts else None

    def read_totals(self) -> dict[int, int]:
        return {sequence: self._add_up(versions) for sequence, versions in self._read_cuts().items()}

    def _read_cuts(self) -> dict[int, Mapping[str, int]]:
        if not self._catalog.table_exists(("twofold", "cuts")):
            return {}
        return _find_versions(self._catalog.load_table(("twofold", "cuts")).scan().to_arrow().to_pylist())

    def _add_up(self, versions: Mapping[str, int]) -> int:
        scans = (
            self._catalog.load_table(("public", name)).scan(snapshot_id=versions[f"public.{name}"]) for name in _BANK
        )
        return sum(sum(scan.to_arrow().column("balance").to_pylist()) for scan in scans)


class DeltaTables:
    """By Delta's own reader in Spark; cuts by the versions that `twofold/cuts` names. In Delta a
    table's name may have more than the last cut.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = Path(folder)

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self._load("public", name).collect()]

    def read_total(self) -> int | None:
        cuts = self._read_cuts()
        return self._add_up(cuts[max(cuts)]) if cuts else None

    def read_totals(self) -> dict[int, int]:
        return {sequence: self._add_up(versions) for sequence, versions in self._read_cuts().items()}

    def _read_cuts(self) -> dict[int, Mapping[str, int]]:
        if not any((self._folder / "twofold" / "cuts" / "_delta_log").glob("*.json")):
            return {}
        return _find_versions(row.asDict(recursive=True) for row in self._load("twofold", "cuts").collect())

    def _add_up(self, versions: Mapping[str, int]) -> int:
        loaded = (self._load("public", name, version=versions[f"public.{name}"]) for name in _BANK)
        return sum(row["balance"] for table in loaded for row in table.select("balance").collect())

    def _load(self, *path: str, version: int | None = None) -> DataFrame:
        reader = self._spark.read.format("delta")
        reader = reader if version is None else reader.option("versionAsOf", version)
        return reader.load(str(self._folder.joinpath(*path)))


class PostgresTables:
    """By SQL, in one snapshot; there is the last cut alone."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        with psycopg.connect(self._conninfo, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM public.{name}".encode()).fetchall()

    def read_total(self) -> int | None:
        with psycopg.connect(self._conninfo) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            sums = [connection.execute(f"SELECT sum(balance) FROM public.{name}".encode()).fetchone() for name in _BANK]
        return sum(int(row[0]) for row in sums if row is not None)

    def read_totals(self) -> dict[int, int]:
        total = self.read_total()
        return {} if total is None else {0: total}


def open_tables(lake: Lake) -> PlainTables:
    """Return the tables of a lake whose catalog is its warehouse's own, or of its other sink."""
    match lake.choice.name:
        case "delta":
            return DeltaTables(lake.spark, lake.choice.address)
        case "jdbc":
            return PostgresTables(lake.choice.address)
        case _:
            return IcebergTables(SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.warehouse}/catalog.db"))


def assert_equal_to_source(tables: PlainTables, bank: SourceBank) -> None:
    """Each table has what the source has: nothing lost, nothing doubled. Each cut is whole."""
    for name, wanted in bank.read_rows().items():
        found = count_rows(tables.read_rows(name))
        assert found == wanted, (name, found - wanted, wanted - found)
    totals = tables.read_totals()
    assert set(totals.values()) == {MONEY}, totals


def count_rows(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Count equal rows; one without a key says how many there are of it."""
    found: Rows = Counter()
    for row in rows:
        found[tuple(value for name, value in row.items() if name != _COPIES)] += row.get(_COPIES, 1)
    return found


def _find_versions(cuts: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, int]]:
    whole = (cut for cut in cuts if cut["whole"])
    return {cut["sequence"]: {each["name"]: int(each["version"]) for each in cut["tables"]} for cut in whole}


class TotalsThread(Worker):
    """Reads the total of the last cut again and again, until `stop`."""

    def __init__(self, read_total: Callable[[], int | None], pause_s: float) -> None:
        super().__init__("totals")
        self._read_total = read_total
        self._pause_s = pause_s
        self.totals: Counter[int] = Counter()
        self.start()

    def work(self) -> None:
        while not self._stopped.wait(self._pause_s):
            if (total := self._read_total()) is not None:
                self.totals[total] += 1

    def stop(self) -> None:
        """End it, and check that each read had the whole money."""
        super().stop()
        assert set(self.totals) == {MONEY}, self.totals
