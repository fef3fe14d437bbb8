"""The mirror in Iceberg: format v3, merge-on-read, any catalog.

The sequence number lies in the snapshot's summary (`twofold.sequence`), written by the very commit that holds the rows.
Compaction and expiry make snapshots without one, so it is looked for along the snapshots' parents. A cut is a row of the
table `twofold.cuts`, whose own snapshot carries the sequence number too: one metadata read at start finds where the
mirror stands.

A batch is merged onto the snapshot whose sequence number was looked at. If another job came in between, Iceberg refuses
the merge, or the new snapshot's parent tells: then this one takes its snapshot back and stops, before it publishes
anything. Should it be killed before it has, the next start knows: what lies on top of a published cut is a batch that was
interrupted only if its number is more than the cut's, and if each merge in it was made for the number that it lies on
(`twofold.since`).
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from twofold_spark.errors import Refused
from twofold_spark.mirror.toast_values import OP, UNCHANGED
from twofold_spark.session import CATALOG
from twofold_spark.sinks import Cut, Table, cut_rows, iceberg_tables, merge_sql
from twofold_spark.sinks.merge_sql import text

_MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # The rows come hashed by key already; another shuffle before writing would only cost.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}


_SINCE, _WRITER = "twofold.since", "twofold.writer"
"""In a merge's summary: the last cut, with the tables that were ahead of it, when the batch was made; and who made it."""
_CONFLICTS = ("ValidationException", "CommitFailedException")
_LARGE, _FEW = 200_000, 10_000
"""Rows of a table from which a MERGE passes over those that it cannot mean, and keys of a batch up to which it names them for that."""
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
_FILTERED = {
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "64m",
    _BROADCAST: "-1",
}
"""More keys than that are made into a Bloom filter, by Spark, if these hold: it takes a join whose one side is small for
one that it will broadcast, which this one never is, and then makes none."""


