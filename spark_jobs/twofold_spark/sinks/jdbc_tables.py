"""A mirror's tables in PostgreSQL: transactions, names, keys and columns, and how they are read.

A group's member has schemas of its own: the schema `public` of `bank_east` is `bank_east_public`,
and `bank_east_twofold` has what only that source needs.

There is one writer: the job holds a lock of the database, on the connection that publishes. The
lock ends with the connection.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DateType, TimestampNTZType, TimestampType

from twofold_common.table_names import quote_identifier, quote_literal
from twofold_spark.errors import Refused, ServerAway, SetupError, TableRefused, describe_causes, explain_away
from twofold_spark.java_classes import java_class
from twofold_spark.row_columns import OP, UNCHANGED
from twofold_spark.sinks import column_changes
from twofold_spark.sinks.cut_rows import combine_rows
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sinks.interface import MirrorTable
from twofold_spark.sinks.merge_sql import SPARK
from twofold_spark.sinks.sharding import PROPERTY, Sharding
from twofold_spark.sources.postgres_connection import DRIVER, open_connection, run_statement

Run = Callable[[str], str | None]
"""Runs a statement and returns the first value of its first row."""
_WRITER_LOCK, _LOCK_PATIENCE_S = 0x74776F66, 10


class MirrorDatabase:
    """The connection that publishes; the sinks of a group's members share it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Any = None
        self._lock = threading.Lock()
        """Members are merged side by side, and share the connection."""

    def open(self, spark: SparkSession) -> None:
        """Connect, and keep other jobs out; once."""
        if self._connection is None:
            check_time_zone(spark)
            _refuse_speculation(spark)
            self._connection = connect(spark, self.url)
            with self.transaction() as run:
                _take_writer_lock(run)

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Open a transaction on the connection that holds the lock; tables use others."""
        with self._lock, transaction(self._connection) as run:
            yield run

    def close(self) -> None:
        """Give up the connection and its lock."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check_time_zone(spark: SparkSession) -> None:
    """Refuse a driver whose Java is not in UTC.

    By way of the time zone of its Java, Spark reads and writes a column of type timestamp. A local
    time that summer time skips would be written as another one.
    """
    zone = java_class(spark, "java.time.ZoneId").systemDefault()
    if zone.normalized().getId() != "Z":  # the id of a zone that never differs from UTC
        raise SetupError(
            f"the time zone of Java is {zone.getId()}, with which timestamps in PostgreSQL would be other ones: submit with "
            "-Duser.timezone=UTC in --conf spark.driver.extraJavaOptions=... and --conf spark.executor.extraJavaOptions=..."
        )


def _refuse_speculation(spark: SparkSession) -> None:
    """Refuse a session whose tasks run twice: each commits its rows by itself."""
    if spark.conf.get("spark.speculation", "false") == "true":
        raise SetupError(
            "spark.speculation is on, and a task that runs twice would write its rows into PostgreSQL twice: "
            "submit with --conf spark.speculation=false"
        )


def configure_jdbc(reader_or_writer: Any, url: str, table: str) -> Any:
    """Point a DataFrame's reader or writer to a table."""
    options = {"url": url, "driver": DRIVER, "batchsize": "5000", "reWriteBatchedInserts": "true"}
    return reader_or_writer.format("jdbc").options(**options).option("dbtable", table)


def failing_on_lost_days(rows: DataFrame) -> DataFrame:
    """Let the read of the rows fail at a day that Java's older calendar does not have.

    The driver would write another day, by way of that calendar. PostgreSQL and Spark have these
    days.
    """
    return rows.withColumns(
        {
            field.name: f.when(
                _has_lost_day(f.col(SPARK.quote(field.name)), field.dataType),
                f.raise_error(f"{field.name} has a day from {' to '.join(_LOST_DAYS)}, which JDBC cannot write"),
            ).otherwise(f.col(SPARK.quote(field.name)))
            for field in rows.schema
            if _has_days(field.dataType)
        }
    )


