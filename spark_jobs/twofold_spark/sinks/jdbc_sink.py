"""The mirror in PostgreSQL: all tables of a batch, and its cut, change in one transaction.

Spark writes each table's folded rows into a staging table, over as many connections as it likes.
`JdbcPlace.publish` then merges all of them, changes columns, and writes the cut, in one
transaction, for all sources. So a reader sees whole cuts without versions; for several statements
it uses a REPEATABLE READ transaction. A killed batch leaves a staging table, which the next start
drops. The last cut says what was applied: it is in the commit that holds the rows.

The job writes into tables that it created, and into the schema `twofold`. A table of the same name
that existed before is refused, so that nobody mirrors a database into itself.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_common.global_waits import LongWait
from twofold_common.table_names import quote_identifier, quote_literal
from twofold_spark.errors import Refused, SetupError, TableRefused
from twofold_spark.row_columns import MEMBER, OP
from twofold_spark.sinks import jdbc_identity, jdbc_tables, merge_sql
from twofold_spark.sinks.cuts import Cut, GlobalCut
from twofold_spark.sinks.interface import MirrorTable, TableBatch
from twofold_spark.sinks.jdbc_tables import (
    MirrorDatabase,
    Names,
    Run,
    StatementRejected,
    configure_jdbc,
    own_transaction,
    read_frame,
)
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import NO_SHARDING, SHARED, Sharding
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
        part = self._place.find_part(self._prefix)
        if table not in self._known_tables:
            with self._database.transaction() as run:
                if not _exists(run, self._names.table(table)):
                    return 0
                if str(table) not in part.stopped:  # it waits for its reload, and the others go on
                    jdbc_identity.check(run, self._names, table, is_shared=self._prefix == SHARED)
            self._known_tables.add(table)
        return part.sequence

    def plan_batch(self, tables: Collection[MirrorTable], rows: int) -> None:
        """Do nothing: PostgreSQL merges, and Spark only brings the rows there."""

    def prepare(self, table: MirrorTable, columns: StructType) -> None:
        """Check the columns' names; the tables change in the transaction of the cut."""
        jdbc_tables.check_name_lengths(self._names, table, columns.names)

    def read_current(self, table: MirrorTable) -> DataFrame | None:
        return self._read(self._names.table(table))

    def merge(
        self,
        table: MirrorTable,
        batch: TableBatch,
        *,
        sequence: int,  # noqa: ARG002  (the cut has it)
    ) -> None:
        rows = jdbc_tables.failing_on_lost_days(batch.rows)
        configure_jdbc(rows.write, self._url, self._names.stage(table)).mode("overwrite").save()
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
            repeated = run(merge_sql.repeated_query(into, staged, table.key, emptied=emptied, everywhere=everywhere))
        if repeated is not None:
            self._staged.pop(table, None)
        return repeated

    def quarantine(self, records: DataFrame) -> None:
        name = self._names.own("quarantine")
        if (present := self._read(name)) is not None:
            records = records.join(present.select(*RECORD_PLACE), list(RECORD_PLACE), "left_anti")
        configure_jdbc(records.write, self._url, name).mode("append").save()

    def _read(self, name: str) -> DataFrame | None:
        with own_transaction(self._spark, self._url) as run:
            exists = _exists(run, name)
        return read_frame(self._spark, self._url, name) if exists else None

    def version_of(self, table: MirrorTable) -> str | None:  # noqa: ARG002
        return jdbc_tables.NOW

    def merge_staged(self, run: Run) -> None:
        """Merge what is staged, in the transaction of the cut.

        Refuse one table, if a statement was rejected for its rows. The transaction of all tables is
        then rolled back, and the next one is without this table.
        """
        for table, batch in self._staged.items():
            try:
                self._merge_staged(run, table, batch)
            except TableRefused as other:  # it was made again since it was staged
                self._forget_refused(table, other)
                raise
            except StatementRejected as error:
                refused = _refuse_addition(table, error) or refuse_for_error(table, error.causes)
                if refused is None:
                    raise
                self._forget_refused(table, refused)
                raise refused from error

    def _forget_refused(self, table: MirrorTable, refused: TableRefused) -> None:
        del self._staged[table]
        refused.prefix, refused.table = self._prefix, str(table)

    def forget_staged(self) -> None:
        """Forget what was staged: it is merged."""
        self._staged.clear()

    def maintain(self, tables: Collection[str], keep: dt.timedelta) -> None:
        """Do nothing: autovacuum has the tables."""

    def _check_staged(self, run: Run, table: MirrorTable, *, replace: bool) -> None:
        """Refuse staged rows for this table's own reason, before the transaction of all tables."""
        name, stage = self._names.table(table), self._names.stage(table)
        present, staged = jdbc_tables.read_columns(run, name), jdbc_tables.read_staged_columns(run, self._names, table)
        if table in self._known_tables and not present and not replace:
            raise _refuse_dropped(table)
        if present:
            jdbc_identity.check(run, self._names, table, is_shared=self._prefix == SHARED)
        if present and run(f"SELECT row_security_active({quote_literal(name)})::text") == "true":
            raise _refuse_policies(table, name)
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
        run("SET LOCAL row_security = off")  # a policy since the check is an error, and hides no row
        self._create_or_alter(run, table, wanted, replace=batch.replace)
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

    def _create_or_alter(self, run: Run, table: MirrorTable, wanted: dict[str, str], *, replace: bool) -> None:
        name = self._names.table(table)
        present = jdbc_tables.read_columns(run, name)
        if table in self._known_tables and not present and not replace:
            raise _refuse_dropped(table)
        if not present:
            self._create(run, table, wanted)
            return
        if run(f"SELECT prefix FROM {self._names.own('mirrored')} WHERE name = {quote_literal(str(table))}") is None:
            raise Refused(
                f"the database has a table {name} that the mirror did not create",
                at_stake="that table's rows",
                repair="mirror into a database of its own, never into the source",
            )
        jdbc_identity.lock_and_check(run, self._names, table, is_shared=self._prefix == SHARED)
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
        jdbc_identity.record(run, self._names, table)


