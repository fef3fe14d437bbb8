"""A mirror's tables in PostgreSQL: their names, their columns and what becomes of these; and how they are read."""

from __future__ import annotations

import hashlib
import json
from typing import cast

from pyspark.sql import DataFrame, SparkSession

from twofold_spark.errors import MissingGround, Refused, TableRefused
from twofold_spark.mirror.toast_values import OP, UNCHANGED
from twofold_spark.sinks import ANY, Asked, Cut, Table, merge_sql
from twofold_spark.sinks.mirror_database import Run, alone, jdbc
from twofold_spark.sources.source_database import identifier, literal

_COLUMNS = """
SELECT coalesce(json_object_agg(attname, format_type(atttypid, atttypmod) ORDER BY attnum), '{{}}')
  FROM pg_attribute WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped
"""
_WIDER = {("integer", "bigint"), ("real", "double precision")}
_NAME_BYTES = 63
NOW = "now"
"""There is no version but the present one."""


class JdbcReader:
    """The last cut and its tables. There are no versions: who reads several tables takes one REPEATABLE READ transaction."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self._url = url

    def whole_cut(self, asked: Asked = ANY, *, first: bool = False) -> Cut | None:  # noqa: ARG002  (there is one)
        cut = self.last_cut()
        return cut if cut is not None and asked.takes(cut) else None

    def last_cut(self) -> Cut | None:
        with alone(self._spark, self._url) as run:
            newest = run("SELECT row_to_json(c) FROM twofold.cuts c ORDER BY sequence DESC LIMIT 1")
            names = run("SELECT coalesce(json_agg(name), '[]') FROM twofold.mirrored")
        if newest is None:
            return None
        row = json.loads(newest)
        return Cut(
            sequence=row["sequence"],
            applied_lsn=row["applied_lsn"],
            committed_us=row["committed_us"],
            whole=True,
            versions={name: NOW for name in json.loads(names or "[]") if name not in row["stopped"]},
            backfilling=tuple(row["backfilling"]),
            stopped=tuple(row["stopped"]),
        )

    def table(self, name: str, version: str) -> DataFrame:
        assert version == NOW
        schema, _, table = name.partition(".")
        return cast("DataFrame", jdbc(self._spark.read, self._url, f"{identifier(schema)}.{identifier(table)}").load())

    def key_of(self, name: str) -> tuple[str, ...]:
        with alone(self._spark, self._url) as run:
            return key_of(run, name) or ()

    def check_prefix(self, prefix: str) -> None:
        with alone(self._spark, self._url) as run:
            if run("SELECT to_regclass('twofold.mirrored')::text") is None:
                raise MissingGround("the database holds no mirror: has `mirror` run into it?")
            other = run(f"SELECT min(prefix) FROM twofold.mirrored WHERE prefix <> {literal(prefix)}")
        if other is not None:
            raise Refused(
                f"this database mirrors the prefix {other!r}, not {prefix!r}",
                at_stake="two sources' tables mixed",
                repair="one database for each prefix",
            )


def key_of(run: Run, name: str) -> tuple[str, ...] | None:
    """The columns that a table (`schema.name`) is merged by; None of one that the mirror did not make."""
    key = run(f"SELECT to_json(key) FROM twofold.mirrored WHERE name = {literal(name)}")
    return None if key is None else tuple(json.loads(key))


def rekey(run: Run, table: Table) -> None:
    """Gives a table without rows the key that it has now."""
    had = key_of(run, str(table)) or ()
    if had == table.key:
        return
    name, quote = name_of(table), merge_sql.POSTGRES.quote
    constraint = run(f"SELECT conname FROM pg_constraint WHERE conrelid = {literal(name)}::regclass AND contype = 'p'")
    if constraint is not None:
        run(f"ALTER TABLE {name} DROP CONSTRAINT {quote(constraint)}")
    for column in had:  # the constraint that made them so leaves them so
        run(f"ALTER TABLE {name} ALTER COLUMN {quote(column)} DROP NOT NULL")
    if table.key:
        run(f"ALTER TABLE {name} ADD PRIMARY KEY ({', '.join(map(quote, table.key))})")
    key = ", ".join(map(literal, table.key))
    run(f"UPDATE twofold.mirrored SET key = ARRAY[{key}]::text[] WHERE name = {literal(str(table))}")


def check_names(table: Table, columns: list[str]) -> None:
    """PostgreSQL cuts off what is longer, and a column would not be known by its name any more: an unchanged value would be taken for null."""
    if long := [column for column in columns if len(column.encode()) > _NAME_BYTES]:
        raise TableRefused(
            f"{table}: the columns' names {', '.join(long)} take more than the {_NAME_BYTES} bytes that PostgreSQL has for a name (a letter that Avro's names do not have takes six)",
            at_stake="their values: two such columns may be one, and a value that was not sent again would be null",
            repair="give the columns shorter names in the source, leave them out of the publication's column list, or keep the mirror in Iceberg or Delta",
        )


def columns_of(run: Run, name: str) -> dict[str, str]:
    return json.loads(run(_COLUMNS.format(literal(name))) or "{}")  # type: ignore[no-any-return]


def staged_columns(run: Run, table: Table) -> dict[str, str]:
    """The columns of the staged rows."""
    return {c: kind for c, kind in columns_of(run, stage_of(table)).items() if c not in (OP, UNCHANGED)}


def alters(table: Table, there: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """What follows ALTER TABLE; nothing for a table that is not there yet."""
    out, quote = [], merge_sql.POSTGRES.quote
    for column, kind in wanted.items() if there else ():
        had = there.get(column)
        if had is None:
            out.append(f"ADD COLUMN {quote(column)} {kind}")
        elif _widens(had, kind):
            out.append(f"ALTER COLUMN {quote(column)} TYPE {kind}")
        elif had != kind and not _widens(kind, had):
            raise TableRefused(
                f"{table}.{column} is {had} in the mirror and {kind} in the topic: no widening leads there",
                at_stake="the column's values",
                repair=f"drop the mirror's table, then `twofold backfill start {table}`",
            )
    return out


def _widens(old: str, new: str) -> bool:
    if old.startswith("numeric(") and new.startswith("numeric("):
        (was, scale), (now, scale_now) = (text[8:-1].split(",") for text in (old, new))
        return scale == scale_now and int(was) < int(now)
    return (old, new) in _WIDER


def name_of(table: Table) -> str:
    return f"{identifier(table.schema)}.{identifier(table.name)}"


def stage_of(table: Table) -> str:
    return f"twofold.stage_{hashlib.sha256(str(table).encode()).hexdigest()[:24]}"