def _has_days(kind: DataType) -> bool:
    return _has_days(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, _DAYS)


def _has_lost_day(value: Column, kind: DataType) -> Column:
    if isinstance(kind, ArrayType):
        return f.exists(value, lambda each: _has_lost_day(each, kind.elementType))
    first, last = (f.lit(day).cast("date") for day in _LOST_DAYS)  # PySpark's own dates lack them too
    return value.cast("date").between(first, last)


def read_frame(spark: SparkSession, url: str, table: str, **options: str) -> DataFrame:
    return cast("DataFrame", configure_jdbc(spark.read.options(**options), url, table).load())


def connect(spark: SparkSession, url: str) -> Any:
    """Open a connection; the caller closes it."""
    return open_connection(spark, url, role="the mirror's database", option="the address in --sink")


@contextmanager
def own_transaction(spark: SparkSession, url: str) -> Iterator[Run]:
    """Run statements in a transaction on a connection of its own."""
    connection = connect(spark, url)
    try:
        with transaction(connection) as run:
            yield run
    finally:
        connection.close()


@contextmanager
def transaction(connection: Any) -> Iterator[Run]:
    """Run statements that take effect together or not at all."""

    def run(statement: str) -> str | None:
        with driver_errors():
            return run_statement(connection, statement)

    try:
        with driver_errors():
            connection.setAutoCommit(False)
        yield run
        with driver_errors():
            connection.commit()
    except BaseException:
        with suppress(Py4JJavaError):  # if the connection is lost, the server rolls back by itself
            connection.rollback()
        raise


class StatementRejected(SetupError):
    """The database rejects a statement; `causes` is the driver's error with its causes."""

    def __init__(self, message: str, causes: str) -> None:
        super().__init__(message)
        self.causes = causes

    @property
    def is_locked_out(self) -> bool:
        """Whether another transaction held a lock for too long."""
        return "\nSQLSTATE 55P03" in self.causes

    @property
    def may_succeed_now(self) -> bool:
        """Whether the transaction was rolled back only because others ran beside it."""
        return "\nSQLSTATE 40" in self.causes


@contextmanager
def driver_errors() -> Iterator[None]:
    """Raise the driver's message without its stack."""
    try:
        yield
    except Py4JJavaError as error:
        causes, said = describe_causes(error), error.java_exception.getMessage()
        if explain_away(causes) is not None:
            raise ServerAway(f"the mirror's database is away ({said}); nothing is lost") from error
        raise StatementRejected(f"the mirror's database rejects a statement: {said}", causes) from error


def _take_writer_lock(run: Run) -> None:
    """Take the lock, and wait for it: a job that was killed a moment ago may still hold it."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while run(f"SELECT pg_try_advisory_lock({_WRITER_LOCK})") != "t":
        if time.monotonic() > deadline:
            raise Refused(
                "another job writes into this database",
                at_stake="nothing yet: this job has written nothing",
                repair="end the other job",
            )
        time.sleep(0.2)


_COLUMNS = """
SELECT coalesce(json_object_agg(attname, format_type(atttypid, atttypmod) ORDER BY attnum), '{{}}')
  FROM pg_attribute WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped
"""
_STAGES = """
SELECT coalesce(json_agg(relname), '[]') FROM pg_class
 WHERE relnamespace = to_regnamespace({}) AND relkind = 'r' AND relname ~ '^stage_[0-9a-f]{{24}}(_|$)'