def _refuse_dropped(table: MirrorTable) -> TableRefused:
    return TableRefused(
        f"{table} was dropped from the mirror while the job ran",
        at_stake="its rows: the batch has only those that changed",
        repair=f"`{reload_command(table)}`",
    )


def _refuse_policies(table: MirrorTable, name: str) -> TableRefused:
    """Refuse a table whose policies hold for the job too.

    UPDATE and DELETE pass over rows that a policy hides, without an error.
    """
    return TableRefused(
        f"{table}: row security that was added to it holds for the mirror's role too",
        at_stake="changes of rows that a policy hides: they would be passed over, and the rows stay as they were",
        repair=f"ALTER TABLE {name} NO FORCE ROW LEVEL SECURITY; the policies hold for all others as before. "
        f"If the role does not own the table, give it BYPASSRLS. If the table was stopped alone, also `{reload_command(table)}`",
    )


def _refuse_addition(table: MirrorTable, error: StatementRejected) -> TableRefused | None:
    """Make the refusal of a table that a person's view or rule keeps from a change.

    PostgreSQL names it. Most often it is a view on a column that gets a wider type.
    """
    if not error.causes.endswith("\nSQLSTATE 0A000"):
        return None
    return TableRefused(
        f"{table}: a view or the like that was added to it prevents its changes: {' '.join(str(error).split())}",
        at_stake="its changes of this batch, of which none is applied",
        repair="drop the view that PostgreSQL names, start again, then create it again. If the table was stopped alone, "
        f"also `{reload_command(table)}`",
    )


def _exists(run: Run, name: str) -> bool:
    return run(f"SELECT to_regclass({quote_literal(name)})::text") is not None


