"""The mirror in PostgreSQL: all tables of a batch and its cut in one transaction of the database.

Spark writes each table's folded rows into a staging table, from as many connections as it likes; `publish` then merges
all of them, evolves what has to be evolved and writes the cut, in one transaction. So a reader sees whole cuts without
asking for versions (a REPEATABLE READ transaction, for several statements), and what a killed batch leaves is a staging
table that the next one replaces. What was applied is the last cut: it is in the commit that holds the rows.

It writes into tables that it made itself and into the schema `twofold`; a table of the same name that was there before
is refused, so that nobody mirrors a database into itself.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_spark.carry import OP, UNCHANGED
from twofold_spark.errors import MissingGround, Refused
from twofold_spark.quarantine import PLACE
from twofold_spark.sinks import Cut, Table, merging
from twofold_spark.sinks.database import Run, jdbc, transaction
from twofold_spark.source import identifier, literal

_GROUND = """
CREATE SCHEMA IF NOT EXISTS twofold;
CREATE TABLE IF NOT EXISTS twofold.cuts (
    sequence bigint PRIMARY KEY, applied_lsn bigint NOT NULL, committed_at timestamptz NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(), backfilling text[] NOT NULL, committed_us bigint NOT NULL);
CREATE TABLE IF NOT EXISTS twofold.mirrored (
    name text PRIMARY KEY, prefix text NOT NULL, key text[] NOT NULL)
"""
_COLUMNS = """
SELECT coalesce(json_object_agg(attname, format_type(atttypid, atttypmod) ORDER BY attnum), '{{}}')
  FROM pg_attribute WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped
