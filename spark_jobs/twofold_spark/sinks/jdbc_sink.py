"""The mirror in PostgreSQL: all tables of a batch and its cut in one transaction of the database.

Spark writes each table's folded rows into a staging table, from as many connections as it likes; `publish` then merges
all of them, evolves what has to be evolved and writes the cut, in one transaction. So a reader sees whole cuts without
asking for versions (a REPEATABLE READ transaction, for several statements), and what a killed batch leaves is a staging
table that the next one replaces. What was applied is the last cut: it is in the commit that holds the rows.

There is one writer: the job holds a lock of the database, on the connection that publishes. A killed job's lock goes with
its connection.

It writes into tables that it made itself and into the schema `twofold`; a table of the same name that was there before
is refused, so that nobody mirrors a database into itself.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_spark.errors import Refused, TableRefused
from twofold_spark.mirror.toast_values import OP
from twofold_spark.sinks import Cut, Table, jdbc_tables, merge_sql
from twofold_spark.sinks.mirror_database import Run, alone, connect, jdbc, transaction
from twofold_spark.sources.source_database import identifier, literal
from twofold_spark.sources.unreadable_records import PLACE

_GROUND = """
CREATE SCHEMA IF NOT EXISTS twofold;
CREATE TABLE IF NOT EXISTS twofold.cuts (
    sequence bigint PRIMARY KEY, applied_lsn bigint NOT NULL, committed_at timestamptz NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(), backfilling text[] NOT NULL, stopped text[] NOT NULL, committed_us bigint NOT NULL);
CREATE TABLE IF NOT EXISTS twofold.mirrored (
    name text PRIMARY KEY, prefix text NOT NULL, key text[] NOT NULL)
