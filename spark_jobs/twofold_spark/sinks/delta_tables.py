"""Delta's tables as the sinks and readers know them: made, compacted; their folders, versions and
cuts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from twofold_spark.errors import Refused, SetupError
from twofold_spark.sinks import cut_rows, merge_sql
from twofold_spark.sinks.cuts import CUTS, NO_LIMIT, Cut, CutLimit
from twofold_spark.sources.topic_names import reload_command

APPLICATION = "twofold"
KEY = "twofold.key"
SPOILED = "twofold.spoiled"
"""The property of a table that two jobs have merged into at once."""
_PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    # A column of that type may be added later, and ALTER does not enable the feature.
    "delta.feature.timestampNtz": "supported",
}
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LEAST_HOURS = 168
"""Delta refuses to remove younger files."""


class DeltaReader:
    """Cuts and tables of a mirror in Delta."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self.folder = folder.rstrip("/")

    def table_folder(self, name: str) -> str:
        return "/".join((self.folder, *name.split(".", 1)))

    def table_path(self, name: str) -> str:
        """Return the table's name in SQL."""
        return f"delta.{merge_sql.SPARK.quote(self.table_folder(name))}"

    def has_table(self, name: str) -> bool:
        """Whether the table exists.

        `isDeltaTable` caches: it denies for an hour a table that it saw while another process made
        it.
        """
        log = self._jvm.org.apache.hadoop.fs.Path(self.table_folder(name), "_delta_log")
        files = log.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        return bool(files.exists(log) and self._read_snapshot(name).version() >= 0)

    def read_state(self, name: str) -> tuple[int, int]:
        """Return the table's version, and the sequence number up to which it has all changes."""
        snapshot = self._read_snapshot(name)
        if snapshot.metadata().configuration().get(SPOILED).isDefined():
            raise refuse_spoiled(name)
        found = snapshot.transactions().get(APPLICATION)
        return int(snapshot.version()), int(found.get()) if found.isDefined() else 0

    def read_last_cut(self) -> Cut | None:
        return cut_rows.read_outermost(self._spark.table(self.table_path(CUTS))) if self.has_table(CUTS) else None

    def find_cut(self, limit: CutLimit = NO_LIMIT, *, first: bool = False) -> Cut | None:
        if not self.has_table(CUTS):
            return None
        cuts = cut_rows.filter_cuts(self._spark.table(self.table_path(CUTS)), limit)
        return cut_rows.read_outermost(cuts, first=first)

    def read_table(self, name: str, version: str) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self.table_path(name)} VERSION AS OF {int(version)}")

    def read_key(self, name: str) -> tuple[str, ...]:
        return tuple(key for key in self.read_property(name, KEY).split(",") if key)

    def read_prefix(self) -> str:
        return self.read_property(CUTS, "twofold.prefix")

    def check_prefix(self, prefix: str) -> None:
        if not self.has_table(CUTS):
            raise SetupError(f"{self.folder} holds no mirror: run `twofold-spark mirror` into it first")
        present = self.read_prefix()
        if present != prefix:
            raise Refused(
                f"this folder holds the mirror of the prefix {present!r}, not of {prefix!r}",
                at_stake="the tables of two sources would be mixed",
                repair="use one folder for each prefix",
            )

    def read_property(self, name: str, key: str) -> str:
        """Return a property of the table; an empty text if it has none."""
        found = self._read_snapshot(name).metadata().configuration().get(key)
        return str(found.get()) if found.isDefined() else ""

    def _read_snapshot(self, name: str) -> Any:
        """Read the present state of the table from Delta's log, without a query."""
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession, self.table_folder(name)
        )
        none = self._jvm.scala.Option.empty()
        may_be_stale = False
        return log.update(may_be_stale, none, none)

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm


def create_table(spark: SparkSession, name: str, columns: str, properties: Mapping[str, str]) -> None:
    """Create a table; `name` is that in SQL."""
    escape = merge_sql.escape_literal
    listed = ", ".join(f"'{escape(k)}' = '{escape(v)}'" for k, v in {**_PROPERTIES, **properties}.items())
    spark.sql(f"CREATE TABLE {name} ({columns}) USING delta TBLPROPERTIES ({listed})")


def compact(spark: SparkSession, name: str, keep: dt.timedelta) -> None:
    """Compact a table's files, and remove those that only its states before `keep` need."""
    # VACUUM lists a table's folder in so many tasks, whatever it holds. The default of 10,000 took
    # two cores more than a minute for each table.
    spark.conf.set(_LISTING_TASKS, spark.sparkContext.defaultParallelism)
    hours = max(_LEAST_HOURS, round(keep.total_seconds() / 3600))
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"VACUUM {name} RETAIN {hours} HOURS")


def refuse_spoiled(table: str) -> Refused:
    """Make the refusal of a table that two jobs merged into at once."""
    return Refused(
        f"two jobs merged into {table} at once",
        at_stake="changes applied twice, or applied to a state that they do not belong to",
        repair=f"end the other job, drop the mirror's table (its folder), then `{reload_command(table)}`",
    )
