"""PostgreSQL's types in Avro: each column's Avro type, and how the transcoder makes it from
PostgreSQL's bytes. The `TypeShape` of a column comes from `twofold.source.catalog`.

Pure; standard library only. docs/reference/types.md has this table for readers. Three properties
matter to others:

- `total`: the Avro type can hold every value of the PostgreSQL type. If it cannot, such a value is
  null in its column and stands as PostgreSQL's text in the envelope's `special`. In the message key
  the column is then text.
- `reads_binary`: the transcoder reads the type's binary form. Types without a natural Avro type are
  carried as PostgreSQL's text, which their binary form does not give. A binary COPY casts them
  (`copy_item`); a stream is read as text unless all its columns are `reads_binary`.
- The text depends on settings of the reading session: DateStyle ISO, TimeZone UTC, IntervalStyle
  postgres, bytea_output hex, extra_float_digits 1 or more, client_encoding UTF8. The transcoder
  refuses text that it can see to be otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from twofold_avro.shapes import ColumnShape, TypeShape

Avro = Any
"""A schema as JSON: a name, an object or a list."""


class How(IntEnum):
    """How the transcoder makes a value."""

    TEXT = 0  # a string: PostgreSQL's text; the binary form is the same bytes
    TEXT_ONLY = 1  # a string: PostgreSQL's text; the binary form is something else
    INT = 2  # int2, int4, int8
    UNSIGNED = 3  # oid, xid, cid: 32 bits
    BOOL = 4
    FLOAT4 = 5
    FLOAT8 = 6
    BYTES = 7
    NUMERIC = 8  # a string: numeric without bounds
    DECIMAL = 9
    DATE = 10
    TIME = 11
    TIMESTAMP = 12
    TIMESTAMPTZ = 13
    UUID = 14
    JSONB = 15
    CHAR = 16  # "char": one byte
    ARRAY = 17


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of one column."""

    how: How
    schema: Avro
    total: bool = True
    reads_binary: bool = True
    as_text: bool = False
    """In a key: PostgreSQL's text in place of the natural type, which cannot hold every value."""
    scale: int = 0
    width: int = 0
    """An integer's bytes in binary form."""
    element: Encoding | None = None
    delimiter: str = ","


DECIMAL_PRECISION_MAX = 38
"""The limit of Spark, Iceberg and Arrow. Wider numerics are text."""

_VARHDRSZ = 4
_CATALOG = "pg_catalog"

_TEXT = Encoding(How.TEXT, "string")
_TEXT_ONLY = Encoding(How.TEXT_ONLY, "string", reads_binary=False)
_BUILT_IN = {
    "bool": Encoding(How.BOOL, "boolean"),
    "int2": Encoding(How.INT, "int", width=2),
    "int4": Encoding(How.INT, "int", width=4),
    "int8": Encoding(How.INT, "long", width=8),
    "oid": Encoding(How.UNSIGNED, "long"),
    "xid": Encoding(How.UNSIGNED, "long"),
    "cid": Encoding(How.UNSIGNED, "long"),
    "float4": Encoding(How.FLOAT4, "float"),
    "float8": Encoding(How.FLOAT8, "double"),
    "bytea": Encoding(How.BYTES, "bytes"),
    "numeric": Encoding(How.NUMERIC, "string"),
    "date": Encoding(How.DATE, {"type": "int", "logicalType": "date"}, total=False),
    "time": Encoding(How.TIME, {"type": "long", "logicalType": "time-micros"}, total=False),
    "timestamp": Encoding(How.TIMESTAMP, {"type": "long", "logicalType": "local-timestamp-micros"}, total=False),
    "timestamptz": Encoding(How.TIMESTAMPTZ, {"type": "long", "logicalType": "timestamp-micros"}, total=False),
    "uuid": Encoding(How.UUID, {"type": "string", "logicalType": "uuid"}),
    "json": _TEXT,
    "jsonb": Encoding(How.JSONB, "string"),
    "char": Encoding(How.CHAR, "string"),
    "text": _TEXT,
    "varchar": _TEXT,
    "bpchar": _TEXT,
    "name": _TEXT,
}


def encoding_of(shape: TypeShape) -> Encoding:
    """Return the encoding of a value of this type in a row."""
    match shape.kind:
        case "domain" if shape.element is not None:
            return encoding_of(_with_modifier(shape.element, shape.typmod))
        case "array" if shape.element is not None:
            return _array_of(_with_modifier(shape.element, shape.typmod))
        case "base" if shape.namespace == _CATALOG:
            return _numeric(shape.typmod) if shape.name == "numeric" else _BUILT_IN.get(shape.name, _TEXT_ONLY)
        case _:
            return _TEXT if shape.kind == "enum" or (shape.kind, shape.name) == ("base", "citext") else _TEXT_ONLY


def key_encoding_of(shape: TypeShape) -> Encoding:
    """Return the encoding of this type in a message key, where all values must differ."""
    encoding = encoding_of(shape)
    return encoding if encoding.total else replace(encoding, schema="string", total=True, as_text=True)


def copy_item(column: ColumnShape) -> str:
    """Return the column as a binary COPY must select it for the transcoder.

    Text comes from the type's output function, as in the stream, and not from a cast: a cast of
    inet, for example, writes something else. A value that a data policy hides is not read at all.
    """
    quoted = '"' + column.name.replace('"', '""') + '"'
    match column.policy:
        case "drop" | "null":
            return "NULL"
        case "redact":
            return f"CASE WHEN {quoted} IS DISTINCT FROM NULL THEN '' END"
        case "hash":
            return _text_item(quoted)
    if encoding_of(column.type).reads_binary:
        return quoted
    return _text_item(quoted)


def _text_item(quoted: str) -> str:
    return f"CASE WHEN {quoted} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {quoted}) END"


def _with_modifier(shape: TypeShape, typmod: int) -> TypeShape:
    """Give a domain's or an array's modifier to its element, if that has none of its own."""
    return replace(shape, typmod=typmod) if shape.typmod < 0 <= typmod else shape


def _numeric(typmod: int) -> Encoding:
    modifier = typmod - _VARHDRSZ
    precision = modifier >> 16 & 0xFFFF
    scale = ((modifier & 0x7FF) ^ 0x400) - 0x400  # eleven bits, signed, since PostgreSQL 15
    if modifier < 0 or precision > DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
        return _BUILT_IN["numeric"]
    schema = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return Encoding(How.DECIMAL, schema, total=False, scale=scale)


def _array_of(element: TypeShape) -> Encoding:
    base = element  # a domain has the delimiter of the type below it
    while base.kind == "domain" and base.element is not None:
        base = base.element
    if base.kind == "base" and base.namespace != _CATALOG and base.name != "citext":
        return _TEXT_ONLY  # an extension's type may delimit its arrays with any character
    inner = encoding_of(element)
    if inner.how is How.ARRAY:
        return _TEXT_ONLY  # an array of a domain over an array
    schema = {"type": "array", "items": ["null", inner.schema]}
    delimiter = ";" if base.name == "box" and base.namespace == _CATALOG else ","
    return Encoding(How.ARRAY, schema, total=False, reads_binary=False, element=inner, delimiter=delimiter)
