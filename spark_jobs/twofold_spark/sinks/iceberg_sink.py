"""The mirror in Iceberg, in any catalog.

The sequence number stands in the snapshot's summary (`twofold.sequence`), written by the commit
that holds the rows. Snapshots of compaction and expiry have none, so it is looked up along the
snapshots' parents. Merges go to a branch; `iceberg_place` publishes cuts.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_spark.sinks import (
    iceberg_branches,
    iceberg_commits,
    iceberg_maintenance,
    iceberg_tables,
    merge_sql,
    sharding,
)
from twofold_spark.sinks.cut_rows import KEY
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sinks.iceberg_branches import MERGES, CutPublisher
from twofold_spark.sinks.iceberg_commits import CommitRepeated, give_up, list_behind
from twofold_spark.sinks.iceberg_tables import IcebergTables
from twofold_spark.sinks.interface import BatchPlan, MirrorTable, TableBatch
from twofold_spark.sinks.merge_plan import MERGE_MODE, MergedTable, MergeFilter, WriteMode, list_mode_properties
from twofold_spark.sinks.partitioning import Partitioning
from twofold_spark.sinks.place import TablePlace, check_owner, list_owner_properties
from twofold_spark.sinks.sharding import SHARED

_DISTRIBUTION = {
    # The rows are hashed by key already; another shuffle before writing would only cost time.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}
_CONFLICTS = ("ValidationException", "CommitFailedException")


@dataclass(slots=True)
class TableState:
    """A table as this job last read or merged it."""

    applied: int
    base: int | None
    """The snapshot that the next merge must lie on."""
    version: int | None
    """The snapshot that this job left; None while the table has none."""
    size: MergedTable
    key: tuple[str, ...]
    prepared: tuple[StructType, str | None, tuple[str, ...]] | None
    """Columns, comment and key that the table was prepared for."""


class IcebergSink:
    """One writer; it reads tables as they are now."""

    def __init__(
        self,
        tables: IcebergTables,
        prefix: str,
        place: TablePlace,
        *,
        publisher: CutPublisher,
        write_mode: WriteMode,
        partitioning: Partitioning,
    ) -> None:
        self._spark = tables.spark
        self._tables = tables
        self._prefix = prefix
        self._place = place
        self._partitioning = partitioning
        self._writer = uuid.uuid4().hex
        self._filter = MergeFilter(tables.spark, all_files=write_mode != "copy-on-write")
        self._write_mode = write_mode
        self._plan = BatchPlan(tables.spark)
        self._lock = threading.Lock()
        self._states: dict[str, TableState] = {}
        self._publisher = publisher
        self.loaded: dict[str, Any] = {}
        """Tables that changed since the last cut that `main` shows, as this job left them."""

    @property
    def _cut(self) -> Cut:
        """This source's part of the last cut."""
        return self._place.find_part(self._prefix)

    def read_applied(self, table: MirrorTable) -> int:
        loaded, name = self._load(str(table)), self._tables.name(str(table))
        if loaded is not None:
            check_owner(table, name, lambda key: str(loaded.properties().get(key) or ""))
            if self._prefix == SHARED:
                named = partial(self._list_named, [str(table)])
                iceberg_commits.give_up_unpublished(self._spark, table, loaded, self._cut, named)
            iceberg_branches.follow_main(self._spark, name, loaded)
            iceberg_commits.give_up_broken(self._spark, table, loaded, self._cut)
            iceberg_commits.check_since_cut(table, name, loaded, self._cut)
        before, present = self._states.get(str(table)), iceberg_tables.current_snapshot(loaded, MERGES)
        state = TableState(
            applied=self._read_number(loaded, iceberg_tables.SEQUENCE) or 0,
            base=present,
            version=present,
            size=MergedTable(
                mode=loaded.properties().get(MERGE_MODE) or "" if loaded is not None else None,
                rows=self._read_number(loaded, "total-records"),
                bytes=self._read_number(loaded, "total-files-size"),
            ),
            key=iceberg_tables.read_key(loaded) if loaded is not None else table.key,
            prepared=before.prepared if before is not None and loaded is not None else None,
        )
        with self._lock:
            self._states[str(table)] = state
            self.loaded[str(table)] = loaded
        return state.applied

    def plan_batch(self, tables: Collection[MirrorTable], rows: int) -> None:
        self._plan.choose(rows, (self._states[str(table)].size.rows for table in tables))

    def prepare(self, table: MirrorTable, columns: StructType) -> None:
        state = self._states[str(table)]
        if state.prepared == (columns, table.comment, table.key):
            return
        mode = list_mode_properties(state.size.choose_mode(self._write_mode, 0))
        properties = {**mode, **_DISTRIBUTION, **list_owner_properties(table)}
        if table.comment:
            properties[iceberg_tables.COMMENT] = table.comment
        name = self._tables.name(str(table))
        created = iceberg_tables.prepare_table(
            self._tables,
            str(table),
            columns,
            properties,
            label=str(table),
            key=table.key,
            partitioned_by=self._partitioning.of(str(table)),
        )
        if created:
            loaded = self._tables.load(str(table))
            iceberg_branches.follow_main(self._spark, name, loaded)
            state.base = iceberg_tables.current_snapshot(loaded, MERGES)
        state.prepared = columns, table.comment, table.key

    def read_current(self, table: MirrorTable) -> DataFrame | None:
        if self._load(str(table)) is None:
            return None
        return self._spark.table(iceberg_tables.name_branch(self._tables.name(str(table)), MERGES))

    def merge(self, table: MirrorTable, batch: TableBatch, *, sequence: int) -> None:
        name, spark = self._tables.name(str(table)), batch.rows.sparkSession
        state = self._states[str(table)]
        merge_sql.check_key(table, state.key, replace=batch.replace)
        if state.key != table.key:
            iceberg_tables.set_properties(spark, name, {KEY: ",".join(table.key)})
            iceberg_tables.release_key(spark, name, state.key)
        mode = state.size.choose_mode(self._write_mode, batch.count)
        if state.size.mode not in (None, mode):
            iceberg_tables.set_properties(spark, name, list_mode_properties(mode))
        self._set_summary(spark, sequence)
        if self._prefix == SHARED:
            batch = replace(batch, rows=self._add_columns_of_others(batch.rows, name))
        try:
            loaded = self._merge(table, batch, sequence)
        except CommitRepeated:
            # What this batch committed goes, so it meets the table as it was.
            loaded = iceberg_tables.load_table(spark, name)
            behind = list_behind(loaded, MERGES, version=str(state.base), sequence=state.applied)
            give_up(spark, loaded, behind, MERGES)
            loaded = self._merge(table, batch, sequence)
        state.version = iceberg_tables.current_snapshot(loaded, MERGES)
        with self._lock:
            self.loaded[str(table)] = loaded

    def _merge(self, table: MirrorTable, batch: TableBatch, sequence: int) -> Any:
        """Merge onto the version that was read, and return the table. Nothing may come between."""
        name, spark = self._tables.name(str(table)), batch.rows.sparkSession
        state, into = self._states[str(table)], iceberg_tables.name_branch(name, MERGES)
        try:
            with merge_sql.refusing_missing_copies(table):
                if batch.replace:
                    merge_sql.rows_of_empty_table(batch.rows, table.key).writeTo(into).overwrite(f.lit(True))
                elif state.base is None or state.size.rows == 0:
                    merge_sql.rows_of_empty_table(batch.rows, table.key).writeTo(into).append()
                else:
                    rows, among = self._filter.apply(table, batch.rows, batch.count, state.size)
                    merge_sql.merge_batch(into, table, replace(batch, rows=rows), among=among)
        except Exception as error:
            if any(conflict in str(error) for conflict in _CONFLICTS):
                loaded = iceberg_tables.load_table(spark, name)
                if iceberg_commits.is_of_batch(loaded.snapshot(MERGES), self._writer, sequence):
                    raise CommitRepeated from error
                raise iceberg_commits.refuse_other_writer(table, "Iceberg refused the merge") from error
            raise
        loaded = iceberg_tables.load_table(spark, name)
        iceberg_commits.check_parent(spark, table, loaded, base=state.base, writer=self._writer, sequence=sequence)
        return loaded

    def _add_columns_of_others(self, rows: DataFrame, name: str) -> DataFrame:
        """Add the columns that only other members' rows have: Iceberg's writer wants all."""
        present = rows.sparkSession.table(iceberg_tables.name_branch(name, MERGES)).schema
        missing = {field.name: field.dataType for field in present if field.name not in rows.columns}
        return rows.withColumns({column: f.lit(None).cast(kind) for column, kind in missing.items()})

    def read_key(self, table: MirrorTable) -> tuple[str, ...]:
        return self._states[str(table)].key

    def find_repeated(self, table: MirrorTable, batch: TableBatch | None, *, everywhere: bool) -> str | None:
        rows = batch.rows if batch is not None else None
        return sharding.find_repeated(self.read_current(table), table.key, rows, everywhere=everywhere)

    def quarantine(self, records: DataFrame) -> None:
        iceberg_tables.quarantine(self._tables, records)

    def version_of(self, table: MirrorTable) -> str | None:
        version = self._states[str(table)].version
        return str(version) if version is not None else None

    def maintain(self, tables: Collection[str], keep: dt.timedelta) -> None:
        wanted = self._list_named(tables)
        publisher = self._publisher if self._place.is_shown(self._prefix) else None
        iceberg_maintenance.maintain(self._tables, MERGES, publisher, wanted, keep)

    def _list_named(self, tables: Collection[str]) -> dict[str, set[int]]:
        """List the versions of tables that cuts name."""
        cuts = self._place.read_cuts(self._spark)
        own = cuts.where(f.col("prefix") == self._prefix) if self._prefix != SHARED else cuts
        named = own.select(f.explode("tables").alias("t")).select("t.name", "t.version").distinct()
        found: dict[str, set[int]] = {table: set() for table in tables}
        for row in named.where(f.col("name").isin(*tables)).collect():
            found[row["name"]].add(row["version"])
        return found

    def _set_summary(self, spark: SparkSession, sequence: int) -> None:
        """Set what the summary of a merge says.

        It is the same for all tables of the batch, so merges of several tables may run at once.
        """
        applied = {name: state.applied for name, state in self._states.items()}
        since = iceberg_commits.format_since(self._cut, applied)
        values = {
            iceberg_tables.SEQUENCE: str(sequence),
            iceberg_commits.SINCE: since,
            iceberg_commits.WRITER: self._writer,
        }
        for key, value in values.items():
            spark.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)

    def _load(self, table: str) -> Any | None:
        return self._tables.load(table) if self._tables.has(table) else None

    def _read_number(self, loaded: Any | None, key: str) -> int | None:
        if loaded is None:
            return 0
        found = iceberg_tables.read_summary(loaded, key, branch=MERGES)
        return int(found) if found is not None else None
