"""Which ALTERs bring a table to the columns that a batch needs. Pure.

Columns are added and types widened; a column that the source dropped stays and is null in new rows. Anything else is
refused with what to do: a mirror never guesses how to rewrite the values that it has.
"""

from __future__ import annotations

from pyspark.sql.types import DataType, DecimalType, DoubleType, FloatType, IntegerType, LongType, StructType

from twofold_spark.errors import TableRefused


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def columns_sql(columns: StructType) -> str:
    return ", ".join(f"{quote(field.name)} {field.dataType.simpleString()}" for field in columns)


def changes(there: StructType, wanted: StructType, *, table: str, inside: str = "") -> list[str]:
    """What follows ALTER TABLE, in order; the columns within a struct as well."""
    have = {field.name: field.dataType for field in there}
    out = []
    for field in wanted:
        present, name = have.get(field.name), inside + quote(field.name)
        if present is None:
            out.append(f"ADD COLUMN {name} {field.dataType.simpleString()}")
        elif isinstance(present, StructType) and isinstance(field.dataType, StructType):
            out += changes(present, field.dataType, table=table, inside=f"{name}.")
        elif _widens(present, field.dataType):
            out.append(f"ALTER COLUMN {name} TYPE {field.dataType.simpleString()}")
        elif not _holds(present, field.dataType):
            raise TableRefused(
                f"{table}.{field.name} is {present.simpleString()} in the table and {field.dataType.simpleString()} "
                "in the topic: no widening leads there",
                at_stake="the column's values",
                repair=f"drop the mirror's table, then `twofold backfill start {table}`",
            )
    return out


def _widens(old: DataType, new: DataType) -> bool:
    match old, new:
        case IntegerType(), LongType():
            return True
        case FloatType(), DoubleType():
            return True
        case DecimalType(), DecimalType():
            return old.scale == new.scale and old.precision < new.precision
    return False


def _holds(table: DataType, rows: DataType) -> bool:
    """Whether the table's type takes the rows' as it is: the same, or wider after an older version came late."""
    return table.simpleString() == rows.simpleString() or _widens(rows, table)
