"""Delta's tables as the sinks and readers know them: made, compacted; their folders, versions and
cuts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import Refused
from twofold_spark.sinks import cut_rows, merge_sql
from twofold_spark.sinks.cuts import CUTS, NO_LIMIT, OF_GROUP, CutLimit, GlobalCut
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
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
_TXN_ID, _TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LEAST_HOURS = 168
"""Delta refuses to remove younger files."""


class DeltaTables:
    """The tables of one source in a folder."""

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

    def read_key(self, name: str) -> tuple[str, ...]:
        return tuple(key for key in self.read_property(name, KEY).split(",") if key)

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


class DeltaReader:
    """Cuts and tables of a mirror in Delta."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._own = DeltaTables(spark, folder)

    def find_cut(self, limit: CutLimit = NO_LIMIT, *, first: bool = False) -> GlobalCut | None:
        if not self._own.has_table(CUTS):
            return None
        return cut_rows.find_cut(self._spark.table(self._own.table_path(CUTS)), limit, first=first)

    def is_of_group(self) -> bool:
        return self._own.read_property(CUTS, OF_GROUP) == str(True)

    def read_sharding(self) -> Sharding:
        return NO_SHARDING  # the command refuses it with Delta

    def read_table(self, prefix: str, name: str, version: str) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self._tables(prefix).table_path(name)} VERSION AS OF {int(version)}")

    def read_key(self, prefix: str, name: str) -> tuple[str, ...]:
        return self._tables(prefix).read_key(name)

    def _tables(self, prefix: str) -> DeltaTables:
        return DeltaTables(self._spark, member_folder(self._own.folder, prefix)) if self.is_of_group() else self._own


def member_folder(folder: str, prefix: str) -> str:
    """Return the folder of a member's tables."""
    return f"{folder.rstrip('/')}/{prefix}"


def create_table(spark: SparkSession, name: str, columns: str, properties: Mapping[str, str]) -> None:
    """Create a table; `name` is that in SQL."""
    escape = merge_sql.escape_literal
    listed = ", ".join(f"'{escape(k)}' = '{escape(v)}'" for k, v in {**_PROPERTIES, **properties}.items())
    spark.sql(f"CREATE TABLE {name} ({columns}) USING delta TBLPROPERTIES ({listed})")


def mark_writes(spark: SparkSession, number: int, writer: str) -> None:
    """Let what this session writes carry a number and its writer.

    Delta skips a number that a table has already.
    """
    spark.conf.set(_TXN_ID, APPLICATION)
    spark.conf.set(_TXN_VERSION, str(number))
    spark.conf.set(_USER_METADATA, f"{writer} {number}")


def find_write(spark: SparkSession, name: str, number: int, writer: str) -> int | None:
    """Return the version of a table that has these marks; None if Delta skipped the write."""
    found = spark.sql(f"DESCRIBE HISTORY {name}").where(f.col("userMetadata") == f"{writer} {number}")
    row = found.agg(f.max("version")).first()
    return row[0] if row is not None else None


def forget_marks(spark: SparkSession) -> None:
    """Let what this session writes carry no number."""
    for name in (_TXN_ID, _TXN_VERSION, _USER_METADATA):
        spark.conf.unset(name)


def compact(spark: SparkSession, name: str, keep: dt.timedelta) -> None:
    """Compact a table's files, and remove those that only its states before `keep` need."""
    # VACUUM lists a table's folder in so many tasks, whatever it holds. The default of 10,000 took
    # two cores more than a minute for each table.
    spark.conf.set(_LISTING_TASKS, spark.sparkContext.defaultParallelism)
    hours = max(_LEAST_HOURS, round(keep.total_seconds() / 3600))
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"VACUUM {name} RETAIN {hours} HOURS")


def refuse_other_writer(table: str) -> Refused:
    """Make the refusal of a table that has another job's commit, and nothing that is wrong."""
    return Refused(
        f"another writer committed to {table} while this job wrote to it",
        at_stake="nothing: no change was applied twice",
        repair="end the other job, then start again",
    )


def refuse_spoiled(table: str) -> Refused:
    """Make the refusal of a table that two jobs merged into at once."""
    return Refused(
        f"two jobs merged into {table} at once",
        at_stake="changes applied twice, or applied to a state that they do not belong to",
        repair=f"end the other job, drop the mirror's table (its folder), then `{reload_command(table)}`",
    )
