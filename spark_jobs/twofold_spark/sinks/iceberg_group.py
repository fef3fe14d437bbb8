"""A source group's mirror in Iceberg: a catalog for each member, and the global cuts in the catalog
that is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from twofold_spark.sinks.global_cut_table import GlobalCutTable, member_catalog
from twofold_spark.sinks.iceberg_sink import IcebergSink
from twofold_spark.sinks.iceberg_tables import FORMAT_VERSION
from twofold_spark.sinks.interface import Sink


@dataclass(frozen=True, slots=True)
class IcebergGroup:
    """Makes the sinks of a group."""

    catalog: str
    format_version: int = FORMAT_VERSION

    def make_sink(self, spark: SparkSession, prefix: str) -> Sink:
        catalog = member_catalog(self.catalog, prefix)
        return IcebergSink(spark, prefix, catalog, format_version=self.format_version)

    def make_cuts(self, spark: SparkSession) -> GlobalCutTable:
        return GlobalCutTable(spark, self.catalog)
