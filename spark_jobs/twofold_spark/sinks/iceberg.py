"""The mirror in Iceberg: format v3, merge-on-read, any catalog.

The sequence number lies in the snapshot's summary (`twofold.sequence`), written by the very commit that holds the rows.
Compaction and expiry make snapshots without one, so it is looked for along the snapshots' parents. A cut is a row of the
table `twofold.cuts`, whose own snapshot carries the sequence number too: one metadata read at start finds where the
mirror stands.

A batch is merged onto the snapshot whose sequence number was looked at: if another job came in between, the new
snapshot's parent tells, and this one stops before it publishes anything.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_spark.carry import COPIES, OP, UNCHANGED
from twofold_spark.errors import MissingGround, Refused
from twofold_spark.quarantine import PLACE
from twofold_spark.session import CATALOG
from twofold_spark.sinks import Cut, Table, evolution

SEQUENCE = "twofold.sequence"
_CUT_COLUMNS = (
    "sequence bigint, applied_lsn bigint, committed_at timestamp, published_at timestamp, whole boolean, "
    "tables array<struct<name: string, version: bigint>>, backfilling array<string>"
)
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
            f"CREATE TABLE IF NOT EXISTS {cuts_table(self._catalog)} ({_CUT_COLUMNS}) USING iceberg "
            f"TBLPROPERTIES ({_properties({**_V3, 'twofold.prefix': self._prefix})})"
        )
        check_prefix(self._spark, self._catalog, self._prefix)
        return last_cut(self._spark, self._catalog)

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
            spark.sql(merge_sql(name, view, table.key, [c for c in rows.columns if c not in (OP, UNCHANGED)]))
        self._check_parent(table, base)

    def quarantine(self, records: DataFrame) -> None:
        quarantine(records, self._catalog)

    def version(self, table: Table) -> str | None:
        loaded = self._loaded(table)
        snapshot = loaded.currentSnapshot() if loaded is not None else None
        return str(snapshot.snapshotId()) if snapshot else None

    def publish(self, cut: Cut) -> None:
        self._spark.conf.set(f"spark.sql.iceberg.snapshot-property.{SEQUENCE}", str(cut.sequence))
        versions = [f"named_struct('name', '{_text(n)}', 'version', {v}L)" for n, v in cut.versions.items()]
        behind = [f"'{_text(topic)}'" for topic in cut.backfilling]
        self._spark.sql(
            f"INSERT INTO {cuts_table(self._catalog)} SELECT {cut.sequence}L, {cut.applied_lsn}L, timestamp_micros({cut.committed_us}L), "
            f"current_timestamp(), {'true' if cut.whole else 'false'}, "
            f"CAST(array({', '.join(versions)}) AS array<struct<name: string, version: bigint>>), "
            f"CAST(array({', '.join(behind)}) AS array<string>)"
        )

    def _name(self, table: Table) -> str:
        return f"{self._catalog}.{quoted(table.schema, table.name)}"

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


def check_prefix(spark: SparkSession, catalog: str, prefix: str) -> None:
    """A mirror is of one source."""
    if not spark.catalog.tableExists(cuts_table(catalog)):
        raise MissingGround(f"{cuts_table(catalog)} is not there: has `mirror` run on this warehouse?")
    whose = _load(spark, cuts_table(catalog)).properties().get("twofold.prefix")
    if whose != prefix:
        raise Refused(
            f"this warehouse mirrors the prefix {whose!r}, not {prefix!r}",
            at_stake="two sources' tables mixed",
            repair="one --warehouse for each prefix",
        )


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


def merge_sql(name: str, view: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """MERGE of folded rows. A column named in `_unchanged` keeps the table's value."""
    if not key:
        return _merge_multiset_sql(name, view, columns)
    on = " AND ".join(f"t.{quoted(k)} = s.{quoted(k)}" for k in key)
    sets = ", ".join(
        f"{quoted(c)} = "
        + (
            f"s.{quoted(c)}"
            if c in key
            else f"CASE WHEN array_contains(s.{UNCHANGED}, '{_text(c)}') THEN t.{quoted(c)} ELSE s.{quoted(c)} END"
        )
        for c in columns
    )
    names = ", ".join(quoted(c) for c in columns)
    values = ", ".join(f"s.{quoted(c)}" for c in columns)
    return (
        f"MERGE INTO {name} t USING {view} s ON {on} "
        f"WHEN MATCHED AND s.{OP} = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({names}) VALUES ({values})"
    )


def last_cut(spark: SparkSession, catalog: str = CATALOG, where: str = "true") -> Cut | None:
    """The last published cut of those that a condition on the cuts table lets through."""
    if not spark.catalog.tableExists(cuts_table(catalog)):
        return None
    row = (
        spark.table(cuts_table(catalog))
        .where(where)
        .orderBy("sequence", ascending=False)
        .withColumn("committed_us", f.unix_micros("committed_at"))
        .first()
    )
    if row is None:
        return None
    return Cut(
        sequence=row["sequence"],
        applied_lsn=row["applied_lsn"],
        committed_us=row["committed_us"],
        whole=row["whole"],
        versions={entry["name"]: str(entry["version"]) for entry in row["tables"]},
        backfilling=tuple(row["backfilling"]),
    )


def _merge_multiset_sql(name: str, view: str, columns: Sequence[str]) -> str:
    """MERGE of a keyless table: a row is itself its key, and `_copies` says how often it is there."""
    on = " AND ".join(f"t.{quoted(c)} <=> s.{quoted(c)}" for c in columns if c != COPIES)
    names, values = (", ".join(before + quoted(c) for c in columns) for before in ("", "s."))
    return (
        f"MERGE INTO {name} t USING {view} s ON {on} "
        f"WHEN MATCHED AND t.{COPIES} + s.{COPIES} <= 0 THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {COPIES} = t.{COPIES} + s.{COPIES} "
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({names}) VALUES ({values})"
    )


def key_of(spark: SparkSession, catalog: str, table: str) -> tuple[str, ...]:
    """The key's columns of a mirrored table, as the mirror made it."""
    key = _load(spark, f"{catalog}.{quoted(*table.split('.', 1))}").properties().get("twofold.key") or ""
    return tuple(name for name in key.split(",") if name)


def _load(spark: SparkSession, name: str) -> Any:
    """Iceberg's own Java table: its metadata, without a Spark job."""
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)  # type: ignore[union-attr]


def _properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{_text(k)}' = '{_text(v)}'" for k, v in properties.items())


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
