"""The mirror in Delta: tables in folders, with deletion vectors and type widening.

The sequence number is Delta's own mark of an application's transaction (`txnAppId` twofold,
`txnVersion` the sequence number). The commit that holds the rows writes it, and the table's state
keeps it for good. Delta itself skips a merge whose number the table has.

A batch is merged onto the state that was read. A table that has another number by then is refused
before anything is written, and Delta refuses two writers at once. A writer that came in the instant
between is seen by the versions, before a cut is published. A table whose merge lies on such a
writer's is marked: RESTORE would bring back its rows and leave the number, so only a reload repairs
it.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_spark.errors import Refused
from twofold_spark.row_columns import OP, UNCHANGED
from twofold_spark.sinks import column_changes, delta_tables, merge_sql, sharding
from twofold_spark.sinks.delta_tables import KEY, SPOILED, DeltaTables, refuse_spoiled
from twofold_spark.sinks.interface import MirrorTable, TableBatch
from twofold_spark.sinks.merge_sql import escape_literal
from twofold_spark.sources.decoding import RECORD_PLACE

_QUARANTINE = "twofold.quarantine"


class DeltaSink:
    """One writer into one folder."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._tables = DeltaTables(spark, folder)
        self._lock = threading.Lock()
        self._writer = uuid.uuid4().hex
        self._states: dict[str, tuple[int, int] | None] = {}
        """Version and sequence number of each table, as this job last saw it."""

    def read_applied(self, table: MirrorTable) -> int:
        state = self._read_state(table) if self._tables.has_table(str(table)) else None
        with self._lock:
            self._states[str(table)] = state
        return state[1] if state else 0

    def _read_state(self, table: MirrorTable) -> tuple[int, int]:
        return self._tables.read_state(str(table))

    def plan_batch(self, tables: Collection[MirrorTable], rows: int) -> None:
        """Do nothing: a merge rewrites whole files, and the log does not say how large they are."""

    def prepare(self, table: MirrorTable, columns: StructType) -> None:
        name = self._tables.table_path(str(table))
        if not self._tables.has_table(str(table)):
            listed = column_changes.format_columns(columns)
            delta_tables.create_table(self._spark, name, listed, self._make_properties(table))
        for change in column_changes.list_alterations(self._spark.table(name).schema, columns, table=str(table)):
            self._spark.sql(f"ALTER TABLE {name} {change}")

    def _make_properties(self, table: MirrorTable) -> dict[str, str]:
        return {"twofold.topic": table.topic, KEY: ",".join(table.key)}

    def read_current(self, table: MirrorTable) -> DataFrame | None:
        name = str(table)
        return self._spark.table(self._tables.table_path(name)) if self._tables.has_table(name) else None

    def merge(self, table: MirrorTable, batch: TableBatch, *, sequence: int) -> None:
        name, spark = self._tables.table_path(str(table)), batch.rows.sparkSession
        present_key = self._tables.read_key(str(table))
        merge_sql.check_key(table, present_key, replace=batch.replace)
        if present_key != table.key:
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{KEY}' = '{escape_literal(','.join(table.key))}')")
        version, applied = self._check_unchanged(table)
        # These settings are the same for all tables of the batch, so merges of several tables may
        # run at once.
        self._mark_writes(spark, sequence)
        columns = [c for c in batch.rows.columns if c not in (OP, UNCHANGED)]
        view = f"_twofold_{abs(hash(table))}"
        if batch.replace or applied == 0:
            names = ", ".join(merge_sql.SPARK.quote(c) for c in columns)
            merge_sql.rows_of_empty_table(batch.rows, table.key).createOrReplaceTempView(view)
            statement = f"INSERT {'OVERWRITE' if batch.replace else 'INTO'} {name} ({names}) SELECT {names} FROM {view}"
        else:
            batch.rows.createOrReplaceTempView(view)
            floats = merge_sql.find_floats(batch.rows.schema)
            statement = merge_sql.merge_statement(
                name,
                view,
                table.key,
                columns,
                unchanged=batch.unchanged,
                floats=floats,
                emptied=batch.emptied,
            )
        try:
            spark.sql(statement)
        except Exception as error:
            if merge_sql.is_missing_copies(error):
                raise merge_sql.refuse_missing_copies(table) from error
            raise
        after = self._read_merged(table, version, sequence)
        with self._lock:
            self._states[str(table)] = after

    def _check_unchanged(self, table: MirrorTable) -> tuple[int, int]:
        """Return the table's state; refuse what another writer did since it was read."""
        version, applied = self._tables.read_state(str(table))
        if applied != (expected := (self._states[str(table)] or (0, 0))[1]):
            raise Refused(
                f"another writer brought {table} from {expected} to {applied} while this job prepared a batch for it",
                at_stake="nothing yet: this batch has not been merged",
                repair="end the other job, then start again",
            )
        return version, applied

    def _mark_writes(self, spark: SparkSession, sequence: int) -> None:
        delta_tables.mark_writes(spark, sequence, self._writer)

    def _read_merged(self, table: MirrorTable, version: int, sequence: int) -> tuple[int, int]:
        """Return the table's state behind the merge; refuse it if it is not on this version."""
        name, after = self._tables.table_path(str(table)), self._tables.read_state(str(table))
        if after != (version + 1, sequence):
            if delta_tables.find_write(self._spark, name, sequence, self._writer) in (None, version + 1):
                raise delta_tables.refuse_other_writer(str(table))
            # The number says that the table has this batch. The mark tells every job not to
            # believe it.
            self._spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{SPOILED}' = 'by two writers')")
            raise refuse_spoiled(str(table))
        return after

    def read_key(self, table: MirrorTable) -> tuple[str, ...]:
        return self._tables.read_key(str(table))

    def find_repeated(self, table: MirrorTable, batch: TableBatch | None, *, everywhere: bool) -> str | None:
        current = self.read_current(table)
        assert current is not None, "it exists"
        return sharding.find_repeated(current, table.key, batch.rows if batch is not None and not everywhere else None)

    def quarantine(self, records: DataFrame) -> None:
        if self._tables.has_table(_QUARANTINE):
            present = self._spark.table(self._tables.table_path(_QUARANTINE))
            records = records.join(present.select(*RECORD_PLACE), list(RECORD_PLACE), "left_anti")
        # A mark of its own: with the session's mark Delta would let only one table of a batch
        # write.
        own = {"txnAppId": f"quarantine {uuid.uuid4()}", "txnVersion": "1"}
        records.write.format("delta").options(**own).mode("append").save(self._tables.table_folder(_QUARANTINE))

    def version_of(self, table: MirrorTable) -> str | None:
        state = self._states[str(table)]
        return str(state[0]) if state else None

    def maintain(self, tables: Collection[str], keep: dt.timedelta) -> None:
        delta_tables.forget_marks(self._spark)
        for table in tables:
            delta_tables.compact(self._spark, self._tables.table_path(table), keep)
