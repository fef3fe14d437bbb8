"""The mirror in Iceberg: format v3, merge-on-read, any catalog.

The sequence number lies in the snapshot's summary (`twofold.sequence`), written by the very commit that holds the rows.
Compaction and expiry make snapshots without one, so it is looked for along the snapshots' parents. A cut is a row of the
table `twofold.cuts`, whose own snapshot carries the sequence number too: one metadata read at start finds where the
mirror stands.

A batch is merged onto the snapshot whose sequence number was looked at: if another job came in between, the new
snapshot's parent tells, and this one stops before it publishes anything.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_spark.carry import OP, UNCHANGED
from twofold_spark.errors import MissingGround, Refused
from twofold_spark.quarantine import PLACE
from twofold_spark.session import CATALOG
from twofold_spark.sinks import Cut, Table, cut_rows, evolution, merging
from twofold_spark.sinks.merging import text

SEQUENCE = "twofold.sequence"
_V3 = {
    "format-version": "3",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # The rows come hashed by key already; another shuffle before writing would only cost.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}


_MAKING = threading.Lock()


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def cuts_table(catalog: str) -> str:
    return f"{catalog}.twofold.cuts"


class IcebergSink:
    """One writer; its reads are of the table as it is now."""

    def __init__(self, spark: SparkSession, prefix: str, catalog: str = CATALOG) -> None:
        self._spark = spark
        self._catalog = catalog
        self._prefix = prefix
        self._lock = threading.Lock()
        self._bases: dict[str, int | None] = {}

    def last_cut(self) -> Cut | None:
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._catalog}.twofold")
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {cuts_table(self._catalog)} ({cut_rows.COLUMNS}) USING iceberg "
            f"TBLPROPERTIES ({_properties({**_V3, 'twofold.prefix': self._prefix})})"
        )
        reader = IcebergReader(self._spark, self._catalog)
        reader.check_prefix(self._prefix)
        return reader.last_cut()

    def applied(self, table: Table) -> int:
        loaded = self._loaded(table)
        if loaded is None:
            return 0
        snapshot = loaded.currentSnapshot()
        with self._lock:
            self._bases[str(table)] = snapshot.snapshotId() if snapshot else None
        return int(summary_value(self._spark, self._name(table), SEQUENCE) or 0)

    def prepare(self, table: Table, columns: StructType) -> None:
        properties = {**_MERGE_ON_READ, "twofold.topic": table.topic, "twofold.key": ",".join(table.key)}
        prepare(self._spark, self._name(table), columns, label=str(table), properties=properties)

    def current(self, table: Table) -> DataFrame | None:
        return self._spark.table(self._name(table)) if self._loaded(table) is not None else None

    def merge(self, table: Table, rows: DataFrame, *, replace: bool, sequence: int) -> None:
        name = self._name(table)
        spark = rows.sparkSession
        # What is set here is every table's of this batch alike, so merges of several tables may run at once.
        spark.conf.set(f"spark.sql.iceberg.snapshot-property.{SEQUENCE}", str(sequence))
        base = self._bases.get(str(table))
        kept = rows.where(f"{OP} <> 'd'").drop(OP, UNCHANGED)
        if replace:
            kept.writeTo(name).overwrite(f.lit(True))
        elif base is None:
            kept.writeTo(name).append()
        else:
            view = f"_twofold_{abs(hash(str(table)))}"
            rows.createOrReplaceTempView(view)
            spark.sql(merging.merge(name, view, table.key, [c for c in rows.columns if c not in (OP, UNCHANGED)]))
        self._check_parent(table, base)

    def quarantine(self, records: DataFrame) -> None:
        quarantine(records, self._catalog)

    def version(self, table: Table) -> str | None:
        loaded = self._loaded(table)
        snapshot = loaded.currentSnapshot() if loaded is not None else None
        return str(snapshot.snapshotId()) if snapshot else None

    def publish(self, cut: Cut) -> None:
        self._spark.conf.set(f"spark.sql.iceberg.snapshot-property.{SEQUENCE}", str(cut.sequence))
        self._spark.sql(f"INSERT INTO {cuts_table(self._catalog)} {cut_rows.select(cut)}")

    def maintain(self, tables: Iterable[str], keep: dt.timedelta) -> None:
        cuts = cuts_table(self._catalog)
        self._spark.sql(f"DELETE FROM {cuts} WHERE {cut_rows.forgotten(cuts, keep)}")
        named = self._spark.table(cuts).select(f.explode("tables").alias("t")).select("t.name", "t.version").distinct()
        wanted = {(row["name"], row["version"]) for row in named.collect()}
        for table in (*tables, "twofold.cuts"):
            self._spark.sql(f"CALL {self._catalog}.system.rewrite_data_files(table => '{text(self._named(table))}')")
            self._expire(table, {version for name, version in wanted if name == table}, keep)

    def _expire(self, table: str, wanted: set[int], keep: dt.timedelta) -> None:
        """Snapshots by their ids: one may be old and yet be what a young cut names of a table that was idle."""
        newest_first = self._spark.sql(
            f"SELECT snapshot_id, committed_at < {cut_rows.ago(keep)} AS old FROM {self._named(table)}.snapshots "
            "ORDER BY committed_at DESC"
        ).collect()
        # The last two: where the table stands is in one of them, the other is compaction's.
        old = [str(row[0]) for row in newest_first[2:] if row["old"] and row[0] not in wanted]
        if old:
            self._spark.sql(
                f"CALL {self._catalog}.system.expire_snapshots(table => '{text(self._named(table))}', "
                f"older_than => TIMESTAMP '1970-01-01 00:00:00', snapshot_ids => array({', '.join(old)}))"
            )

    def _name(self, table: Table) -> str:
        return self._named(str(table))

    def _named(self, table: str) -> str:
        """With the catalog: its name may be a schema's as well, and then a procedure takes `twofold.cuts` for its own."""
        return f"{self._catalog}.{quoted(*table.split('.', 1))}"

    def _loaded(self, table: Table) -> Any | None:
        return _load(self._spark, self._name(table)) if self._spark.catalog.tableExists(self._name(table)) else None

    def _check_parent(self, table: Table, base: int | None) -> None:
        loaded = self._loaded(table)
        snapshot = loaded.currentSnapshot() if loaded is not None else None
        parent = snapshot.parentId() if snapshot else None
        if snapshot is not None and parent != base and snapshot.snapshotId() != base:
            raise Refused(
                f"another writer committed to {table} while this batch was merged (snapshot {parent} after {base})",
                at_stake="a batch applied onto a state that it does not belong to",
                repair=f"end the other job, then: CALL {self._catalog}.system.rollback_to_snapshot('{table}', {base or 0})",
            )