"""
_WIDER = {("integer", "bigint"), ("real", "double precision")}
_ONE_WRITER = 0x74776F66
NOW = "now"
"""There is no version but the present one."""


class JdbcSink:
    """One writer into one database."""

    def __init__(self, spark: SparkSession, prefix: str, url: str) -> None:
        self._spark = spark
        self._prefix = prefix
        self._url = url
        self._lock = threading.Lock()
        self._staged: dict[Table, bool] = {}
        self._applied = 0

    def last_cut(self) -> Cut | None:
        with self._transaction() as run:
            run(_GROUND)
        reader = JdbcReader(self._spark, self._url)
        reader.check_prefix(self._prefix)
        cut = reader.last_cut()
        self._applied = cut.sequence if cut else 0
        return cut

    def applied(self, table: Table) -> int:  # noqa: ARG002  (all tables of a cut are at its sequence number)
        return self._applied

    def prepare(self, table: Table, columns: StructType) -> None:
        """Nothing yet: the columns are those of the staged rows, and tables change in `publish`'s transaction."""

    def current(self, table: Table) -> DataFrame | None:
        with self._transaction() as run:
            there = run(f"SELECT to_regclass({literal(_name(table))})::text")
        return self._read(_name(table)) if there is not None else None

    def merge(self, table: Table, rows: DataFrame, *, replace: bool, sequence: int) -> None:  # noqa: ARG002  (the cut has it)
        jdbc(rows.write, self._url, _stage(table)).mode("overwrite").save()
        with self._lock:
            self._staged[table] = replace

    def quarantine(self, records: DataFrame) -> None:
        name = "twofold.quarantine"
        with self._transaction() as run:
            there = run(f"SELECT to_regclass({literal(name)})::text")
        if there is not None:
            records = records.join(self._read(name).select(*PLACE), list(PLACE), "left_anti")
        jdbc(records.write, self._url, name).mode("append").save()

    def version(self, table: Table) -> str | None:  # noqa: ARG002
        return NOW

    def publish(self, cut: Cut) -> None:
        with self._transaction() as run:
            run(f"SELECT pg_advisory_xact_lock({_ONE_WRITER})")
            there = int(run("SELECT coalesce(max(sequence), 0) FROM twofold.cuts") or 0)
            if there != self._applied:
                raise Refused(
                    f"another writer published cut {there} while this batch was merged onto {self._applied}",
                    at_stake="nothing yet: this batch was not applied",
                    repair="end the other job",
                )
            for table, replace in self._staged.items():
                self._merge_staged(run, table, replace=replace)
            behind = ", ".join(literal(topic) for topic in cut.backfilling)
            run(
                f"INSERT INTO twofold.cuts SELECT {cut.sequence}, {cut.applied_lsn}, to_timestamp({cut.committed_us} / 1e6), "
                f"clock_timestamp(), ARRAY[{behind}]::text[], {cut.committed_us}"
            )
        self._staged.clear()
        self._applied = cut.sequence

    def maintain(self, tables: Iterable[str], keep: dt.timedelta) -> None:  # noqa: ARG002  (autovacuum has the tables)
        with self._transaction() as run:
            run(
                f"DELETE FROM twofold.cuts WHERE published_at < clock_timestamp() - interval '{keep.total_seconds()} s' "
                "AND sequence < (SELECT max(sequence) FROM twofold.cuts)"
            )

    def _merge_staged(self, run: Run, table: Table, *, replace: bool) -> None:
        name, stage, quote = _name(table), _stage(table), merging.POSTGRES.quote
        wanted = {c: kind for c, kind in _columns(run, stage).items() if c not in (OP, UNCHANGED)}
        self._evolve(run, table, wanted)
        columns = ", ".join(map(quote, wanted))
        if replace:
            run(f"TRUNCATE {name}")
            run(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {stage} WHERE {OP} <> 'd'")
        else:
            run(f"ANALYZE {stage}")
            run(merging.merge(name, stage, table.key, list(wanted), merging.POSTGRES))
        run(f"DROP TABLE {stage}")

    def _evolve(self, run: Run, table: Table, wanted: dict[str, str]) -> None:
        name, quote = _name(table), merging.POSTGRES.quote
        there = _columns(run, name)
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
        for column, kind in wanted.items():
            had = there.get(column)
            if had is None:
                run(f"ALTER TABLE {name} ADD COLUMN {quote(column)} {kind}")
            elif _widens(had, kind):
                run(f"ALTER TABLE {name} ALTER COLUMN {quote(column)} TYPE {kind}")
            elif had != kind and not _widens(kind, had):
                raise Refused(
                    f"{table}.{column} is {had} in the mirror and {kind} in the topic: no widening leads there",
                    at_stake="the column's values",
                    repair=f"drop the mirror's table, then `twofold backfill start {table}`",
                )

    def _read(self, name: str) -> DataFrame:
        return cast("DataFrame", jdbc(self._spark.read, self._url, name).load())

    def _transaction(self) -> AbstractContextManager[Run]:
        return transaction(self._spark, self._url)


class JdbcReader:
    """The last cut and its tables. There are no versions: who reads several tables takes one REPEATABLE READ transaction."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self._url = url

    def last_cut(self, where: str = "true") -> Cut | None:
        with transaction(self._spark, self._url) as run:
            newest = run(
                f"SELECT row_to_json(c) FROM (SELECT *, true AS whole FROM twofold.cuts ORDER BY sequence DESC LIMIT 1) c WHERE {where}"
            )
            names = run("SELECT coalesce(json_agg(name), '[]') FROM twofold.mirrored")
        if newest is None:
            return None
        row = json.loads(newest)
        return Cut(
            sequence=row["sequence"],
            applied_lsn=row["applied_lsn"],
            committed_us=row["committed_us"],
            whole=True,
            versions=dict.fromkeys(json.loads(names or "[]"), NOW),
            backfilling=tuple(row["backfilling"]),
        )

    def table(self, name: str, version: str) -> DataFrame:
        assert version == NOW
        schema, _, table = name.partition(".")
        return cast("DataFrame", jdbc(self._spark.read, self._url, f"{identifier(schema)}.{identifier(table)}").load())

    def key_of(self, name: str) -> tuple[str, ...]:
        with transaction(self._spark, self._url) as run:
            return tuple(
                json.loads(run(f"SELECT to_json(key) FROM twofold.mirrored WHERE name = {literal(name)}") or "[]")
            )

    def check_prefix(self, prefix: str) -> None:
        with transaction(self._spark, self._url) as run:
            if run("SELECT to_regclass('twofold.mirrored')::text") is None:
                raise MissingGround("the database holds no mirror: has `mirror` run into it?")
            other = run(f"SELECT min(prefix) FROM twofold.mirrored WHERE prefix <> {literal(prefix)}")
        if other is not None:
            raise Refused(
                f"this database mirrors the prefix {other!r}, not {prefix!r}",
                at_stake="two sources' tables mixed",
                repair="one database for each prefix",
            )


def _columns(run: Run, name: str) -> dict[str, str]:
    return json.loads(run(_COLUMNS.format(literal(name))) or "{}")  # type: ignore[no-any-return]


def _widens(old: str, new: str) -> bool:
    if old.startswith("numeric(") and new.startswith("numeric("):
        (was, scale), (now, scale_now) = (text[8:-1].split(",") for text in (old, new))
        return scale == scale_now and int(was) < int(now)
    return (old, new) in _WIDER


def _name(table: Table) -> str:
    return f"{identifier(table.schema)}.{identifier(table.name)}"


def _stage(table: Table) -> str:
    return f"twofold.stage_{hashlib.sha256(str(table).encode()).hexdigest()[:24]}"
