"""A row as one text that PostgreSQL and Spark make alike, for every type. Pure.

Each value becomes a text that both sides make exactly. Times become microseconds, floats their
bits, bytes hex, and all other values have PostgreSQL's own form. Its length stands before it, and
`N` stands for null.

A value that the contract's type cannot express is null in the mirror, so it is null here. Such
values are infinity, a year beyond 9999, NaN in a decimal, 24:00:00, and nested arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from twofold_common.table_names import quote_identifier
from twofold_spark.sources.source_database import SourceColumn

_ROW_DIGITS, _BUCKET_DIGITS = 15, 7
"""Hex digits of an md5: 60 bits go into a bucket's sum, 28 bits choose the bucket."""


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """A column on both sides; a column without a type is missing from the mirror."""

    source: SourceColumn
    mirror: str
    type: DataType | None


def source_text(pairs: Sequence[ColumnPair]) -> str:
    """Build a row's text as an SQL expression for PostgreSQL."""
    return " || ',' || ".join(_with_length(_source_value(p)) for p in pairs)


def source_md5(pairs: Sequence[ColumnPair]) -> str:
    return f"md5(convert_to({source_text(pairs)}, 'UTF8'))"


def source_bucket(key_md5: str, buckets: int) -> str:
    return f"(('x' || substr({key_md5}, 1, {_BUCKET_DIGITS}))::bit(28)::int % {buckets})"


def source_number(row_md5: str) -> str:
    return f"('x' || substr({row_md5}, 1, {_ROW_DIGITS}))::bit(60)::bigint::numeric"


def has_inexpressible_values(pair: ColumnPair) -> bool:
    """Whether the column's type cannot express some values that PostgreSQL has."""
    return isinstance(pair.type, ArrayType | DateType | TimestampType | TimestampNTZType | DecimalType) or (
        pair.type is not None and pair.source.type == "time"
    )


def count_inexpressible(pair: ColumnPair) -> str:
    """Build the SQL aggregate that counts such values in the source."""
    name = quote_identifier(pair.source.name)
    return f"count(*) FILTER (WHERE {name} IS DISTINCT FROM NULL AND ({_source_value(pair)}) IS NULL) AS {name}"


def mirror_text(pairs: Sequence[ColumnPair]) -> Column:
    """Build a row's text as a column of Spark."""
    return f.concat_ws(",", *(_mirror_with_length(_mirror_value(p)) for p in pairs))


def split_row_text(text: str) -> list[str | None]:
    found: list[str | None] = []
    at = 0
    while at < len(text):
        if text[at] == "N":
            found.append(None)
            at += 2
            continue
        begin = text.index(":", at) + 1
        end = begin + int(text[at : begin - 1])
        found.append(text[begin:end])
        at = end + 1
    return found


def mirror_md5(pairs: Sequence[ColumnPair]) -> Column:
    return f.md5(f.encode(mirror_text(pairs), "UTF-8"))


def mirror_bucket(key_md5: Column, buckets: int) -> Column:
    return f.conv(f.substring(key_md5, 1, _BUCKET_DIGITS), 16, 10).cast("long") % buckets


def mirror_number(row_md5: Column) -> Column:
    return f.conv(f.substring(row_md5, 1, _ROW_DIGITS), 16, 10).cast("decimal(38,0)")


def _with_length(text: str) -> str:
    return f"coalesce(length({text})::text || ':' || {text}, 'N')"


def _mirror_with_length(text: Column) -> Column:
    return f.coalesce(f.concat(f.length(text).cast("string"), f.lit(":"), text), f.lit("N"))


def _source_value(pair: ColumnPair) -> str:
    if pair.type is None:
        # The mirror has no such column. That is right only while the source has no value in it.
        return _plain(quote_identifier(pair.source.name))
    return _source_typed(quote_identifier(pair.source.name), pair.source.type, pair.type)


def _plain(value: str) -> str:
    # format() uses the type's own output; a cast of char(n) to text would drop trailing blanks.
    # And a composite value with a null in it is not NOT NULL.
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN format('%s', {value}) END"


def _source_typed(value: str, name: str, mirrored: DataType) -> str:  # noqa: PLR0911  (one return a type)
    days = "date '0001-01-01' AND date '9999-12-31'"
    match mirrored:
        case ArrayType():
            # Not FROM unnest(): that makes columns of a composite element's fields.
            items = f"(SELECT unnest({value}) AS x, generate_subscripts({value}, 1) AS o) u"
            item = _source_typed("x", name.removeprefix("_"), mirrored.elementType)
            is_whole = f"coalesce(bool_and(x IS NOT DISTINCT FROM NULL OR ({item}) IS NOT NULL), true)"
            texts = f"coalesce(string_agg({_with_length(item)}, ',' ORDER BY o), '')"
            is_plain = f"coalesce(array_ndims({value}), 1) = 1 AND coalesce(array_lower({value}, 1), 1) = 1"
            return f"CASE WHEN {value} IS NOT NULL AND {is_plain} THEN (SELECT CASE WHEN {is_whole} THEN {texts} END FROM {items}) END"
        case DateType():
            return f"CASE WHEN {value} BETWEEN {days} THEN ({value} - date '1970-01-01')::text END"
        case TimestampType() | TimestampNTZType():
            return (
                f"CASE WHEN {value}::date BETWEEN {days} THEN (extract(epoch FROM {value}) * 1000000)::bigint::text END"
            )
        case DoubleType():
            return f"('x' || encode(float8send({_one_nan(value)}), 'hex'))::bit(64)::bigint::text"
        case FloatType():
            return f"('x' || encode(float4send({_one_nan(value)}), 'hex'))::bit(32)::int::text"
        case DecimalType():
            return f"nullif({value}::text, 'NaN')"
        case BinaryType():
            return f"encode({value}, 'hex')"
        case StringType():
            return _plain(value)
        case _ if name == "time":
            return f"CASE WHEN {value} <> '24:00' THEN (extract(epoch FROM {value}) * 1000000)::bigint::text END"
    return f"{value}::text"


def _one_nan(value: str) -> str:
    """All NaNs are one value, whose bits differ where it was computed, as infinity less itself."""
    return f"CASE WHEN {value} = 'NaN' THEN 'NaN' ELSE {value} END"


def _mirror_value(pair: ColumnPair) -> Column:
    return f.lit(None).cast("string") if pair.type is None else _mirror_typed(f.col(f"`{pair.mirror}`"), pair.type)


def _mirror_typed(value: Column, mirrored: DataType) -> Column:  # noqa: PLR0911  (one return a type)
    match mirrored:
        case ArrayType():
            return f.array_join(
                f.transform(value, lambda x: _mirror_with_length(_mirror_typed(x, mirrored.elementType))), ","
            )
        case DateType():
            return f.unix_date(value).cast("string")
        case TimestampType() | TimestampNTZType():
            return f.unix_micros(value.cast("timestamp")).cast("string")
        case DoubleType():
            return _bits("Double", "doubleToLongBits", value)
        case FloatType():
            return _bits("Float", "floatToIntBits", value)
        case BinaryType():
            return f.lower(f.hex(value))
    return value.cast("string")


def _bits(kind: str, method: str, value: Column) -> Column:
    zero = f.lit(0).cast(kind.lower())
    return f.when(value.isNotNull(), f.java_method(f.lit(f"java.lang.{kind}"), f.lit(method), f.coalesce(value, zero)))