class IcebergReader:
    """Cuts and tables of a mirror in a catalog."""

    def __init__(self, spark: SparkSession, catalog: str = CATALOG) -> None:
        self._spark = spark
        self._catalog = catalog

    def last_cut(self, where: str = "true") -> Cut | None:
        name = cuts_table(self._catalog)
        return cut_rows.last(self._spark.table(name), where) if self._spark.catalog.tableExists(name) else None

    def table(self, name: str, version: str) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self._name(name)} VERSION AS OF {int(version)}")

    def key_of(self, name: str) -> tuple[str, ...]:
        key = _load(self._spark, self._name(name)).properties().get("twofold.key") or ""
        return tuple(column for column in key.split(",") if column)

    def check_prefix(self, prefix: str) -> None:
        if not self._spark.catalog.tableExists(cuts_table(self._catalog)):
            raise MissingGround(f"{cuts_table(self._catalog)} is not there: has `mirror` run on this warehouse?")
        whose = _load(self._spark, cuts_table(self._catalog)).properties().get("twofold.prefix")
        if whose != prefix:
            raise Refused(
                f"this warehouse mirrors the prefix {whose!r}, not {prefix!r}",
                at_stake="two sources' tables mixed",
                repair="one --warehouse for each prefix",
            )

    def _name(self, table: str) -> str:
        return f"{self._catalog}.{quoted(*table.split('.', 1))}"


def prepare(spark: SparkSession, name: str, columns: StructType, *, label: str, properties: Mapping[str, str]) -> None:
    """Makes the table, or brings it to these columns."""
    namespace = ".".join(name.split(".", 2)[:2])
    if not spark.catalog.tableExists(name):
        # IF NOT EXISTS looks and then makes: two tables of one new namespace would collide in between.
        with _MAKING:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        spark.sql(
            f"CREATE TABLE {name} ({evolution.columns_sql(columns)}) USING iceberg "
            f"TBLPROPERTIES ({_properties({**_V3, **properties})})"
        )
        return
    for change in evolution.changes(spark.table(name).schema, columns, table=label):
        spark.sql(f"ALTER TABLE {name} {change}")


def quarantine(records: DataFrame, catalog: str) -> None:
    """Appends records that cannot be decoded to the quarantine table, those that it lacks."""
    spark, name = records.sparkSession, f"{catalog}.twofold.quarantine"
    prepare(spark, name, records.schema, label="quarantine", properties={})
    records.join(spark.table(name).select(*PLACE), list(PLACE), "left_anti").writeTo(name).append()


def summary_value(spark: SparkSession, name: str, key: str) -> str | None:
    """The newest value of a key in the summaries of the table's snapshots; compaction's have none of ours."""
    loaded = _load(spark, name)
    snapshot = loaded.currentSnapshot()
    while snapshot is not None:
        value = snapshot.summary().get(key)
        if value is not None:
            return str(value)
        parent = snapshot.parentId()
        snapshot = loaded.snapshot(parent) if parent is not None else None
    return None


def _load(spark: SparkSession, name: str) -> Any:
    """Iceberg's own Java table: its metadata, without a Spark job."""
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)  # type: ignore[union-attr]


def _properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{text(k)}' = '{text(v)}'" for k, v in properties.items())