"""
_DAYS = (DateType, TimestampType, TimestampNTZType)
_LOST_DAYS = "1582-10-05", "1582-10-14"
_WIDER = {("integer", "bigint"), ("real", "double precision")}
_FLOATS = {"real", "double precision"}
_NAME_BYTES = 63
_SHARDED = f"{PROPERTY}="
NOW = "now"
"""The only version: PostgreSQL keeps no older ones."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a mirror's tables in the database, quoted."""

    member: str = ""
    """The prefix of a group's member; none where a database holds one prefix."""
    writer: str = ""
    """Who stages rows: a task of Spark may still write when its job has failed, and another one has
    begun."""

    def schema(self, name: str) -> str:
        """Return the schema, unquoted."""
        return f"{self.member}_{name}" if self.member else name

    def own(self, name: str) -> str:
        """Return the name of a table of the mirror's own: cuts, mirrored, quarantine."""
        return f"{quote_identifier(self.schema('twofold'))}.{name}"

    def table(self, table: MirrorTable) -> str:
        return quote_identifier(self.schema(table.schema), table.name)

    def stage(self, table: MirrorTable) -> str:
        return self.own(f"stage_{hashlib.sha256(str(table).encode()).hexdigest()[:24]}_{self.writer}")

    def check(self, prefix: str) -> None:
        """Refuse a prefix whose schemas PostgreSQL would cut off: two could become one."""
        if len(self.schema("twofold").encode()) > _NAME_BYTES:
            raise SetupError(
                f"the prefix {prefix} is too long for a member's schemas in PostgreSQL: {self.schema('twofold')} has more "
                f"than {_NAME_BYTES} bytes: keep the mirror of this source group in Iceberg"
            )


def read_sources(run: Run) -> tuple[list[str], bool]:
    """Return the mirror's topic prefixes, and whether each has schemas of its own.

    They are those of the last cut, and before the first one those of tables.
    """
    of_group = run("SELECT to_regclass('twofold.global_waits')::text") is not None
    if run("SELECT to_regclass('twofold.cuts')::text") is None:
        return [], of_group
    known = run(
        "SELECT json_agg(DISTINCT prefix) FROM twofold.cuts WHERE number = (SELECT max(number) FROM twofold.cuts)"
    )
    return json.loads(known or "[]"), of_group


def read_sharding(run: Run) -> Sharding:
    """Return which tables are sharded: the comment of the table of cuts has it."""
    comment = run("SELECT obj_description(to_regclass('twofold.cuts'), 'pg_class')") or ""
    return Sharding.parse(comment.removeprefix(_SHARDED) if comment.startswith(_SHARDED) else "")


def write_sharding(run: Run, sharding: Sharding) -> None:
    if sharding != read_sharding(run):
        run(f"COMMENT ON TABLE twofold.cuts IS {quote_literal(f'{_SHARDED}{sharding}')}")


def read_cut(run: Run) -> GlobalCut | None:
    of_group = read_sources(run)[1]
    last = "SELECT * FROM twofold.cuts WHERE number = (SELECT max(number) FROM twofold.cuts)"
    rows = json.loads(run(f"SELECT json_agg(c) FROM ({last}) c") or "[]")
    for row in rows:
        names = Names(row["prefix"] if of_group else "")
        mirrored = json.loads(run(f"SELECT coalesce(json_agg(name), '[]') FROM {names.own('mirrored')}") or "[]")
        row["tables"] = {name: NOW for name in mirrored if name not in row["stopped"]}
        row["whole"] = True
    return combine_rows(rows[0]["number"], rows) if rows else None


def has_tables(run: Run, names: Names) -> bool:
    """Whether the mirror has made tables; the transaction that made one has published a cut."""
    return run(f"SELECT name FROM {names.own('mirrored')} LIMIT 1") is not None


def read_key(run: Run, names: Names, name: str) -> tuple[str, ...] | None:
    """Return the key columns of a table (`schema.name`); None if the mirror did not create it."""
    key = run(f"SELECT to_json(key) FROM {names.own('mirrored')} WHERE name = {quote_literal(name)}")
    return None if key is None else tuple(json.loads(key))


