"""MERGE of folded rows, in Spark's SQL and in PostgreSQL's.

A folded row has the table's columns, `OP` (`d` for a deleted row) and `UNCHANGED` (the columns
whose value the table keeps). The statement reads the table's value only of columns that some row of
the batch lists there. A keyless table is a multiset: the whole row is the key, and `_copies` says
by how many copies the row grows or shrinks.

A row that a keyless table does not have cannot be removed from it. After a DROP COLUMN, for
example, the source's old rows differ from the mirror's. Spark's statements fail then, and cost
nothing otherwise. PostgreSQL is asked before (`missing_copies_query`), because there one
transaction has all tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StructType

from twofold_common.table_names import quote_identifier, quote_literal
from twofold_spark.errors import TableRefused
from twofold_spark.row_columns import COPIES, MEMBER, OP, UNCHANGED
from twofold_spark.sinks.interface import MirrorTable, TableBatch
from twofold_spark.sources.topic_names import reload_command

_MISSING_COPIES = "twofold: more copies removed than there are"

Floats = Mapping[str, bool]
"""Columns of floats, and whether each is an array of them."""
NO_FLOATS: Floats = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine quotes names, tests `UNCHANGED`, and rejects a negative number of copies."""

    quote: Callable[[str], str]
    unchanged: Callable[[str], str]
    copies: Callable[[str], str]
    float_text: Callable[[str, bool], str]
    """The text of a float, or of an array of floats: -0 has a text of its own."""


def escape_literal(value: str) -> str:
    """Escape the inside of a string literal for Spark.

    Spark would replace ${...} by a variable's value, wherever it stands.
    """
    return value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")


SPARK = Dialect(
    quote=lambda name: "`" + name.replace("`", "``") + "`",
    unchanged=lambda column: f"array_contains(s.{UNCHANGED}, '{escape_literal(column)}')",
    copies=lambda n: f"CASE WHEN {n} < 0 THEN CAST(raise_error('{_MISSING_COPIES}') AS bigint) ELSE {n} END",
    float_text=lambda value, is_array: f"CAST(CAST({value} AS {'array<double>' if is_array else 'double'}) AS string)",
)
POSTGRES = Dialect(
    quote=quote_identifier,
    unchanged=lambda column: f"{quote_literal(column)} = ANY (s.{UNCHANGED})",
    copies=lambda n: n,
    float_text=lambda value, is_array: f"{value}::float8{'[]' if is_array else ''}::text",
)


def merge_statement(
    into: str,
    source: str,
    key: Sequence[str],
    columns: Sequence[str],
    *,
    unchanged: Collection[str],
    among: str = "true",
    floats: Floats = NO_FLOATS,
    emptied: Collection[str] = (),
    dialect: Dialect = SPARK,
) -> str:
    """Build the statement. `into` and `source` are written as they are.

    So is `among`, the condition of the table's rows that the batch may mean. `floats` are columns
    whose values may be equal and not identical. They count where a row is its own key. The former
    rows of the members in `emptied` go; PostgreSQL has deleted them before.
    """
    quote = dialect.quote
    listed = ", ".join(f"'{escape_literal(member)}'" for member in emptied)
    of_emptied = f"t.{MEMBER} IN ({listed})"
    gone = f" WHEN NOT MATCHED BY SOURCE AND {of_emptied} THEN DELETE" if emptied else ""
    names = ", ".join(map(quote, columns))
    if not key:
        values = (dialect.copies(f"s.{COPIES}") if c == COPIES else f"s.{quote(c)}" for c in columns)
        had = f"CASE WHEN {of_emptied} THEN 0 ELSE t.{COPIES} END" if emptied else f"t.{COPIES}"
        both = f"{had} + s.{COPIES}"
        return (
            f"MERGE INTO {into} t USING {source} s ON {_same_row(columns, columns, floats, dialect)} "
            f"WHEN MATCHED AND {both} = 0 THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {COPIES} = {dialect.copies(both)} "
            f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({', '.join(values)})" + gone
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
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({names}) VALUES ({', '.join(values)})" + gone
    )


