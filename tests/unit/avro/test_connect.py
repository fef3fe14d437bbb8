"""Connect's names in the schemas: which type gets which, and that nothing but names is added."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from twofold_avro.schemas import canonical, envelope_schema, key_schema, misread
from twofold_avro.shapes import ColumnShape, TableShape, TypeKind, TypeShape


def type_(name: str, kind: TypeKind = "base", namespace: str = "pg_catalog", **more: Any) -> TypeShape:
    return TypeShape(0, namespace, name, kind, **more)


MOOD = type_("mood", "enum", "public", labels=("sad", "ok"))
UUID = type_("uuid")
ENUM_NAME = {"connect.name": "io.debezium.data.Enum", "connect.version": 1}


def table(*columns: ColumnShape) -> TableShape:
    return TableShape(1, "public", "t", columns)


def of_row(shape: TypeShape) -> Any:
    """The type of a nullable column."""
    row = envelope_schema(table(ColumnShape("v", shape)), "shop")["fields"][0]["type"][1]
    return row["fields"][0]["type"][1]


def of_key(shape: TypeShape) -> Any:
    key = key_schema(table(ColumnShape("v", shape, in_key=True)), "shop")
    assert key is not None
    return key["fields"][0]["type"]


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (type_("time"), "io.debezium.time.MicroTime"),
        (type_("timestamp"), "io.debezium.time.MicroTimestamp"),
        (type_("timestamptz"), "io.debezium.time.MicroTimestamp"),
        (UUID, "io.debezium.data.Uuid"),
        (type_("json"), "io.debezium.data.Json"),
        (type_("jsonb"), "io.debezium.data.Json"),
        (type_("xml"), "io.debezium.data.Xml"),
        (type_("tsvector"), "io.debezium.data.Tsvector"),
        (type_("ltree", namespace="public"), "io.debezium.data.Ltree"),
        (type_("d", "domain", "public", element=type_("time")), "io.debezium.time.MicroTime"),
    ],
    ids=lambda value: value.name if isinstance(value, TypeShape) else None,
)
def test_a_type_that_debezium_has_a_name_for_has_it(shape: TypeShape, name: str) -> None:
    assert (of_row(shape)["connect.name"], of_row(shape)["connect.version"]) == (name, 1)


@pytest.mark.parametrize(
    "shape",
    [
        *map(
            type_, ("int4", "int8", "text", "bytea", "date", "numeric", "interval", "timetz", "bit", "varbit", "point")
        ),
        type_("hstore", namespace="public"),
        type_("uuid", namespace="mine"),
        type_("pair", "composite", "public"),
    ],
    ids=lambda shape: shape.name,
)
def test_a_type_whose_bytes_are_not_debeziums_has_none(shape: TypeShape) -> None:
    """`date` is named by its logical type; a name beside it is refused by Connect's converters."""
    assert "connect" not in canonical(of_row(shape))


def test_a_small_number_is_one_for_connect() -> None:
    assert of_row(type_("int2")) == {"type": "int", "connect.type": "int16"}
    assert of_key(type_("int2")) == "int", "a key column may become an int4 without a byte that changes"


def test_an_enums_labels_are_in_the_row_and_not_in_the_key() -> None:
    assert of_row(MOOD) == {"type": "string", **ENUM_NAME, "connect.parameters": {"allowed": "sad,ok"}}
    assert of_key(MOOD) == {"type": "string", **ENUM_NAME}


def test_text_that_a_sink_must_cast_names_the_type_of_its_source() -> None:
    inet = {"type": "string", "connect.parameters": {"__debezium.source.column.type": "INET"}}
    assert of_row(type_("inet")) == inet
    assert of_row(type_("int4range", "range"))["connect.parameters"] == {"__debezium.source.column.type": "INT4RANGE"}
    assert of_key(type_("inet")) == "string"


def test_an_arrays_elements_are_named() -> None:
    array = of_row(type_("_uuid", "array", element=UUID))
    assert array["items"][1]["connect.name"] == "io.debezium.data.Uuid"


def test_what_is_text_in_the_key_has_not_the_name_of_a_number() -> None:
    assert of_key(type_("timestamp")) == "string"


def test_names_change_no_byte_and_neither_reader_misreads_the_other() -> None:
    columns = [ColumnShape("id", UUID, in_key=True), ColumnShape("mood", MOOD), ColumnShape("at", type_("timestamp"))]
    named = envelope_schema(table(*columns), "shop")
    plain = _stripped(named)
    assert plain != named
    assert misread(plain, named) == misread(named, plain) == []
    row = {"id": "01234567-89ab-cdef-0123-456789abcdef", "mood": "ok", "at": None}
    place = dict.fromkeys(("version", "connector", "name", "db", "schema", "table"), "")
    record = {"after": row, "source": {**place, "ts_ms": 1, "ts_us": 1, "lsn": 1}, "op": "c"}
    written = []
    for schema in (plain, named):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
        written.append(out.getvalue())
    assert written[0] == written[1]


def _stripped(schema: Any) -> Any:
    """The schema of the version before."""
    match schema:
        case dict():
            bare = {k: _stripped(v) for k, v in schema.items() if not k.startswith("connect.") or "fields" in schema}
            return bare["type"] if bare.keys() == {"type"} else bare
        case list():
            return [_stripped(branch) for branch in schema]
        case _:
            return schema
