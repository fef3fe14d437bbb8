"""MERGE of folded rows, in Spark's words and in PostgreSQL's. Pure.

A folded row has the table's columns, `OP` (`d`, or anything else for a row that is there now) and `UNCHANGED`, the
columns whose value the table keeps. Only columns of which some row of the batch says so are asked for of the table: what
is not asked for is not read. A keyless table is a multiset: a row is itself its key, and `_copies` says by how
many it grows or shrinks.

A row that a keyless table does not have cannot be taken from it: after a DROP COLUMN the source's old rows are others
than the mirror's. Spark's statements then fail, at no cost where nothing lacks; PostgreSQL is asked before
(`lacking`), because there one transaction has all tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from twofold_spark.errors import TableRefused
from twofold_spark.mirror.toast_values import COPIES, OP, UNCHANGED
from twofold_spark.sinks import Table

_LACKING = "twofold: more copies taken away than there are"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine writes a name, asks whether `UNCHANGED` holds a column's, and refuses fewer copies than none."""

    quote: Callable[[str], str]
    unchanged: Callable[[str], str]
    copies: Callable[[str], str]


def text(value: str) -> str:
    """A string literal's inside, for Spark: which puts a variable's value, or nothing, in the place of ${...} wherever it stands."""
    return value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")


SPARK = Dialect(
    quote=lambda name: "`" + name.replace("`", "``") + "`",
    unchanged=lambda column: f"array_contains(s.{UNCHANGED}, '{text(column)}')",
    copies=lambda n: f"CASE WHEN {n} < 0 THEN CAST(raise_error('{_LACKING}') AS bigint) ELSE {n} END",
)
POSTGRES = Dialect(
    quote=lambda name: '"' + name.replace('"', '""') + '"',
    unchanged=lambda column: f"""'{column.replace("'", "''")}' = ANY (s.{UNCHANGED})""",
    copies=lambda n: n,
)


def merge(
    into: str,
    source: str,
    key: Sequence[str],
    columns: Sequence[str],
    *,
    unchanged: Collection[str],
    among: str = "true",
    dialect: Dialect = SPARK,
) -> str:
    """The statement; `into`, `source` and `among`, which rows of the table can be meant at all, are written as they are."""
    quote = dialect.quote
    names = ", ".join(map(quote, columns))
    if not key:
        values = (dialect.copies(f"s.{COPIES}") if c == COPIES else f"s.{quote(c)}" for c in columns)
        both = f"t.{COPIES} + s.{COPIES}"
        return (
            f"MERGE INTO {into} t USING {source} s ON {_same_row(columns, columns, dialect)} "
            f"WHEN MATCHED AND {both} = 0 THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {COPIES} = {dialect.copies(both)} "
            f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({', '.join(values)})"
        )
    values = (f"s.{quote(c)}" for c in columns)
    same = " AND ".join([*(f"t.{quote(k)} = s.{quote(k)}" for k in key), *([among] if among != "true" else [])])
    new = {
        c: f"CASE WHEN {dialect.unchanged(c)} THEN t.{quote(c)} ELSE s.{quote(c)} END"
        if c in unchanged
        else f"s.{quote(c)}"
        for c in columns
    }
    sets = ", ".join(f"{quote(c)} = {value}" for c, value in new.items())
    return (
        f"MERGE INTO {into} t USING {source} s ON {same} "
        f"WHEN MATCHED AND s.{OP} = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({names}) VALUES ({', '.join(values)})"
    )


def arriving(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """What folded rows make of an empty table."""
    if key:
        return rows.where(f"{OP} <> 'd'").drop(OP, UNCHANGED)
    columns = [c for c in rows.columns if c not in (OP, UNCHANGED)]
    return rows.selectExpr(*(f"{SPARK.copies(c)} AS {c}" if c == COPIES else SPARK.quote(c) for c in columns))


def lacking(into: str, source: str, there: Collection[str], columns: Sequence[str]) -> str:
    """Asks PostgreSQL for a row that is taken from a keyless table which does not have it; `there` are its columns so far."""
    less = f"SELECT 1 FROM {source} s WHERE s.{COPIES} < 0"
    if not there:
        return f"{less} LIMIT 1"
    enough = f"{_same_row(columns, there, POSTGRES)} AND t.{COPIES} + s.{COPIES} >= 0"
    return f"{less} AND NOT EXISTS (SELECT FROM {into} t WHERE {enough}) LIMIT 1"


def is_lacking(error: Exception) -> bool:
    """Whether a statement failed because it would have left fewer copies than none."""
    return f"[USER_RAISED_EXCEPTION] {_LACKING}" in str(error)


def lacks(table: Table) -> TableRefused:
    return TableRefused(
        f"a row was taken from {table} that the mirror does not have as it was: a table without a key is matched by whole "
        "rows, and since these were written its columns changed, or they never came",
        at_stake="rows that are gone from the source and would stay for good",
        repair=f"`twofold backfill start {table}`",
    )


def check_key(table: Table, had: tuple[str, ...], *, replace: bool) -> None:
    """Refuses rows that are known by another key than the table's: that changes when the table begins anew, and only then."""
    if had != table.key and not replace:
        was, now = (", ".join(key) or "none" for key in (had, table.key))
        raise TableRefused(
            f"{table} has another key in the registry ({now}) than in the mirror ({was}), and comes to it by a reload",
            at_stake="rows that would stay beside those that replace them",
            repair=f"`twofold backfill start {table}`",
        )


def _same_row(columns: Collection[str], there: Collection[str], dialect: Dialect) -> str:
    """A column that the table does not have yet is null in all its rows."""
    names = [(c, dialect.quote(c)) for c in columns if c != COPIES]
    return " AND ".join(f"t.{n} IS NOT DISTINCT FROM s.{n}" if c in there else f"s.{n} IS NULL" for c, n in names)
