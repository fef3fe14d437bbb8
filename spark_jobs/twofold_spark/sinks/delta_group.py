"""A source group's mirror in Delta: a folder for each member in the folder that is named, and the
global cuts beside them.

The row of a global cut carries its number as Delta's mark of an application's transaction. So of
two jobs that publish one number, Delta rejects one or skips its row, and that job is refused.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import Refused
from twofold_spark.sinks import delta_tables
from twofold_spark.sinks.cuts import CUTS
from twofold_spark.sinks.delta_sink import DeltaSink
from twofold_spark.sinks.delta_tables import APPLICATION, DeltaReader
from twofold_spark.sinks.global_cut_table import COLUMNS, GLOBAL_CUTS, GlobalCutTable
from twofold_spark.sinks.interface import Reader, Sink


class DeltaGlobalTables:
    """The tables of global cuts in a folder."""

    place = "folder"

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._reader = DeltaReader(spark, folder)

    def prepare(self) -> None:
        if self._reader.has_table(CUTS):
            raise Refused(
                f"the folder {self._reader.folder} holds the mirror of one prefix, {self._reader.read_property(CUTS, 'twofold.prefix')}",
                at_stake="that mirror's tables: members' folders could lie in theirs, and VACUUM would remove their files",
                repair="give another folder to --sink delta=",
            )

    def name(self, table: str) -> str:
        return self._reader.table_path(table)

    def exists(self, table: str) -> bool:
        return self._reader.has_table(table)

    def create(self, table: str, columns: str, properties: Mapping[str, str]) -> None:
        delta_tables.create_table(self._spark, self.name(table), columns, properties)

    def read_property(self, table: str, key: str) -> str:
        return self._reader.read_property(table, key)

    def append(self, row: Mapping[str, Any]) -> None:
        at = row["published_at"].isoformat(timespec="microseconds")
        text = json.dumps({**row, "published_at": at})
        rows = self._spark.range(0, 1, 1, 1).select(f.from_json(f.lit(text), COLUMNS).alias("row")).select("row.*")
        # Options, because a setting of the session would mark all that it writes.
        mark = {"txnAppId": APPLICATION, "txnVersion": str(row["number"])}
        rows.write.format("delta").options(**mark).mode("append").save(self._reader.table_folder(GLOBAL_CUTS))
        ours = (f.col("number") == row["number"]) & (f.col("published_at") == f.lit(at).cast("timestamp"))
        if self._spark.table(self.name(GLOBAL_CUTS)).where(ours).isEmpty():
            raise Refused(
                f"another job published the global cut {row['number']}",
                at_stake="global cuts in an order that moves a member back",
                repair="end the other job, then start again",
            )

    def compact(self, table: str, keep: dt.timedelta) -> None:
        delta_tables.compact(self._spark, self.name(table), keep)


@dataclass(frozen=True, slots=True)
class DeltaGroup:
    """Makes the sinks of a group, and what reads them."""

    folder: str

    def __str__(self) -> str:
        return f"the folder {self.folder}"

    def make_sink(self, spark: SparkSession, prefix: str) -> Sink:
        return DeltaSink(spark, prefix, self._member_folder(prefix))

    def make_cuts(self, spark: SparkSession) -> GlobalCutTable:
        return GlobalCutTable(spark, DeltaGlobalTables(spark, self.folder))

    def make_reader(self, spark: SparkSession, prefix: str) -> Reader:
        return DeltaReader(spark, self._member_folder(prefix))

    def _member_folder(self, prefix: str) -> str:
        return f"{self.folder.rstrip('/')}/{prefix}"
