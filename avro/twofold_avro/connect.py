"""The type names of Kafka Connect, of Debezium's sinks and of twofold_reader.

They stand in schemas beside Avro's types and change no byte.

A type gets a name if Debezium has a name for the same bytes: PostgreSQL's text of an interval is
not Debezium's `Interval`, so intervals have no name. `date` and `decimal` need none, because
converters know Avro's logical types. Pure; standard library only.
"""

from __future__ import annotations

from typing import Any

from twofold_avro.shapes import TypeShape
from twofold_avro.types import Avro

_SOURCE_TYPE = "__debezium.source.column.type"
"""Debezium's parameter for the type of the source's column."""


_POSTGRES_TYPE = "postgres.type"
"""The attribute for a type that is text in Avro, and that Debezium has no name for."""


def _named(name: str) -> dict[str, Any]:
    return {"connect.name": name, "connect.version": 1}


def _of_source(name: str) -> dict[str, Any]:
    return {"connect.parameters": {_SOURCE_TYPE: name}}


_BUILT_IN = {
    "int2": {"connect.type": "int16"},
    "time": _named("io.debezium.time.MicroTime"),
    "timestamp": _named("io.debezium.time.MicroTimestamp"),
    "timestamptz": _named("io.debezium.time.MicroTimestamp"),
    "uuid": _named("io.debezium.data.Uuid"),
    "json": _named("io.debezium.data.Json"),
    "jsonb": _named("io.debezium.data.Json"),
    "xml": _named("io.debezium.data.Xml"),
    "tsvector": _named("io.debezium.data.Tsvector"),
    **{name: {_POSTGRES_TYPE: name} for name in ("interval", "timetz", "numeric")},
    # Text, which Debezium's JDBC sink casts where it knows the type of the source.
    **{name: _of_source(name.upper()) for name in ("cidr", "inet", "macaddr", "money")},
    **{name: _of_source(name.upper()) for name in ("int4range", "int8range", "numrange", "daterange")},
    **{name: _of_source(name.upper()) for name in ("tsrange", "tstzrange")},
}
_NOT_IN_KEYS = {"connect.type", "connect.parameters", _POSTGRES_TYPE}
_OF_EXTENSIONS = {"ltree": _named("io.debezium.data.Ltree"), "citext": _of_source("CITEXT")}


def with_names(shape: TypeShape, schema: Avro) -> Avro:
    """Return the schema of a row's column, with the names."""
    match shape.kind, schema:
        case ("domain", _) if shape.element is not None:
            return with_names(shape.element, schema)
        case ("array", {"items": ["null", items]}) if shape.element is not None:
            return {**schema, "items": ["null", with_names(shape.element, items)]}
    attributes = _attributes(shape)
    if not attributes or (_POSTGRES_TYPE in attributes and schema != "string"):
        return schema
    return {**(schema if isinstance(schema, dict) else {"type": schema}), **attributes}


def with_names_in_key(shape: TypeShape, schema: Avro) -> Avro:
    """Return the schema of a key's column, with its `connect.name` alone.

    The other names may change while a key's bytes do not.
    """
    named = with_names(shape, schema)
    if not isinstance(named, dict):
        return named
    kept = {name: value for name, value in named.items() if name not in _NOT_IN_KEYS}
    return kept["type"] if kept.keys() == {"type"} else kept


def _attributes(shape: TypeShape) -> dict[str, Any]:
    match shape.kind:
        case "enum":
            return {**_named("io.debezium.data.Enum"), "connect.parameters": {"allowed": ",".join(shape.labels)}}
        case "base" | "range":
            known = _BUILT_IN if shape.namespace == "pg_catalog" else _OF_EXTENSIONS
            return known.get(shape.name, {})
        case _:
            return {}