class IcebergSink:
    """One writer; its reads are of the table as it is now."""

    def __init__(self, spark: SparkSession, prefix: str, catalog: str = CATALOG) -> None:
        self._spark = spark
        self._catalog = catalog
        self._prefix = prefix
        self._writer = uuid.uuid4().hex
        self._unfiltered = {_BROADCAST: spark.conf.get(_BROADCAST) or ""}
        self._lock = threading.Lock()
        self._applied: dict[str, int] = {}
        self._bases: dict[Table, int | None] = {}
        self._versions: dict[Table, int | None] = {}
        self._sizes: dict[Table, int] = {}
        self._columns: dict[Table, StructType] = {}
        self._keys: dict[Table, tuple[str, ...]] = {}
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
        applied = int(iceberg_tables.summary_value(loaded, iceberg_tables.SEQUENCE) or 0) if loaded is not None else 0
        with self._lock:
            self._applied[str(table)] = applied
            self._bases[table] = self._versions[table] = iceberg_tables.current_snapshot(loaded)
            self._sizes[table] = (
                int(iceberg_tables.summary_value(loaded, "total-records") or 0) if loaded is not None else 0
            )
            self._keys[table] = iceberg_tables.key_of(loaded) if loaded is not None else table.key
            if loaded is None:
                self._columns.pop(table, None)
        return applied

    def prepare(self, table: Table, columns: StructType) -> None:
        if self._columns.get(table) == columns:
            return
        properties = {**_MERGE_ON_READ, "twofold.topic": table.topic, iceberg_tables.KEY: ",".join(table.key)}
        iceberg_tables.prepare(self._spark, self._name(table), columns, label=str(table), properties=properties)
        with self._lock:
            self._columns[table] = columns

    def current(self, table: Table) -> DataFrame | None:
        return self._spark.table(self._name(table)) if self._loaded(table) is not None else None

    def merge(self, table: Table, rows: DataFrame, *, replace: bool, unchanged: tuple[str, ...], sequence: int) -> None:
        name = self._name(table)
        spark = rows.sparkSession
        merge_sql.check_key(table, self._keys[table], replace=replace)
        if self._keys[table] != table.key:
            key = iceberg_tables.properties_sql({iceberg_tables.KEY: ",".join(table.key)})
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({key})")
        # What is set here is every table's of this batch alike, so merges of several tables may run at once.
        told = {iceberg_tables.SEQUENCE: str(sequence), _SINCE: self._since(), _WRITER: self._writer}
        for key, value in told.items():
            spark.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)
        base = self._bases[table]
        try:
            if replace:
                merge_sql.arriving(rows, table.key).writeTo(name).overwrite(f.lit(True))
            elif base is None:
                merge_sql.arriving(rows, table.key).writeTo(name).append()
            else:
                view = f"_twofold_{abs(hash(str(table)))}"
                columns = [c for c in rows.columns if c not in (OP, UNCHANGED)]
                rows, among = self._narrowed(table, rows)
                rows.createOrReplaceTempView(view)
                spark.sql(merge_sql.merge(name, view, table.key, columns, unchanged=unchanged, among=among))
        except Exception as error:
            if merge_sql.is_lacking(error):
                raise merge_sql.lacks(table) from error
            if any(conflict in str(error) for conflict in _CONFLICTS):
                raise _another_writer(table, "Iceberg refused the merge") from error
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

    def _narrowed(self, table: Table, rows: DataFrame) -> tuple[DataFrame, str]:
        """The rows, and which rows of a large table they can mean at all: all others are passed over where they are read.

        Without it the whole table's keys are shuffled and sorted to be joined with those of the batch.
        """
        large = bool(table.key) and self._sizes[table] >= _LARGE
        among = self._among(table, rows) if large else "true"
        filtered = large and among == "true"
        # Another table's merge may set the other at the same time: what comes of it is a slower plan at most.
        for key, value in (_FILTERED if filtered else self._unfiltered).items():
            rows.sparkSession.conf.set(key, value)
        # Spark filters by what looks selective.
        return (rows.where(f"{OP} <> ''") if filtered else rows), among

    def _among(self, table: Table, rows: DataFrame) -> str:
        """Which keys they are, if they are few and of a type that can be written out."""
        key = rows.select(table.key[0])
        if not isinstance(key.schema[0].dataType, IntegerType | LongType | StringType):
            return "true"
        values = [row[0] for row in key.limit(_FEW + 1).collect()]
        if len(values) > _FEW:
            return "true"
        listed = ", ".join(str(v) if isinstance(v, int) else f"'{text(v)}'" for v in set(values) if v is not None)
        return f"t.{merge_sql.SPARK.quote(table.key[0])} IN ({listed or 'NULL'})"

    def _since(self) -> str:
        """What a batch is made for, of all its tables alike: as a rule the cut, and no table is ahead of it."""
        cut = self._cut.sequence if self._cut is not None else 0
        ahead = {name: sequence for name, sequence in self._applied.items() if sequence > cut}
        return json.dumps({"cut": cut, "ahead": ahead})

    def _check_since_cut(self, table: Table, loaded: Any) -> None:
        """What lies on top of the last cut is a batch that was interrupted, and not two jobs' work."""
        cut = self._cut.sequence if self._cut is not None else 0
        version = self._cut.versions.get(str(table)) if self._cut is not None else None
        for snapshot in iceberg_tables.lineage(loaded, loaded.currentSnapshot()):
            if str(snapshot.snapshotId()) == version:
                return
            sequence = snapshot.summary().get(iceberg_tables.SEQUENCE)
            if sequence is None:
                continue
            if int(sequence) <= cut:
                if version is None:  # it was stopped: what lies here was in a cut once
                    return
                raise self._twice(
                    table, f"another writer applied {sequence} to {table} once more, after cut {cut} had it"
                )
            onto = int(iceberg_tables.summary_value(loaded, iceberg_tables.SEQUENCE, under=snapshot) or 0)
            if not _made_for(snapshot.summary().get(_SINCE), table, onto):
                raise self._twice(table, f"two writers merged into {table} at once: {sequence} was not made for {onto}")

    def _twice(self, table: Table, what: str) -> Refused:
        version = self._cut.versions.get(str(table)) if self._cut is not None else None
        back = f"CALL {self._catalog}.system.rollback_to_snapshot('{text(self._name(table))}', {version})"
        anew = f"drop the mirror's table, then `twofold backfill start {table}`"
        return Refused(
            what, at_stake="changes applied twice", repair=f"end the other job, then: {back if version else anew}"
        )

    def _check_parent(self, table: Table, base: int | None) -> None:
        loaded = iceberg_tables.load(self._spark, self._name(table))
        snapshot = loaded.currentSnapshot()
        if snapshot is not None and snapshot.snapshotId() != base:
            ours = snapshot.summary().get(_WRITER) == self._writer
            if not ours or snapshot.parentId() != base:
                if ours:
                    self._take_back(loaded, snapshot)
                raise _another_writer(table, f"snapshot {snapshot.parentId()} after {base}")
        with self._lock:
            self._versions[table] = snapshot.snapshotId() if snapshot else None

    def _take_back(self, loaded: Any, snapshot: Any) -> None:
        """Makes present again what this job's snapshot was laid on, unless somebody has gone on from it: one commit, compare and swap."""
        operations = loaded.operations()
        metadata = operations.refresh()
        parent, present = snapshot.parentId(), metadata.currentSnapshot()
        if parent is None or present is None or present.snapshotId() != snapshot.snapshotId():
            return
        changed = self._spark._jvm.org.apache.iceberg.TableMetadata.buildFrom(metadata)  # type: ignore[union-attr]
        with suppress(Py4JJavaError):  # somebody was quicker; the next start tells
            operations.commit(metadata, changed.setBranchSnapshot(parent, "main").build())


def _made_for(since: str | None, table: Table, onto: int) -> bool:
    """Whether a merge's batch was made for the number that it lies on; of one that does not say, nobody knows."""
    if since is None:
        return True
    known = json.loads(since)
    ahead = known["ahead"].get(str(table))
    return bool(onto <= known["cut"] if ahead is None else onto == ahead)


def _another_writer(table: Table, how: str) -> Refused:
    return Refused(
        f"another writer committed to {table} while this batch was merged ({how})",
        at_stake="a batch applied onto a state that it does not belong to",
        repair="end the other job, then start again",
    )