_CUTS = """
CREATE SCHEMA IF NOT EXISTS twofold;
CREATE TABLE IF NOT EXISTS twofold.cuts (
    number bigint, prefix text, joined boolean NOT NULL, sequence bigint NOT NULL, commit_offset bigint NOT NULL,
    applied_lsn bigint NOT NULL, committed_at timestamptz NOT NULL, published_at timestamptz NOT NULL,
    backfilling text[] NOT NULL, stopped text[] NOT NULL, committed_us bigint NOT NULL, stream_id text NOT NULL,
    stale text[] NOT NULL, skipped text[] NOT NULL, PRIMARY KEY (number, prefix))
"""
_WAITS = """
CREATE TABLE IF NOT EXISTS twofold.global_waits (
    global_id text NOT NULL, since timestamptz NOT NULL, branches jsonb NOT NULL, held jsonb NOT NULL);
DELETE FROM twofold.global_waits
"""
_ATTEMPTS = 5
"""Of a publication that meets a deadlock: a reader that reads two tables in one transaction is in
the way of a batch that changes columns of both."""
_LOCK_S, _LOCK_ATTEMPTS = 2, 30
_NOT_FOR_LONG = f"SET LOCAL lock_timeout = '{_LOCK_S}s'"
"""A task that still writes has a lock of its staging table; so has one whose machine is gone. And a
reader's transaction is in the way of ALTER TABLE, behind which all other readers wait.
"""
_HAS_SHARD = "INSERT INTO {} VALUES ({}, {}, ARRAY[]::text[]) ON CONFLICT (name) DO NOTHING"
"""A member has rows in a sharded table."""
_HAS_NO_SHARD = "DELETE FROM {} WHERE name = {} AND prefix = {}"


class JdbcPlace(Place):
    """The database, by one connection that the sinks share.

    The tables of one source keep their schemas' names, and so do the sharded tables of a group,
    whose members have schemas of their own.
    """

    word = "database"

    def __init__(self, url: str, *, of_group: bool = False, sharding: Sharding = NO_SHARDING) -> None:
        super().__init__(of_group=of_group, sharding=sharding)
        self._database = MirrorDatabase(url)
        self._writer = uuid.uuid4().hex[:8]
        self._sinks: dict[str, JdbcSink] = {}
        self._listed: set[tuple[str, str]] = set()
        """Members and the sharded tables that have rows of theirs, as the database knows."""
        self._cuts_oid: str | None = None

    def open(self, spark: SparkSession, prefixes: tuple[str, ...]) -> None:
        for prefix in prefixes:
            self._names(prefix).check(prefix)
        self._database.open(spark)
        with self._database.transaction() as run:
            known, of_group = jdbc_tables.read_sources(run)
            if known:
                self.check_sources(known, prefixes, of_group=of_group)
            run(_CUTS)
            run(_WAITS if self.of_group else "DROP TABLE IF EXISTS twofold.global_waits")
            members = (*prefixes, SHARED) if self.sharding.patterns else prefixes
            for prefix in members:
                jdbc_identity.create_list(run, self._names(prefix))
            self.last = jdbc_tables.read_cut(run)
            if self.last is None and any(jdbc_tables.has_tables(run, self._names(prefix)) for prefix in members):
                raise _refuse_lost_cuts()
            for prefix in members:
                jdbc_identity.record_new(run, self._names(prefix))
            self.sharding.check_unchanged(jdbc_tables.read_sharding(run), self.last)
            self._listed = self._list_shards(self.last) if self.last is not None else set()
            jdbc_tables.write_sharding(run, self.sharding)
            self._cuts_oid = jdbc_identity.read_oid(run, "twofold.cuts")
        # What cannot be dropped is in nobody's way, and goes at a later start.
        with suppress(StatementRejected), self._database.transaction() as run:
            run(_NOT_FOR_LONG)
            for prefix in members:
                jdbc_tables.drop_stages(run, self._names(prefix))

    def make_sink(self, spark: SparkSession, prefix: str) -> JdbcSink:
        made = JdbcSink(spark, prefix, self, self._database, self._names(prefix))
        self._sinks[prefix] = made
        return made

    def publish(self, cut: GlobalCut) -> None:
        left, locked_out = _ATTEMPTS, 0
        while True:
            try:
                self._publish_at_once(cut)
            except StatementRejected as error:
                if error.is_locked_out:
                    locked_out += 1
                    if locked_out > _LOCK_ATTEMPTS:
                        raise _refuse_lock(error) from error
                    continue
                left -= 1
                if not (left and error.may_succeed_now):
                    raise
            else:
                return

    def _publish_at_once(self, cut: GlobalCut) -> None:
        with self._database.transaction() as run:
            run(_NOT_FOR_LONG)
            for sink in self._sinks.values():
                sink.merge_staged(run)
            shards = self._list_shards(cut)
            for each, statement in ((shards - self._listed, _HAS_SHARD), (self._listed - shards, _HAS_NO_SHARD)):
                for prefix, name in each:
                    run(statement.format(self._names(prefix).own("mirrored"), *map(quote_literal, (name, prefix))))
            # A cut without changes must not lie on an older one either. The lock keeps the name.
            run("LOCK TABLE twofold.cuts IN ROW EXCLUSIVE MODE")
            if jdbc_identity.read_oid(run, "twofold.cuts") != self._cuts_oid:
                raise jdbc_identity.refuse_restored_place()
            rows = (_cut_row(cut.number, prefix, part, joined=joined) for prefix, part, joined in cut.parts)
            run(f"INSERT INTO twofold.cuts {' UNION ALL '.join(rows)}")
        self.last = cut
        self._listed = shards
        for sink in self._sinks.values():
            sink.forget_staged()

    def _list_shards(self, cut: GlobalCut) -> set[tuple[str, str]]:
        return {(p, name) for p, part, _ in cut.parts for name in part.versions if self.sharding.covers(name)}

    def forget(self, keep: dt.timedelta) -> None:
        ago = f"clock_timestamp() - interval '{keep.total_seconds()} s'"
        with self._database.transaction() as run:
            run(
                "DELETE FROM twofold.cuts WHERE number < "
                f"(SELECT coalesce(max(number), 0) FROM twofold.cuts WHERE published_at < {ago})"
            )

    def maintain(self, keep: dt.timedelta) -> None:
        """Do nothing: autovacuum has the tables."""

    def close(self) -> None:
        self._database.close()

    def replace_waits(self, waits: Iterable[LongWait]) -> None:
        with self._database.transaction() as run:
            run("DELETE FROM twofold.global_waits")
            for each in waits:
                branches = [place._asdict() for place in each.wait.places]
                held = [{"prefix": prefix, "commits": count} for prefix, count in each.held.items()]
                run(
                    f"INSERT INTO twofold.global_waits VALUES ({quote_literal(each.wait.global_id)}, "
                    f"clock_timestamp() - interval '{each.waited_s:.3f} s', {_as_json(branches)}, {_as_json(held)})"
                )

    def _names(self, prefix: str) -> Names:
        return Names(prefix if self.of_group else "", self._writer)


