"""The mirror in PostgreSQL: all tables of a batch, and its cut, change in one transaction.

Spark writes each table's folded rows into a staging table, over as many connections as it likes.
`JdbcPlace.publish` then merges all of them, changes columns, and writes the cut, in one
transaction, for all sources. So a reader sees whole cuts without versions; for several statements
it uses a REPEATABLE READ transaction. A killed batch leaves a staging table, and the next batch
replaces it. The last cut says what was applied: it is in the commit that holds the rows.

The job writes into tables that it created, and into the schema `twofold`. A table of the same name
that existed before is refused, so that nobody mirrors a database into itself.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Collection
from typing import NoReturn, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_common.table_names import quote_identifier, quote_literal
from twofold_spark.errors import Refused, TableRefused
from twofold_spark.row_columns import MEMBER, OP
from twofold_spark.sinks import jdbc_tables, merge_sql
from twofold_spark.sinks.interface import MirrorTable, TableBatch
from twofold_spark.sinks.jdbc_tables import Names
from twofold_spark.sinks.mirror_database import (
    MirrorDatabase,
    Run,
    StatementRejected,
    configure_jdbc,
    own_transaction,
)
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.table_errors import refuse_for_error
from twofold_spark.sources.decoding import RECORD_PLACE
from twofold_spark.sources.topic_names import reload_command


class JdbcSink:
    """One writer into one database, or into one member's schemas of it."""

    def __init__(self, spark: SparkSession, prefix: str, place: Place, database: MirrorDatabase, names: Names) -> None:
        self._spark = spark
        self._prefix = prefix
        self._place = place
        self._database = database
        self._url = database.url
        self._names = names
        self._lock = threading.Lock()
        self._staged: dict[MirrorTable, TableBatch] = {}
        self._known_tables: set[MirrorTable] = set()

    def read_applied(self, table: MirrorTable) -> int:
        """Return the cut's sequence number, which all tables have; 0 if there is no such table."""
        if table not in self._known_tables:
            with self._database.transaction() as run:
                if not _exists(run, self._names.table(table)):
                    return 0
            self._known_tables.add(table)
        cut = self._place.find_part(self._prefix)
        return cut.sequence if cut is not None else 0

    def plan_batch(self, tables: Collection[MirrorTable], rows: int) -> None:
        """Do nothing: PostgreSQL merges, and Spark only brings the rows there."""

    def prepare(self, table: MirrorTable, columns: StructType) -> None:
        """Check the columns' names; the tables change in the transaction of the cut."""
        jdbc_tables.check_name_lengths(self._names, table, columns.names)

    def read_current(self, table: MirrorTable) -> DataFrame | None:
        with own_transaction(self._spark, self._url) as run:
            exists = _exists(run, self._names.table(table))
        return self._read(self._names.table(table)) if exists else None

    def merge(
        self,
        table: MirrorTable,
        batch: TableBatch,
        *,
        sequence: int,  # noqa: ARG002  (the cut has it)
    ) -> None:
        configure_jdbc(batch.rows.write, self._url, self._names.stage(table)).mode("overwrite").save()
        with own_transaction(self._spark, self._url) as run:
            self._check_staged(run, table, replace=batch.replace)
        with self._lock:
            self._staged[table] = batch

    def read_key(self, table: MirrorTable) -> tuple[str, ...]:
        with own_transaction(self._spark, self._url) as run:
            return jdbc_tables.read_key(run, self._names, str(table)) or ()

    def find_repeated(self, table: MirrorTable, batch: TableBatch | None, *, everywhere: bool) -> str | None:
        staged = self._names.stage(table) if batch is not None else None
        emptied = batch.emptied if batch is not None else ()
        with own_transaction(self._spark, self._url) as run:
            exists = _exists(run, self._names.table(table))
            into = self._names.table(table) if exists else None
            query = merge_sql.repeated_query(into, staged, table.key, emptied=emptied, everywhere=everywhere)
            repeated = run(query)
        if repeated is not None:
            self._staged.pop(table, None)
        return repeated

    def quarantine(self, records: DataFrame) -> None:
        name = self._names.own("quarantine")
        with own_transaction(self._spark, self._url) as run:
            exists = _exists(run, name)
        if exists:
            records = records.join(self._read(name).select(*RECORD_PLACE), list(RECORD_PLACE), "left_anti")
        configure_jdbc(records.write, self._url, name).mode("append").save()

    def version_of(self, table: MirrorTable) -> str | None:  # noqa: ARG002
        return jdbc_tables.NOW

    def merge_staged(self, run: Run) -> None:
        """Merge what is staged, in the transaction of the cut."""
        for table, batch in self._staged.items():
            try:
                self._merge_staged(run, table, batch)
            except StatementRejected as error:
                self._refuse_table(table, error)

    def forget_staged(self) -> None:
        """Forget what was staged: it is merged."""
        self._staged.clear()

    def _refuse_table(self, table: MirrorTable, error: StatementRejected) -> NoReturn:
        """Refuse this table alone, if the statement was rejected for its rows.

        The transaction of all tables is rolled back. The next one is without this table.
        """
        refused = refuse_for_error(table, error.causes)
        if refused is None:
            raise error
        self._staged.pop(table, None)
        refused.prefix, refused.table = self._prefix, str(table)
        raise refused from error

    def maintain(self, tables: Collection[str], keep: dt.timedelta) -> None:
        """Do nothing: autovacuum has the tables."""

    def _check_staged(self, run: Run, table: MirrorTable, *, replace: bool) -> None:
        """Refuse staged rows for this table's own reason, before the transaction of all tables."""
        name, stage = self._names.table(table), self._names.stage(table)
        present, staged = jdbc_tables.read_columns(run, name), jdbc_tables.read_staged_columns(run, self._names, table)
        if table in self._known_tables and not present and not replace:
            raise TableRefused(
                f"{table} was dropped from the mirror while the job ran",
                at_stake="its rows: the batch has only those that changed",
                repair=f"`{reload_command(table)}`",
            )
        if present and (key := jdbc_tables.read_key(run, self._names, str(table))) is not None:
            merge_sql.check_key(table, key, replace=replace)
        jdbc_tables.list_alterations(table, present, staged)
        if not table.key:
            floats = jdbc_tables.find_floats(staged)
            query = merge_sql.missing_copies_query(name, stage, () if replace else present, list(staged), floats)
            if run(query) is not None:
                raise merge_sql.refuse_missing_copies(table)

    def _merge_staged(self, run: Run, table: MirrorTable, batch: TableBatch) -> None:
        name, stage = self._names.table(table), self._names.stage(table)
        wanted = jdbc_tables.read_staged_columns(run, self._names, table)
        self._create_or_alter(run, table, wanted)
        columns = ", ".join(map(quote_identifier, wanted))
        if batch.replace:
            # Not TRUNCATE: readers whose snapshot is older would find the table empty.
            run(f"DELETE FROM {name}")
            jdbc_tables.change_key(run, self._names, table)
            run(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {stage} WHERE {OP} <> 'd'")
        else:
            if batch.emptied:
                run(f"DELETE FROM {name} WHERE {MEMBER} IN ({', '.join(map(quote_literal, batch.emptied))})")
            run(f"ANALYZE {stage}")
            statement = merge_sql.merge_statement(
                name,
                stage,
                table.key,
                list(wanted),
                unchanged=batch.unchanged,
                floats=jdbc_tables.find_floats(wanted),
                dialect=merge_sql.POSTGRES,
            )
            run(statement)
        run(f"DROP TABLE {stage}")

    def _create_or_alter(self, run: Run, table: MirrorTable, wanted: dict[str, str]) -> None:
        name = self._names.table(table)
        present = jdbc_tables.read_columns(run, name)
        if not present:
            self._create(run, table, wanted)
            return
        if run(f"SELECT prefix FROM {self._names.own('mirrored')} WHERE name = {quote_literal(str(table))}") is None:
            raise Refused(
                f"the database has a table {name} that the mirror did not create",
                at_stake="that table's rows",
                repair="mirror into a database of its own, never into the source",
            )
        for change in jdbc_tables.list_alterations(table, present, wanted):
            run(f"ALTER TABLE {name} {change}")

    def _create(self, run: Run, table: MirrorTable, wanted: dict[str, str]) -> None:
        columns = ", ".join(f"{quote_identifier(c)} {kind}" for c, kind in wanted.items())
        key = f", PRIMARY KEY ({', '.join(map(quote_identifier, table.key))})" if table.key else ""
        run(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(self._names.schema(table.schema))}")
        run(f"CREATE TABLE {self._names.table(table)} ({columns}{key})")
        names = ", ".join(map(quote_literal, table.key))
        run(
            f"INSERT INTO {self._names.own('mirrored')} VALUES ({quote_literal(str(table))}, {quote_literal(self._prefix)}, "
            f"ARRAY[{names}]::text[]) ON CONFLICT (name) DO UPDATE SET key = excluded.key"
        )

    def _read(self, name: str) -> DataFrame:
        return cast("DataFrame", configure_jdbc(self._spark.read, self._url, name).load())


def _exists(run: Run, name: str) -> bool:
    return run(f"SELECT to_regclass({quote_literal(name)})::text") is not None
