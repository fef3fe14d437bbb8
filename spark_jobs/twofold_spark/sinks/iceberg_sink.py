"""The mirror in Iceberg: format v3, merge-on-read, any catalog.

The sequence number stands in the snapshot's summary (`twofold.sequence`), written by the commit
that holds the rows. Snapshots of compaction and expiry have none, so it is looked up along the
snapshots' parents. A cut is a row of the table `twofold.cuts`, and its snapshot carries the
sequence number too.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_spark.row_columns import OP, UNCHANGED
from twofold_spark.session import CATALOG
from twofold_spark.sinks import cut_rows, iceberg_tables, iceberg_writers, merge_sql
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sinks.iceberg_filter import MergeFilter
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.merge_sql import escape_literal

_MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # The rows are hashed by key already; another shuffle before writing would only cost time.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}
_CONFLICTS = ("ValidationException", "CommitFailedException")


class IcebergSink:
    """One writer; it reads tables as they are now."""

    def __init__(self, spark: SparkSession, prefix: str, catalog: str = CATALOG) -> None:
        self._spark = spark
        self._catalog = catalog
        self._prefix = prefix
        self._writer = uuid.uuid4().hex
        self._filter = MergeFilter(spark)
        self._lock = threading.Lock()
        self._applied: dict[str, int] = {}
        self._bases: dict[MirrorTable, int | None] = {}
        self._versions: dict[MirrorTable, int | None] = {}
        self._row_counts: dict[MirrorTable, int] = {}
        self._columns: dict[MirrorTable, StructType] = {}
        self._keys: dict[MirrorTable, tuple[str, ...]] = {}
        self._cut: Cut | None = None

    def open(self) -> Cut | None:
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._catalog}.twofold")
        properties = iceberg_tables.format_properties({**iceberg_tables.V3, "twofold.prefix": self._prefix})
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {iceberg_tables.name_cuts_table(self._catalog)} ({cut_rows.COLUMNS}) USING iceberg "
            f"TBLPROPERTIES ({properties})"
        )
        reader = iceberg_tables.IcebergReader(self._spark, self._catalog)
        reader.check_prefix(self._prefix)
        self._cut = reader.read_last_cut()
        return self._cut

    def read_applied(self, table: MirrorTable) -> int:
        loaded = self._load(table)
        if loaded is not None:
            iceberg_writers.check_since_cut(table, self._full_name(str(table)), loaded, self._cut)
        applied = _read_number(loaded, iceberg_tables.SEQUENCE)
        with self._lock:
            self._applied[str(table)] = applied
            self._bases[table] = self._versions[table] = iceberg_tables.current_snapshot(loaded)
            self._row_counts[table] = _read_number(loaded, "total-records")
            self._keys[table] = iceberg_tables.read_key(loaded) if loaded is not None else table.key
            if loaded is None:
                self._columns.pop(table, None)
        return applied

    def prepare(self, table: MirrorTable, columns: StructType) -> None:
        if self._columns.get(table) == columns:
            return
        properties = {**_MERGE_ON_READ, "twofold.topic": table.topic, iceberg_tables.KEY: ",".join(table.key)}
        name = self._full_name(str(table))
        iceberg_tables.prepare_table(self._spark, name, columns, label=str(table), properties=properties)
        with self._lock:
            self._columns[table] = columns

    def read_current(self, table: MirrorTable) -> DataFrame | None:
        return self._spark.table(self._full_name(str(table))) if self._load(table) is not None else None

    def merge(
        self, table: MirrorTable, rows: DataFrame, *, replace: bool, unchanged: tuple[str, ...], sequence: int
    ) -> None:
        name, spark = self._full_name(str(table)), rows.sparkSession
        merge_sql.check_key(table, self._keys[table], replace=replace)
        if self._keys[table] != table.key:
            key = iceberg_tables.format_properties({iceberg_tables.KEY: ",".join(table.key)})
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({key})")
        self._set_summary(spark, sequence)
        base = self._bases[table]
        try:
            if replace:
                merge_sql.rows_of_empty_table(rows, table.key).writeTo(name).overwrite(f.lit(True))
            elif base is None:
                merge_sql.rows_of_empty_table(rows, table.key).writeTo(name).append()
            else:
                view = f"_twofold_{abs(hash(str(table)))}"
                columns = [c for c in rows.columns if c not in (OP, UNCHANGED)]
                rows, among = self._filter.apply(table, rows, self._row_counts[table])
                rows.createOrReplaceTempView(view)
                spark.sql(merge_sql.merge_statement(name, view, table.key, columns, unchanged=unchanged, among=among))
        except Exception as error:
            if merge_sql.is_missing_copies(error):
                raise merge_sql.refuse_missing_copies(table) from error
            if any(conflict in str(error) for conflict in _CONFLICTS):
                raise iceberg_writers.refuse_other_writer(table, "Iceberg refused the merge") from error
            raise
        loaded = iceberg_tables.load_table(self._spark, name)
        iceberg_writers.check_parent(self._spark, table, loaded, base=base, writer=self._writer)
        with self._lock:
            self._versions[table] = iceberg_tables.current_snapshot(loaded)

    def quarantine(self, records: DataFrame) -> None:
        iceberg_tables.quarantine(records, self._catalog)

    def version_of(self, table: MirrorTable) -> str | None:
        version = self._versions[table]
        return str(version) if version is not None else None

    def publish(self, cut: Cut) -> None:
        self._spark.conf.set(f"spark.sql.iceberg.snapshot-property.{iceberg_tables.SEQUENCE}", str(cut.sequence))
        self._spark.sql(f"INSERT INTO {iceberg_tables.name_cuts_table(self._catalog)} {cut_rows.select_row(cut)}")
        self._cut = cut

    def maintain(self, tables: Iterable[str], keep: dt.timedelta) -> None:
        cuts = iceberg_tables.name_cuts_table(self._catalog)
        last = iceberg_tables.IcebergReader(self._spark, self._catalog).read_last_cut()
        assert last is not None, "maintenance comes after a cut"
        self._spark.sql(f"DELETE FROM {cuts} WHERE {cut_rows.expired_condition(last, keep)}")
        named = self._spark.table(cuts).select(f.explode("tables").alias("t")).select("t.name", "t.version").distinct()
        wanted = {(row["name"], row["version"]) for row in named.collect()}
        for table in (*tables, "twofold.cuts"):
            name = escape_literal(self._full_name(table))
            self._spark.sql(f"CALL {self._catalog}.system.rewrite_data_files(table => '{name}')")
            self._expire_snapshots(table, {version for name, version in wanted if name == table}, keep)

    def close(self) -> None:
        """Do nothing: this sink holds nothing."""

    def _set_summary(self, spark: SparkSession, sequence: int) -> None:
        """Set what the summary of a merge says.

        It is the same for all tables of the batch, so merges of several tables may run at once.
        """
        since = iceberg_writers.format_since(self._cut, self._applied)
        values = {
            iceberg_tables.SEQUENCE: str(sequence),
            iceberg_writers.SINCE: since,
            iceberg_writers.WRITER: self._writer,
        }
        for key, value in values.items():
            spark.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)

    def _expire_snapshots(self, table: str, wanted: set[int], keep: dt.timedelta) -> None:
        """Expire snapshots by their ids.

        A recent cut may name an old snapshot, if the table did not change since.
        """
        newest_first = self._spark.sql(
            f"SELECT snapshot_id, committed_at < {cut_rows.time_ago(keep)} AS old FROM {self._full_name(table)}.snapshots "
            "ORDER BY committed_at DESC"
        ).collect()
        # The last two stay: one of them has the sequence number, and the other may be compaction's.
        old = [str(row[0]) for row in newest_first[2:] if row["old"] and row[0] not in wanted]
        if old:
            name = escape_literal(self._full_name(table))
            self._spark.sql(
                f"CALL {self._catalog}.system.expire_snapshots(table => '{name}', "
                f"older_than => TIMESTAMP '1970-01-01 00:00:00', snapshot_ids => array({', '.join(old)}))"
            )

    def _full_name(self, table: str) -> str:
        """Return the name with the catalog.

        If the catalog has a schema's name, a procedure would read `twofold.cuts` as a name with its
        catalog.
        """
        return f"{self._catalog}.{iceberg_tables.quote_path(*table.split('.', 1))}"

    def _load(self, table: MirrorTable) -> Any | None:
        name = self._full_name(str(table))
        return iceberg_tables.load_table(self._spark, name) if self._spark.catalog.tableExists(name) else None


def _read_number(loaded: Any | None, key: str) -> int:
    return int(iceberg_tables.read_summary(loaded, key) or 0) if loaded is not None else 0