def rows_of_empty_table(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows that an empty table has after the folded rows."""
    if key:
        return rows.where(f"{OP} <> 'd'").drop(OP, UNCHANGED)
    columns = [c for c in rows.columns if c not in (OP, UNCHANGED)]
    return rows.selectExpr(*(f"{SPARK.copies(c)} AS {c}" if c == COPIES else SPARK.quote(c) for c in columns))


def missing_copies_query(
    into: str, source: str, present: Collection[str], columns: Sequence[str], floats: Floats = NO_FLOATS
) -> str:
    """Build PostgreSQL's query for a removed row that a keyless table does not have.

    `present` are the table's columns so far.
    """
    removed = f"SELECT 1 FROM {source} s WHERE s.{COPIES} < 0"
    if not present:
        return f"{removed} LIMIT 1"
    enough = f"{_same_row(columns, present, floats, POSTGRES)} AND t.{COPIES} + s.{COPIES} >= 0"
    return f"{removed} AND NOT EXISTS (SELECT FROM {into} t WHERE {enough}) LIMIT 1"


def repeated_query(
    into: str | None, source: str | None, key: Sequence[str], *, emptied: Collection[str], everywhere: bool
) -> str:
    """Build PostgreSQL's query for a key that several members have once the rows are merged.

    It looks among the keys of the rows, or everywhere. `into`: the table, if it exists; `source`:
    the rows, if there are some.
    """
    own = [quote_identifier(name) for name in key if name != MEMBER]
    names = ", ".join((*own, MEMBER))
    put = f"SELECT {names} FROM {source} s WHERE {OP} <> 'd'"
    after = put if source is not None else f"SELECT {names} FROM {into}"
    if into is not None and source is not None:
        same = " AND ".join(f"s.{name} = t.{name}" for name in own)
        gone = "".join(f" AND t.{MEMBER} <> {quote_literal(member)}" for member in emptied)
        among = "" if everywhere else f" AND EXISTS ({put} AND {same})"
        after = (
            f"SELECT {names} FROM {into} t WHERE NOT EXISTS (SELECT FROM {source} s WHERE {same} "
            f"AND s.{MEMBER} = t.{MEMBER}){gone}{among} UNION ALL {put}"
        )
    listed = ", ".join(own)
    return (
        f"SELECT concat('(', concat_ws(', ', {listed}), ') in ', string_agg({MEMBER}, ' and ' ORDER BY {MEMBER})) "
        f"FROM ({after}) a GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"
    )


def merge_batch(into: str, table: MirrorTable, batch: TableBatch, *, among: str = "true") -> None:
    """Run Spark's MERGE of a batch; `into` and `among` are written as they are."""
    view, rows = f"_twofold_{abs(hash(str(table)))}", batch.rows
    rows.createOrReplaceTempView(view)
    statement = merge_statement(
        into,
        view,
        table.key,
        [c for c in rows.columns if c not in (OP, UNCHANGED)],
        unchanged=batch.unchanged,
        among=among,
        floats=find_floats(rows.schema),
        emptied=batch.emptied,
    )
    rows.sparkSession.sql(statement)


@contextmanager
def refusing_missing_copies(table: MirrorTable) -> Iterator[None]:
    """Refuse the table where a statement would leave a negative number of copies."""
    try:
        yield
    except Exception as error:
        if f"[USER_RAISED_EXCEPTION] {_MISSING_COPIES}" not in str(error):
            raise
        raise refuse_missing_copies(table) from error


def refuse_missing_copies(table: MirrorTable) -> TableRefused:
    return TableRefused(
        f"a change removes a row from {table} that the mirror does not have. A table without a key is matched by whole "
        "rows: its columns changed since these rows were written, or the rows were never loaded",
        at_stake="rows that are deleted in the source, and would stay in the mirror for good",
        repair=f"`{reload_command(table)}`",
    )


def check_key(table: MirrorTable, present: tuple[str, ...], *, replace: bool) -> None:
    """Refuse rows with another key than the table's; a key changes with a reload, and only then."""
    if present != table.key and MEMBER in (*present, *table.key):
        raise refuse_key(table, present)
    if present != table.key and not replace:
        was, now = (", ".join(key) or "none" for key in (present, table.key))
        raise TableRefused(
            f"the key of {table} is ({now}) in the registry and ({was}) in the mirror; only a reload changes it in the mirror",
            at_stake="rows that would stay beside the rows that replace them",
            repair=f"`{reload_command(table)}`",
        )


def refuse_key(table: MirrorTable, other: tuple[str, ...]) -> TableRefused:
    own, others = (", ".join(name for name in key if name != MEMBER) or "none" for key in (table.key, other))
    return TableRefused(
        f"the key of the sharded table {table} is ({own}) in one place and ({others}) in another",
        at_stake="rows that would stay beside the rows that replace them",
        repair="give the table one key in all shards, drop the mirror's table, start the mirror again, "
        f"and in each shard `{reload_command(table)}`",
    )


def find_floats(rows: StructType) -> Floats:
    kinds = {field.name: field.dataType for field in rows}
    arrays = {name: kind.elementType for name, kind in kinds.items() if isinstance(kind, ArrayType)}
    return {name: name in arrays for name, kind in {**kinds, **arrays}.items() if is_float(kind)}


def is_float(kind: DataType) -> bool:
    """Whether 0 and -0 are two values of this type, and equal."""
    return isinstance(kind, FloatType | DoubleType)


def _same_row(columns: Collection[str], present: Collection[str], floats: Floats, dialect: Dialect) -> str:
    """Build the condition of identical rows; a column that the table lacks is null in all its rows.

    0 and -0 are equal floats. As rows of a table without a key they are two, as in PostgreSQL's
    replication.
    """

    def value(alias: str, column: str) -> str:
        name = f"{alias}.{dialect.quote(column)}"
        return dialect.float_text(name, floats[column]) if column in floats else name

    return " AND ".join(
        f"{value('t', c)} IS NOT DISTINCT FROM {value('s', c)}" if c in present else f"s.{dialect.quote(c)} IS NULL"
        for c in columns
        if c != COPIES
    )
