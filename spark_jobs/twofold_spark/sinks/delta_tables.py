"""Delta's tables as the sinks and readers know them: made, compacted; their folders, versions and
cuts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import Refused
from twofold_spark.java_classes import java_class
from twofold_spark.sinks import merge_sql
from twofold_spark.sinks.cut_rows import VersionedReader, VersionedTables
from twofold_spark.sources.topic_names import reload_command

APPLICATION = "twofold"
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
_AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"
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
    """The version that it went back to, if it did; -1 if a person named a time instead."""


class DeltaTables(VersionedTables):
    """The tables of one source in a folder."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        super().__init__(spark)
        self.folder = folder.rstrip("/")

    def table_folder(self, name: str) -> str:
        return "/".join((self.folder, *name.split(".", 1)))

    def name(self, table: str) -> str:
        return f"delta.{merge_sql.SPARK.quote(self.table_folder(table))}"

    def has(self, table: str) -> bool:
        # `isDeltaTable` caches: it denies for an hour a table that it saw while another process
        # made it.
        log = java_class(self.spark, "org.apache.hadoop.fs.Path")(self.table_folder(table), "_delta_log")
        files = log.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())
        return bool(files.exists(log) and self.read_version(table) >= 0)

    def create(self, table: str, columns: str, properties: Mapping[str, str]) -> None:
        escape = merge_sql.escape_literal
        listed = ", ".join(f"'{escape(k)}' = '{escape(v)}'" for k, v in {**_PROPERTIES, **properties}.items())
        self.spark.sql(f"CREATE TABLE {self.name(table)} ({columns}) USING delta TBLPROPERTIES ({listed})")

    def of_member(self, prefix: str) -> DeltaTables:
        return DeltaTables(self.spark, f"{self.folder}/{prefix}")

    def read_state(self, name: str) -> tuple[int, int]:
        """Return the table's version, and the sequence number up to which it has all changes."""
        snapshot = self._read_snapshot(name)
        if snapshot.metadata().configuration().get(SPOILED).isDefined():
            raise refuse_spoiled(name)
        found = snapshot.transactions().get(APPLICATION)
        return int(snapshot.version()), int(found.get()) if found.isDefined() else 0

    def read_version(self, name: str) -> int:
        return int(self._read_snapshot(name).version())

    def read_property(self, table: str, key: str) -> str:
        found = self._read_snapshot(table).metadata().configuration().get(key)
        return str(found.get()) if found.isDefined() else ""

    def _read_snapshot(self, name: str) -> Any:
        """Read the present state of the table from Delta's log, without a query."""
        logs = java_class(self.spark, "org.apache.spark.sql.delta.DeltaLog")
        log = logs.forTable(self.spark._jsparkSession, self.table_folder(name))
        none = java_class(self.spark, "scala.Option").empty()
        may_be_stale = False
        return log.update(may_be_stale, none, none)


class DeltaReader(VersionedReader):
    """Cuts and tables of a mirror in Delta."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        super().__init__(DeltaTables(spark, folder))

    def read_table(self, prefix: str, name: str, version: str) -> DataFrame:
        with _reading_old_versions(self._own.spark):
            return super().read_table(prefix, name, version)


def compact_only_when_asked(spark: SparkSession) -> None:
    """Let no write of this session be followed by a compaction, whatever the table's property says.

    Its commit would be taken for another job's.
    """
    spark.conf.set(_AUTO_COMPACT, "false")


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
    version = f.coalesce(f.expr("operationParameters['version']").try_cast("bigint"), f.lit(-1))
    restored = f.when(f.col("operation") == "RESTORE", version)
    number = f.coalesce(f.substring_index("userMetadata", " ", -1).try_cast("bigint"), f.lit(0))
    rows = history.select("version", number.alias("number"), restored.alias("restored")).collect()
    return sorted(RowCommit(row["version"], row["number"], row["restored"]) for row in rows)


def has_lost_rows(commits: Iterable[RowCommit], shown: int) -> bool:
    """Whether a RESTORE among the commits behind a version took rows away whose number stays.

    It did not if it brought back that version, and no merge came before.
    """
    listed = [*commits]
    restores = [place for place, each in enumerate(listed) if each.restored is not None]
    if not restores:
        return False
    last = restores[-1]
    return listed[last].restored != shown or any(each.number for each in listed[:last])


def restore(spark: SparkSession, name: str, version: int) -> None:
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


def begin_restore(name: str) -> str:
    """Return how a person's RESTORE begins: its version may be older than Delta's retention."""
    return f"SET {_ENFORCE_AGE}=false; RESTORE TABLE {name}"


def refuse_restored(table: str, name: str, shown: int, *, may_return: bool) -> Refused:
    """Make the refusal of a table that a person restored; `name` is that in SQL.

    It may return to the version of the last cut if no merge has come since.
    """
    back = f"{begin_restore(name)} TO VERSION AS OF {shown}, or " if may_return else ""
    return Refused(
        f"RESTORE has brought back former rows of {table} since the last cut, which has its version {shown}",
        at_stake="changes that would be missing: the table's number still says that it has them",
        repair=f"{back}drop the mirror's table (its folder), then `{reload_command(table)}`",
    )


def refuse_former(table: str, applied: int, last: int) -> Refused:
    """Make the refusal of a table that is at an earlier version than the last cut has."""
    return Refused(
        f"{table} is at {applied} again, after cut {last} had it: the table alone was restored from a backup",
        at_stake="the changes in between, which would be missing",
        repair=f"drop the mirror's table (its folder), then `{reload_command(table)}`",
    )


def refuse_spoiled(table: str) -> Refused:
    return Refused(
        f"two jobs merged into {table} at once",
        at_stake="changes applied twice, or applied to a state that they do not belong to",
        repair=f"end the other job, drop the mirror's table (its folder), then `{reload_command(table)}`",
    )
