"""The mirror in Iceberg: format v3, merge-on-read, any catalog.

The sequence number lies in the snapshot's summary (`twofold.sequence`), written by the very commit that holds the rows.
Compaction and expiry make snapshots without one, so it is looked for along the snapshots' parents. A cut is a row of the
table `twofold.cuts`, whose own snapshot carries the sequence number too: one metadata read at start finds where the
mirror stands.

A batch is merged onto the snapshot whose sequence number was looked at. If another job came in between, Iceberg refuses
the merge or the new snapshot's parent tells, and this one stops before it publishes anything; what the other left on top
of a published cut is told from a batch that was interrupted by its number, which is the cut's or less.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from twofold_spark.carry import OP, UNCHANGED
from twofold_spark.errors import Refused
from twofold_spark.session import CATALOG
from twofold_spark.sinks import Cut, Table, cut_rows, iceberg_tables, merging
from twofold_spark.sinks.merging import text

_MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # The rows come hashed by key already; another shuffle before writing would only cost.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}


_CONFLICTS = ("ValidationException", "CommitFailedException")
_LARGE, _FEW = 200_000, 10_000
"""Rows of a table, and keys of a batch, from and up to which the keys are named in the MERGE."""


class IcebergSink:
    """One writer; its reads are of the table as it is now."""

    def __init__(self, spark: SparkSession, prefix: str, catalog: str = CATALOG) -> None:
        self._spark = spark
        self._catalog = catalog
        self._prefix = prefix
        self._lock = threading.Lock()
        self._bases: dict[Table, int | None] = {}
        self._versions: dict[Table, int | None] = {}
        self._sizes: dict[Table, int] = {}
        self._columns: dict[Table, StructType] = {}
        self._cut: Cut | None = None

    def last_cut(self) -> Cut | None:
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._catalog}.twofold")
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {iceberg_tables.cuts_table(self._catalog)} ({cut_rows.COLUMNS}) USING iceberg "
            f"TBLPROPERTIES ({iceberg_tables.properties_sql({**iceberg_tables.V3, 'twofold.prefix': self._prefix})})"
        )
        reader = iceberg_tables.IcebergReader(self._spark, self._catalog)
        reader.check_prefix(self._prefix)
        self._cut = reader.last_cut()
        return self._cut

    def applied(self, table: Table) -> int:
        loaded = self._loaded(table)
        if loaded is not None:
            self._check_since_cut(table, loaded)
        with self._lock:
            self._bases[table] = self._versions[table] = iceberg_tables.current_snapshot(loaded)
            self._sizes[table] = (
                int(iceberg_tables.summary_value(loaded, "total-records") or 0) if loaded is not None else 0
            )
            if loaded is None:
                self._columns.pop(table, None)
        return int(iceberg_tables.summary_value(loaded, iceberg_tables.SEQUENCE) or 0) if loaded is not None else 0

    def prepare(self, table: Table, columns: StructType) -> None:
        if self._columns.get(table) == columns:
            return
        properties = {**_MERGE_ON_READ, "twofold.topic": table.topic, "twofold.key": ",".join(table.key)}
        iceberg_tables.prepare(self._spark, self._name(table), columns, label=str(table), properties=properties)
        with self._lock:
            self._columns[table] = columns

    def current(self, table: Table) -> DataFrame | None:
        return self._spark.table(self._name(table)) if self._loaded(table) is not None else None

    def merge(self, table: Table, rows: DataFrame, *, replace: bool, unchanged: tuple[str, ...], sequence: int) -> None:
        name = self._name(table)
        spark = rows.sparkSession
        # What is set here is every table's of this batch alike, so merges of several tables may run at once.
        spark.conf.set(f"spark.sql.iceberg.snapshot-property.{iceberg_tables.SEQUENCE}", str(sequence))
        base = self._bases[table]
        try:
            if replace:
                merging.arriving(rows, table.key).writeTo(name).overwrite(f.lit(True))
            elif base is None:
                merging.arriving(rows, table.key).writeTo(name).append()
            else:
                view = f"_twofold_{abs(hash(str(table)))}"
                rows.createOrReplaceTempView(view)
                columns = [c for c in rows.columns if c not in (OP, UNCHANGED)]
                among = self._among(table, rows)
                spark.sql(merging.merge(name, view, table.key, columns, unchanged=unchanged, among=among))
        except Exception as error:
            if merging.is_lacking(error):
                raise merging.lacks(table) from error
            if any(conflict in str(error) for conflict in _CONFLICTS):
                raise self._another_writer(table, base, "Iceberg refused the merge") from error
            raise
        self._check_parent(table, base)

    def quarantine(self, records: DataFrame) -> None:
        iceberg_tables.quarantine(records, self._catalog)

    def version(self, table: Table) -> str | None:
        version = self._versions[table]
        return str(version) if version is not None else None

    def publish(self, cut: Cut) -> None:
        self._spark.conf.set(f"spark.sql.iceberg.snapshot-property.{iceberg_tables.SEQUENCE}", str(cut.sequence))
        self._spark.sql(f"INSERT INTO {iceberg_tables.cuts_table(self._catalog)} {cut_rows.select(cut)}")
        self._cut = cut

    def maintain(self, tables: Iterable[str], keep: dt.timedelta) -> None:
        cuts = iceberg_tables.cuts_table(self._catalog)
        last = iceberg_tables.IcebergReader(self._spark, self._catalog).last_cut()
        assert last is not None, "maintenance comes after a cut"
        self._spark.sql(f"DELETE FROM {cuts} WHERE {cut_rows.forgotten(last, keep)}")
        named = self._spark.table(cuts).select(f.explode("tables").alias("t")).select("t.name", "t.version").distinct()
        wanted = {(row["name"], row["version"]) for row in named.collect()}
        for table in (*tables, "twofold.cuts"):
            self._spark.sql(f"CALL {self._catalog}.system.rewrite_data_files(table => '{text(self._named(table))}')")
            self._expire(table, {version for name, version in wanted if name == table}, keep)

    def close(self) -> None:
        """It holds nothing."""

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
        return f"{self._catalog}.{iceberg_tables.quoted(*table.split('.', 1))}"

    def _loaded(self, table: Table) -> Any | None:
        return (
            iceberg_tables.load(self._spark, self._name(table))
            if self._spark.catalog.tableExists(self._name(table))
            else None
        )

    def _among(self, table: Table, rows: DataFrame) -> str:
        """For few rows into a large table: which keys they are, so that all others are passed over where they are read.

        Without it the whole table's keys are sorted to be joined with a handful.
        """
        if not table.key or self._sizes[table] < _LARGE:
            return "true"
        key = rows.select(table.key[0])
        if not isinstance(key.schema[0].dataType, IntegerType | LongType | StringType):
            return "true"
        values = [row[0] for row in key.limit(_FEW + 1).collect()]
        if len(values) > _FEW:
            return "true"
        listed = ", ".join(str(v) if isinstance(v, int) else f"'{text(v)}'" for v in set(values) if v is not None)
        return f"t.{merging.SPARK.quote(table.key[0])} IN ({listed or 'NULL'})"

    def _check_since_cut(self, table: Table, loaded: Any) -> None:
        version = self._cut.versions.get(str(table)) if self._cut is not None else None
        snapshot = loaded.currentSnapshot()
        while version is not None and snapshot is not None and str(snapshot.snapshotId()) != version:
            sequence = snapshot.summary().get(iceberg_tables.SEQUENCE)
            if self._cut is not None and sequence is not None and int(sequence) <= self._cut.sequence:
                raise Refused(
                    f"another writer applied {sequence} to {table} once more, after cut {self._cut.sequence} had it",
                    at_stake="changes applied twice",
                    repair=f"end the other job, then: CALL {self._catalog}.system.rollback_to_snapshot('{table}', {version})",
                )
            parent = snapshot.parentId()
            snapshot = loaded.snapshot(parent) if parent is not None else None

    def _check_parent(self, table: Table, base: int | None) -> None:
        snapshot = iceberg_tables.load(self._spark, self._name(table)).currentSnapshot()
        parent = snapshot.parentId() if snapshot else None
        if snapshot is not None and parent != base and snapshot.snapshotId() != base:
            raise self._another_writer(table, base, f"snapshot {parent} after {base}")
        with self._lock:
            self._versions[table] = snapshot.snapshotId() if snapshot else None

    def _another_writer(self, table: Table, base: int | None, how: str) -> Refused:
        return Refused(
            f"another writer committed to {table} while this batch was merged ({how})",
            at_stake="a batch applied onto a state that it does not belong to",
            repair=f"end the other job; should this one's start be refused too: "
            f"CALL {self._catalog}.system.rollback_to_snapshot('{table}', {base or 0})",
        )
