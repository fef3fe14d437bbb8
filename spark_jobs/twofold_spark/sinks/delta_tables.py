"""Delta's tables as the sinks and readers know them: made, compacted; their folders, versions and
cuts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import Refused
from twofold_spark.sinks import cut_rows, merge_sql
from twofold_spark.sinks.cuts import CUTS, NO_LIMIT, OF_GROUP, CutLimit, GlobalCut
from twofold_spark.sinks.sharding import PROPERTY, SHARED, Sharding
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
_SKIP_EMPTY = "spark.databricks.delta.skipRecordingEmptyCommits"
_ENFORCE_AGE = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
_CHANGE_ROWS = ("MERGE", "WRITE", "RESTORE")
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LEAST_HOURS = 168
"""Delta refuses to remove younger files."""


class RowCommit(NamedTuple):
    """A commit that changed a table's rows."""

    version: int
    number: int
    """The merge's; 0 if another program wrote."""
    restored: int | None
    """The version that it went back to, if it did."""


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

    def read_version(self, name: str) -> int:
        return int(self._read_snapshot(name).version())

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
        return Sharding.parse(self._own.read_property(CUTS, PROPERTY))

    def read_table(self, prefix: str, name: str, version: str) -> DataFrame:
        with _reading_old_versions(self._spark):
            name = self._tables(prefix).table_path(name)
            return self._spark.sql(f"SELECT * FROM {name} VERSION AS OF {int(version)}")

    def read_key(self, prefix: str, name: str) -> tuple[str, ...]:
        return self._tables(prefix).read_key(name)

    def _tables(self, prefix: str) -> DeltaTables:
        of_member = prefix != SHARED and self.is_of_group()
        return DeltaTables(self._spark, member_folder(self._own.folder, prefix)) if of_member else self._own


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
    label_writes(spark, number, writer)


def label_writes(spark: SparkSession, number: int, writer: str) -> None:
    """Let each write of this session be a commit, also without rows, that says who wrote it."""
    spark.conf.set(_USER_METADATA, f"{writer} {number}")
    spark.conf.set(_SKIP_EMPTY, "false")


def find_write(spark: SparkSession, name: str, number: int, writer: str) -> int | None:
    """Return the version of a table that has these marks; None if Delta skipped the write."""
    found = spark.sql(f"DESCRIBE HISTORY {name}").where(f.col("userMetadata") == f"{writer} {number}")
    row = found.agg(f.max("version")).first()
    return row[0] if row is not None else None


def list_row_commits(spark: SparkSession, name: str, last: int) -> list[RowCommit]:
    """List those of a table's last commits that changed rows, oldest first."""
    history = spark.sql(f"DESCRIBE HISTORY {name} LIMIT {last}").where(f.col("operation").isin(*_CHANGE_ROWS))
    restored = f.expr("IF(operation = 'RESTORE', operationParameters['version'], NULL)").cast("bigint")
    number = f.coalesce(f.substring_index("userMetadata", " ", -1).try_cast("bigint"), f.lit(0))
    rows = history.select("version", number.alias("number"), restored.alias("restored")).collect()
    return sorted(RowCommit(row["version"], row["number"], row["restored"]) for row in rows)


def restore(spark: SparkSession, name: str, version: int) -> None:
    """Bring a table's rows back to a version."""
    forget_marks(spark)
    with _reading_old_versions(spark):
        spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {version}")


@contextmanager
def _reading_old_versions(spark: SparkSession) -> Iterator[None]:
    """Let versions be read that are older than Delta keeps removed files.

    Delta counts from a version's commit, and its files are kept since they were removed: a version
    may have been the last one until now.
    """
    before = str(spark.conf.get(_ENFORCE_AGE, "true"))
    spark.conf.set(_ENFORCE_AGE, "false")
    try:
        yield
    finally:
        spark.conf.set(_ENFORCE_AGE, before)


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