"""
_ONE_WRITER, _PATIENCE_S = 0x74776F66, 10


class JdbcSink:
    """One writer into one database."""

    def __init__(self, spark: SparkSession, prefix: str, url: str) -> None:
        self._spark = spark
        self._prefix = prefix
        self._url = url
        self._lock = threading.Lock()
        self._staged: dict[Table, tuple[bool, tuple[str, ...]]] = {}
        self._applied = 0
        self._there: set[Table] = set()
        self._connection: Any = None

    def last_cut(self) -> Cut | None:
        self._connection = connect(self._spark, self._url)
        with self._transaction() as run:
            self._lock_out(run)
            run(_GROUND)
        reader = jdbc_tables.JdbcReader(self._spark, self._url)
        reader.check_prefix(self._prefix)
        cut = reader.last_cut()
        self._applied = cut.sequence if cut else 0
        return cut

    def applied(self, table: Table) -> int:
        """All tables of a cut are at its sequence number; whether a table is there is asked until it is."""
        if table not in self._there:
            with self._transaction() as run:
                if run(f"SELECT to_regclass({literal(jdbc_tables.name_of(table))})::text") is None:
                    return 0
            self._there.add(table)
        return self._applied

    def prepare(self, table: Table, columns: StructType) -> None:
        """Nothing but a look at the names: the columns are those of the staged rows, and tables change in `publish`'s transaction."""
        jdbc_tables.check_names(table, columns.names)

    def current(self, table: Table) -> DataFrame | None:
        with alone(self._spark, self._url) as run:
            there = run(f"SELECT to_regclass({literal(jdbc_tables.name_of(table))})::text")
        return self._read(jdbc_tables.name_of(table)) if there is not None else None

    def merge(
        self,
        table: Table,
        rows: DataFrame,
        *,
        replace: bool,
        unchanged: tuple[str, ...],
        sequence: int,  # noqa: ARG002  (the cut has it)
    ) -> None:
        jdbc(rows.write, self._url, jdbc_tables.stage_of(table)).mode("overwrite").save()
        name, stage = jdbc_tables.name_of(table), jdbc_tables.stage_of(table)
        with alone(self._spark, self._url) as run:
            # What will be refused is this table's trouble, and is said before the others' transaction.
            there, staged = jdbc_tables.columns_of(run, name), jdbc_tables.staged_columns(run, table)
            if table in self._there and not there and not replace:
                raise TableRefused(
                    f"{table} was dropped from the mirror while the job ran",
                    at_stake="its rows: the batch has only those that changed",
                    repair=f"`twofold backfill start {table}`",
                )
            if there and (had := jdbc_tables.key_of(run, str(table))) is not None:
                merge_sql.check_key(table, had, replace=replace)
            jdbc_tables.alters(table, there, staged)
            if (
                not table.key
                and run(merge_sql.lacking(name, stage, () if replace else there, list(staged))) is not None
            ):
                raise merge_sql.lacks(table)
        with self._lock:
            self._staged[table] = replace, unchanged

    def quarantine(self, records: DataFrame) -> None:
        name = "twofold.quarantine"
        with alone(self._spark, self._url) as run:
            there = run(f"SELECT to_regclass({literal(name)})::text")
        if there is not None:
            records = records.join(self._read(name).select(*PLACE), list(PLACE), "left_anti")
        jdbc(records.write, self._url, name).mode("append").save()

    def version(self, table: Table) -> str | None:  # noqa: ARG002
        return jdbc_tables.NOW

    def publish(self, cut: Cut) -> None:
        with self._transaction() as run:
            for table, (replace, unchanged) in self._staged.items():
                self._merge_staged(run, table, replace=replace, unchanged=unchanged)
            behind, stopped = (", ".join(map(literal, names)) for names in (cut.backfilling, cut.stopped))
            run(
                f"INSERT INTO twofold.cuts SELECT {cut.sequence}, {cut.applied_lsn}, to_timestamp({cut.committed_us} / 1e6), "
                f"clock_timestamp(), ARRAY[{behind}]::text[], ARRAY[{stopped}]::text[], {cut.committed_us}"
            )
        self._staged.clear()
        self._applied = cut.sequence

    def maintain(self, tables: Iterable[str], keep: dt.timedelta) -> None:  # noqa: ARG002  (autovacuum has the tables)
        with self._transaction() as run:
            run(
                f"DELETE FROM twofold.cuts WHERE published_at < clock_timestamp() - interval '{keep.total_seconds()} s' "
                "AND sequence < (SELECT max(sequence) FROM twofold.cuts)"
            )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _merge_staged(self, run: Run, table: Table, *, replace: bool, unchanged: tuple[str, ...]) -> None:
        name, stage, quote = jdbc_tables.name_of(table), jdbc_tables.stage_of(table), merge_sql.POSTGRES.quote
        wanted = jdbc_tables.staged_columns(run, table)
        self._evolve(run, table, wanted)
        columns = ", ".join(map(quote, wanted))
        if replace:
            # A TRUNCATE would be seen by readers whose snapshot is older: they would find the table empty.
            run(f"DELETE FROM {name}")
            jdbc_tables.rekey(run, table)
            run(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {stage} WHERE {OP} <> 'd'")
        else:
            run(f"ANALYZE {stage}")
            run(merge_sql.merge(name, stage, table.key, list(wanted), unchanged=unchanged, dialect=merge_sql.POSTGRES))
        run(f"DROP TABLE {stage}")

    def _evolve(self, run: Run, table: Table, wanted: dict[str, str]) -> None:
        name, quote = jdbc_tables.name_of(table), merge_sql.POSTGRES.quote
        there = jdbc_tables.columns_of(run, name)
        ours = run(f"SELECT prefix FROM twofold.mirrored WHERE name = {literal(str(table))}")
        if not there:
            columns = ", ".join(f"{quote(c)} {kind}" for c, kind in wanted.items())
            key = f", PRIMARY KEY ({', '.join(map(quote, table.key))})" if table.key else ""
            run(f"CREATE SCHEMA IF NOT EXISTS {identifier(table.schema)}")
            run(f"CREATE TABLE {name} ({columns}{key})")
            names = ", ".join(map(literal, table.key))
            run(
                f"INSERT INTO twofold.mirrored VALUES ({literal(str(table))}, {literal(self._prefix)}, ARRAY[{names}]::text[]) "
                "ON CONFLICT (name) DO UPDATE SET key = excluded.key"
            )
            return
        if ours is None:
            raise Refused(
                f"the database has a table {name} that the mirror did not make",
                at_stake="that table's rows",
                repair="mirror into a database of its own, never into the source",
            )
        for change in jdbc_tables.alters(table, there, wanted):
            run(f"ALTER TABLE {name} {change}")

    def _read(self, name: str) -> DataFrame:
        return cast("DataFrame", jdbc(self._spark.read, self._url, name).load())

    def _transaction(self) -> AbstractContextManager[Run]:
        """On the connection that has the lock; the tables' threads take others."""
        return transaction(self._connection)

    def _lock_out(self, run: Run) -> None:
        """Takes the lock; a predecessor that was killed a moment ago may still have it."""
        deadline = time.monotonic() + _PATIENCE_S
        while run(f"SELECT pg_try_advisory_lock({_ONE_WRITER})") != "t":
            if time.monotonic() > deadline:
                raise Refused(
                    "another job writes into this database",
                    at_stake="nothing yet: this one has done nothing",
                    repair="end the other job",
                )
            time.sleep(0.2)