def change_key(run: Run, names: Names, table: MirrorTable) -> None:
    """Give a table without rows its present key."""
    former = read_key(run, names, str(table)) or ()
    if former == table.key:
        return
    name = names.table(table)
    constraint = run(
        f"SELECT conname FROM pg_constraint WHERE conrelid = {quote_literal(name)}::regclass AND contype = 'p'"
    )
    if constraint is not None:
        run(f"ALTER TABLE {name} DROP CONSTRAINT {quote_identifier(constraint)}")
    for column in former:  # dropping the constraint leaves its columns NOT NULL
        run(f"ALTER TABLE {name} ALTER COLUMN {quote_identifier(column)} DROP NOT NULL")
    if table.key:
        run(f"ALTER TABLE {name} ADD PRIMARY KEY ({', '.join(map(quote_identifier, table.key))})")
    key = ", ".join(map(quote_literal, table.key))
    run(f"UPDATE {names.own('mirrored')} SET key = ARRAY[{key}]::text[] WHERE name = {quote_literal(str(table))}")


def check_name_lengths(names: Names, table: MirrorTable, columns: list[str]) -> None:
    """Refuse names that PostgreSQL would cut off.

    The column would then not be found by its name, and an unchanged value would be read as null.
    Two members' schemas could become one.
    """
    if len((schema := names.schema(table.schema)).encode()) > _NAME_BYTES:
        raise TableRefused(
            f"{table}: its schema {schema} is longer than the {_NAME_BYTES} bytes that PostgreSQL allows",
            at_stake="its rows: two such schemas could become one",
            repair="leave the table out of the publication, or keep the mirror in Iceberg",
        )
    if long := [column for column in columns if len(column.encode()) > _NAME_BYTES]:
        raise TableRefused(
            f"{table}: the column names {', '.join(long)} are longer than the {_NAME_BYTES} bytes that PostgreSQL allows; "
            "a letter that Avro does not allow in names takes six",
            at_stake="their values: two such columns could become one, and an unchanged value could become null",
            repair="give the columns shorter names in the source, leave them out of the publication's column list, "
            "or keep the mirror in Iceberg or Delta",
        )


def read_columns(run: Run, name: str) -> dict[str, str]:
    return json.loads(run(_COLUMNS.format(quote_literal(name))) or "{}")  # type: ignore[no-any-return]


def read_staged_columns(run: Run, names: Names, table: MirrorTable) -> dict[str, str]:
    return {c: kind for c, kind in read_columns(run, names.stage(table)).items() if c not in (OP, UNCHANGED)}


def drop_stages(run: Run, names: Names) -> None:
    """Drop the staging tables of jobs that ended before they merged them."""
    schema = quote_literal(quote_identifier(names.schema("twofold")))
    for stage in json.loads(run(_STAGES.format(schema)) or "[]"):
        run(f"DROP TABLE {names.own(stage)}")


def find_floats(columns: dict[str, str]) -> dict[str, bool]:
    """Find the columns of floats, and whether each is an array of them."""
    kinds = {name: kind.removesuffix("[]") for name, kind in columns.items()}
    return {name: kind != columns[name] for name, kind in kinds.items() if kind in _FLOATS}


def list_alterations(table: MirrorTable, present: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """List what follows ALTER TABLE; nothing for a table that does not exist yet."""
    out = []
    for column, kind in wanted.items() if present else ():
        current = present.get(column)
        if current is None:
            out.append(f"ADD COLUMN {quote_identifier(column)} {kind}")
        elif _widens_to(current, kind):
            out.append(f"ALTER COLUMN {quote_identifier(column)} TYPE {kind}")
        elif current != kind and not _widens_to(kind, current):
            raise column_changes.refuse_type(f"{table}.{column}", current, kind, str(table))
    return out


def _widens_to(old: str, new: str) -> bool:
    if old.startswith("numeric(") and new.startswith("numeric("):
        (old_precision, old_scale), (precision, scale) = (text[8:-1].split(",") for text in (old, new))
        return old_scale == scale and int(old_precision) < int(precision)
    return (old, new) in _WIDER
