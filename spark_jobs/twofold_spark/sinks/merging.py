"""MERGE of folded rows, in Spark's words and in PostgreSQL's. Pure.

A folded row has the table's columns, `_op` (`d`, or anything else for a row that is there now) and `_unchanged`, the
columns whose value the table keeps. Only columns of which some row of the batch says so are asked for of the table: what
is not asked for is not read. A keyless table is a multiset: a row is itself its key, and `_copies` says by how
many it grows or shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from twofold_spark.carry import COPIES, OP, UNCHANGED


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine writes a name, and asks whether `_unchanged` holds a column's."""

    quote: Callable[[str], str]
    unchanged: Callable[[str], str]


def text(value: str) -> str:
    """A string literal's inside, for Spark."""
    return value.replace("\\", "\\\\").replace("'", "\\'")


SPARK = Dialect(
    quote=lambda name: "`" + name.replace("`", "``") + "`",
    unchanged=lambda column: f"array_contains(s.{UNCHANGED}, '{text(column)}')",
)
POSTGRES = Dialect(
    quote=lambda name: '"' + name.replace('"', '""') + '"',
    unchanged=lambda column: f"""'{column.replace("'", "''")}' = ANY (s.{UNCHANGED})""",
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
    names, values = (", ".join(before + quote(c) for c in columns) for before in ("", "s."))
    insert = f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({names}) VALUES ({values})"
    if not key:
        same = " AND ".join(f"t.{quote(c)} IS NOT DISTINCT FROM s.{quote(c)}" for c in columns if c != COPIES)
        return (
            f"MERGE INTO {into} t USING {source} s ON {same} "
            f"WHEN MATCHED AND t.{COPIES} + s.{COPIES} <= 0 THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {COPIES} = t.{COPIES} + s.{COPIES} {insert}"
        )
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
        f"WHEN MATCHED THEN UPDATE SET {sets} {insert}"
    )