def _refuse_lock(error: StatementRejected) -> SetupError:
    return SetupError(
        f"another transaction has kept the cut from being published for {_LOCK_ATTEMPTS * _LOCK_S} s ({' '.join(str(error).split())}): "
        "end it (pg_stat_activity has it, mostly as idle in transaction), and start again; nothing is lost"
    )


def _refuse_lost_cuts() -> Refused:
    """Make the refusal of tables whose cuts, which alone say what is applied, were deleted."""
    return Refused(
        "the database has the mirror's tables, and twofold.cuts is empty: somebody has deleted its rows",
        at_stake="changes that would be applied again from the first commit record on; tables without a key would have them twice",
        repair="restore the whole database from a backup, or mirror into an empty database (--sink)",
    )


def _cut_row(number: int, prefix: str, part: Cut, *, joined: bool) -> str:
    backfilling, stopped, stale, skipped = (
        f"ARRAY[{', '.join(map(quote_literal, names))}]::text[]"
        for names in (part.backfilling, part.stopped, part.stale, map(str, part.skipped))
    )
    return (
        f"SELECT {number}, {quote_literal(prefix)}, {joined}, {part.sequence}, {part.offset}, {part.applied_lsn}, "
        f"to_timestamp({part.committed_us} / 1e6), clock_timestamp(), {backfilling}, {stopped}, {part.committed_us}, "
        f"{quote_literal(part.stream_id)}, {stale}, {skipped}"
    )


def _as_json(value: Any) -> str:
    return f"{quote_literal(json.dumps(value))}::jsonb"
