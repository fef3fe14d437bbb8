"""The ALTERs that bring a table to the columns that a batch needs. Pure.

Columns are added and types widened. A column that the source dropped stays, and is null in new
rows. Any other change is refused with its repair: the mirror never rewrites the values that it has.
A column's comment follows the source's, and stays where the source has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from twofold_spark.errors import TableRefused
from twofold_spark.sinks.merge_sql import SPARK, escape_literal
from twofold_spark.sources.topic_names import reload_command


def format_columns(columns: StructType, *, required: Collection[str] = ()) -> str:
    return ", ".join(
        f"{SPARK.quote(field.name)} {field.dataType.simpleString()}{' NOT NULL' if field.name in required else ''}"
        f"{_comment_clause(field)}"
        for field in columns
    )


def _comment_clause(field: StructField) -> str:
    comment = field.metadata.get("comment")
    return f" COMMENT '{escape_literal(comment)}'" if comment else ""


def list_alterations(present: StructType, wanted: StructType, *, table: str, inside: str = "") -> list[str]:
    """List what follows ALTER TABLE, in order; columns within a struct are included."""
    known = {field.name: field for field in present}
    out = []
    for field in wanted:
        name, comment = inside + SPARK.quote(field.name), _comment_clause(field)
        if field.name not in known:
            out.append(f"ADD COLUMN {name} {field.dataType.simpleString()}{comment}")
            continue
        kind = known[field.name].dataType
        if comment not in ("", _comment_clause(known[field.name])):
            out.append(f"ALTER COLUMN {name}{comment}")
        if isinstance(kind, StructType) and isinstance(field.dataType, StructType):
            out += list_alterations(kind, field.dataType, table=table, inside=f"{name}.")
        elif _widens_to(kind, field.dataType):
            out.append(f"ALTER COLUMN {name} TYPE {field.dataType.simpleString()}")
        elif not _can_hold(kind, field.dataType):
            raise refuse_type(f"{table}.{field.name}", kind.simpleString(), field.dataType.simpleString(), table)
    return out


def refuse_type(column: str, present: str, wanted: str, table: str) -> TableRefused:
    return TableRefused(
        f"{column} has the type {present} in the table and {wanted} in the topic, which is not a wider type",
        at_stake="the column's values",
        repair=f"drop the mirror's table, then `{reload_command(table)}`",
    )


def unite_columns(table: object, shards: Iterable[StructType], *, refuse: Callable[[str], TableRefused]) -> StructType:
    """Return the columns of all shards of a table; refuse types that do not unite."""
    fields: dict[str, StructField] = {}
    for field in (field for columns in shards for field in columns):
        known = fields.setdefault(field.name, field)
        held = _can_hold(known.dataType, field.dataType)
        if not held and not _can_hold(field.dataType, known.dataType):
            raise refuse(
                f"{table}.{field.name} has the type {known.dataType.simpleString()} in one shard and "
                f"{field.dataType.simpleString()} in another, and neither can hold the other"
            )
        kind = known.dataType if held else field.dataType
        fields[field.name] = StructField(field.name, kind, metadata=known.metadata or field.metadata)
    return StructType(list(fields.values()))


def _widens_to(old: DataType, new: DataType) -> bool:
    match old, new:
        case IntegerType(), LongType():
            return True
        case FloatType(), DoubleType():
            return True
        case DecimalType(), DecimalType():
            return old.scale == new.scale and old.precision < new.precision
    return False


def _can_hold(table: DataType, rows: DataType) -> bool:
    """Whether the table's type can hold the rows' type.

    It may be wider, if rows of an older version come late.
    """
    return table.simpleString() == rows.simpleString() or _widens_to(rows, table)
