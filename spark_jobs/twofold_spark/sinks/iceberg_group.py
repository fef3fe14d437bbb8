"""A source group's mirror in Iceberg: a catalog for each member, and the global cuts in the catalog
that is named.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from twofold_spark.sinks import iceberg_maintenance, iceberg_rows, iceberg_tables
from twofold_spark.sinks.global_cut_table import GLOBAL_CUTS, GlobalCutTable
from twofold_spark.sinks.iceberg_repeated import forget_repeated_append
from twofold_spark.sinks.iceberg_sink import IcebergSink
from twofold_spark.sinks.iceberg_tables import FORMAT_VERSION, MAIN, IcebergReader
from twofold_spark.sinks.interface import Reader, Sink
from twofold_spark.sinks.partitioning import NO_PARTITIONING, Partitioning
from twofold_spark.sinks.write_mode import WriteMode


def member_catalog(catalog: str, prefix: str) -> str:
    """Return the catalog of a member's tables: its name must be a word of SQL."""
    return f"{catalog}_{re.sub('[^A-Za-z0-9_]', '_', prefix)}"


class IcebergGlobalTables:
    """The tables of global cuts in a catalog."""

    place = "warehouse"

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def prepare(self) -> None:
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._catalog}.twofold")
        if self.exists(GLOBAL_CUTS):
            forget_repeated_append(self._spark, iceberg_tables.load_table(self._spark, self.name(GLOBAL_CUTS)), MAIN)

    def name(self, table: str) -> str:
        return f"{self._catalog}.{table}"

    def exists(self, table: str) -> bool:
        return self._spark.catalog.tableExists(self.name(table))

    def create(self, table: str, columns: str, properties: Mapping[str, str]) -> None:
        listed = iceberg_tables.list_properties(FORMAT_VERSION, properties)
        self._spark.sql(f"CREATE TABLE {self.name(table)} ({columns}) USING iceberg TBLPROPERTIES ({listed})")

    def read_property(self, table: str, key: str) -> str:
        return str(iceberg_tables.load_table(self._spark, self.name(table)).properties().get(key) or "")

    def append(self, row: Mapping[str, Any]) -> None:
        iceberg_rows.append_row(self._spark, iceberg_tables.load_table(self._spark, self.name(GLOBAL_CUTS)), row)

    def compact(self, table: str, keep: dt.timedelta) -> None:
        iceberg_maintenance.maintain_plain(self._spark, self._catalog, table, keep)


@dataclass(frozen=True, slots=True)
class IcebergGroup:
    """Makes the sinks of a group, and what reads them."""

    catalog: str
    format_version: int = FORMAT_VERSION
    write_mode: WriteMode = "by-size"
    partitioning: Partitioning = NO_PARTITIONING

    def __str__(self) -> str:
        return f"the catalog {self.catalog}"

    def make_sink(self, spark: SparkSession, prefix: str) -> Sink:
        catalog = member_catalog(self.catalog, prefix)
        return IcebergSink(
            spark,
            prefix,
            catalog,
            format_version=self.format_version,
            write_mode=self.write_mode,
            partitioning=self.partitioning,
        )

    def make_cuts(self, spark: SparkSession) -> GlobalCutTable:
        return GlobalCutTable(spark, IcebergGlobalTables(spark, self.catalog))

    def make_reader(self, spark: SparkSession, prefix: str) -> Reader:
        return IcebergReader(spark, member_catalog(self.catalog, prefix))
