"""The mirror in Delta: tables in folders, with deletion vectors and type widening.

The sequence number is Delta's own mark of an application's transaction (`txnAppId` twofold, `txnVersion` the sequence),
written by the very commit that holds the rows and kept in the table's state for good; Delta itself passes over a merge
whose number it has. A batch is merged onto the state that was looked at: a table that has another number by then is
refused before anything is written, two writers at once are refused by Delta, and one that came in the instant between is
seen by the versions, before a cut is published. Such a table is marked: RESTORE would bring back its rows and leave the
number, so it can only be loaded anew.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_spark.errors import MissingGround, Refused
from twofold_spark.mirror.toast_values import OP, UNCHANGED
from twofold_spark.sinks import ANY, Asked, Cut, Table, column_changes, cut_rows, merge_sql
from twofold_spark.sinks.merge_sql import text
from twofold_spark.sources.unreadable_records import PLACE

_APPLICATION = "twofold"
_TXN_ID, _TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LEAST_HOURS = 168
"""Delta refuses to remove files that are younger."""
_CUTS, _QUARANTINE = "twofold.cuts", "twofold.quarantine"
_KEY = "twofold.key"
_SPOILED = "twofold.spoiled"
"""The property of a table that two jobs have merged into at once."""
_PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    # A column of that type may come later, and ALTER does not turn the feature on.
    "delta.feature.timestampNtz": "supported",
}


class DeltaSink:
    """One writer into one folder."""

    def __init__(self, spark: SparkSession, prefix: str, folder: str) -> None:
        self._spark = spark
        self._prefix = prefix
        self._reader = DeltaReader(spark, folder)
        self._lock = threading.Lock()
        self._seen: dict[Table, tuple[int, int] | None] = {}

    def last_cut(self) -> Cut | None:
        if not self._reader.exists(_CUTS):
            self._create(_CUTS, cut_rows.COLUMNS, {"twofold.prefix": self._prefix})
        self._reader.check_prefix(self._prefix)
        return self._reader.last_cut()

    def applied(self, table: Table) -> int:
        seen = self._reader.at(str(table)) if self._reader.exists(str(table)) else None
        with self._lock:
            self._seen[table] = seen
        return seen[1] if seen else 0

    def prepare(self, table: Table, columns: StructType) -> None:
        name = self._reader.path(str(table))
        if not self._reader.exists(str(table)):
            properties = {"twofold.topic": table.topic, _KEY: ",".join(table.key)}
            self._create(str(table), column_changes.columns_sql(columns), properties)
        for change in column_changes.changes(self._spark.table(name).schema, columns, table=str(table)):
            self._spark.sql(f"ALTER TABLE {name} {change}")

    def current(self, table: Table) -> DataFrame | None:
        return self._spark.table(self._reader.path(str(table))) if self._reader.exists(str(table)) else None

    def merge(self, table: Table, rows: DataFrame, *, replace: bool, unchanged: tuple[str, ...], sequence: int) -> None:
        name, spark = self._reader.path(str(table)), rows.sparkSession
        had = self._reader.key_of(str(table))
        merge_sql.check_key(table, had, replace=replace)
        if had != table.key:
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_KEY}' = '{text(','.join(table.key))}')")
        before, known = self._reader.at(str(table))
        if known != (expected := (self._seen[table] or (0, 0))[1]):
            raise Refused(
                f"another writer brought {table} from {expected} to {known} while a batch was made for it",
                at_stake="nothing yet: this one has not been merged",
                repair="end the other job, then start again",
            )
        # What is set here is every table's of this batch alike, so merges of several tables may run at once.
        spark.conf.set(_TXN_ID, _APPLICATION)
        spark.conf.set(_TXN_VERSION, str(sequence))
        columns = [c for c in rows.columns if c not in (OP, UNCHANGED)]
        view = f"_twofold_{abs(hash(table))}"
        if replace or known == 0:
            names = ", ".join(merge_sql.SPARK.quote(c) for c in columns)
            merge_sql.arriving(rows, table.key).createOrReplaceTempView(view)
            statement = f"INSERT {'OVERWRITE' if replace else 'INTO'} {name} ({names}) SELECT {names} FROM {view}"
        else:
            rows.createOrReplaceTempView(view)
            statement = merge_sql.merge(name, view, table.key, columns, unchanged=unchanged)
        try:
            spark.sql(statement)
        except Exception as error:
            if merge_sql.is_lacking(error):
                raise merge_sql.lacks(table) from error
            raise
        after = self._reader.at(str(table))
        if after != (before + 1, sequence):
            # Its number says that it has this batch: nobody must believe it.
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_SPOILED}' = 'by two writers')")
            raise _spoiled(str(table))
        with self._lock:
            self._seen[table] = after

    def quarantine(self, records: DataFrame) -> None:
        if self._reader.exists(_QUARANTINE):
            there = self._spark.table(self._reader.path(_QUARANTINE))
            records = records.join(there.select(*PLACE), list(PLACE), "left_anti")
        # A mark of its own: with the session's, Delta would let only one table of a batch write.
        own = {"txnAppId": f"quarantine {uuid.uuid4()}", "txnVersion": "1"}
        records.write.format("delta").options(**own).mode("append").save(self._reader.folder(_QUARANTINE))

    def version(self, table: Table) -> str | None:
        seen = self._seen[table]
        return str(seen[0]) if seen else None

    def publish(self, cut: Cut) -> None:
        self._spark.conf.set(_TXN_ID, _APPLICATION)
        self._spark.conf.set(_TXN_VERSION, str(cut.sequence))
        self._spark.sql(f"INSERT INTO {self._reader.path(_CUTS)} {cut_rows.select(cut)}")

    def maintain(self, tables: Iterable[str], keep: dt.timedelta) -> None:
        last = self._reader.last_cut()
        assert last is not None, "maintenance comes after a cut"
        for name in (_TXN_ID, _TXN_VERSION):
            self._spark.conf.unset(name)
        self._spark.sql(f"DELETE FROM {self._reader.path(_CUTS)} WHERE {cut_rows.forgotten(last, keep)}")
        # VACUUM lists a table's folder in as many tasks as this says, whatever is there: 10,000 unless set, which took two cores more than a minute a table.
        self._spark.conf.set(_LISTING_TASKS, self._spark.sparkContext.defaultParallelism)
        hours = max(_LEAST_HOURS, round(keep.total_seconds() / 3600))
        for table in (*tables, _CUTS):
            self._spark.sql(f"OPTIMIZE {self._reader.path(table)}")
            self._spark.sql(f"VACUUM {self._reader.path(table)} RETAIN {hours} HOURS")

    def close(self) -> None:
        """It holds nothing."""

    def _create(self, name: str, columns: str, properties: Mapping[str, str]) -> None:
        listed = ", ".join(f"'{text(k)}' = '{text(v)}'" for k, v in {**_PROPERTIES, **properties}.items())
        self._spark.sql(f"CREATE TABLE {self._reader.path(name)} ({columns}) USING delta TBLPROPERTIES ({listed})")


class DeltaReader:
    """Cuts and tables of a mirror in Delta."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = folder.rstrip("/")

    def folder(self, name: str) -> str:
        return "/".join((self._folder, *name.split(".", 1)))

    def path(self, name: str) -> str:
        return f"delta.{merge_sql.SPARK.quote(self.folder(name))}"

    def exists(self, name: str) -> bool:
        """Not by `isDeltaTable`: of a table that it met while another process made it, it says for an hour that there is none."""
        log = self._jvm.org.apache.hadoop.fs.Path(self.folder(name), "_delta_log")
        files = log.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        return bool(files.exists(log) and self._snapshot(name).version() >= 0)

    def at(self, name: str) -> tuple[int, int]:
        """The table's version, and the sequence number up to which it has all changes."""
        snapshot = self._snapshot(name)
        if snapshot.metadata().configuration().get(_SPOILED).isDefined():
            raise _spoiled(name)
        found = snapshot.transactions().get(_APPLICATION)
        return int(snapshot.version()), int(found.get()) if found.isDefined() else 0

    def last_cut(self) -> Cut | None:
        return cut_rows.end_of(self._spark.table(self.path(_CUTS))) if self.exists(_CUTS) else None

    def whole_cut(self, asked: Asked = ANY, *, first: bool = False) -> Cut | None:
        if not self.exists(_CUTS):
            return None
        return cut_rows.end_of(cut_rows.meant(self._spark.table(self.path(_CUTS)), asked), first=first)

    def table(self, name: str, version: str) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self.path(name)} VERSION AS OF {int(version)}")

    def key_of(self, name: str) -> tuple[str, ...]:
        return tuple(key for key in self._property(name, _KEY).split(",") if key)

    def check_prefix(self, prefix: str) -> None:
        if not self.exists(_CUTS):
            raise MissingGround(f"{self._folder} holds no mirror: has `mirror` run into it?")
        whose = self._property(_CUTS, "twofold.prefix")
        if whose != prefix:
            raise Refused(
                f"this folder mirrors the prefix {whose!r}, not {prefix!r}",
                at_stake="two sources' tables mixed",
                repair="one folder for each prefix",
            )

    def _property(self, name: str, key: str) -> str:
        found = self._snapshot(name).metadata().configuration().get(key)
        return str(found.get()) if found.isDefined() else ""

    def _snapshot(self, name: str) -> Any:
        """Delta's own view of the table as it is now: its log, without a query."""
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.folder(name))
        none = self._jvm.scala.Option.empty()
        stale_will_do = False
        return log.update(stale_will_do, none, none)

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm


def _spoiled(table: str) -> Refused:
    return Refused(
        f"two jobs merged into {table} at once",
        at_stake="changes applied twice, or onto a state that they do not belong to",
        repair=f"end the other job, drop the mirror's table (its folder), then `twofold backfill start {table}`",
    )
