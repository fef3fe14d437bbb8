"""Which Avro type a PostgreSQL type gets: the table of docs/reference/types.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from twofold_avro.shapes import ColumnShape, TypeKind, TypeShape
from twofold_avro.types import copy_item, encoding_of, key_encoding_of


def type_(
    name: str, typmod: int = -1, kind: TypeKind = "base", namespace: str = "pg_catalog", **more: Any
) -> TypeShape:
    return TypeShape(0, namespace, name, kind, typmod, **more)


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("shape", "schema"),
    [
        (type_("int2"), "int"),
        (type_("oid"), "long"),
        (type_("numeric"), "string"),
        (type_("numeric", numeric(12, 2)), decimal(12, 2)),
        (type_("numeric", numeric(38, 38)), decimal(38, 38)),
        (type_("numeric", numeric(39, 2)), "string"),
        (type_("numeric", numeric(3, 5)), "string"),
        (type_("numeric", numeric(2, -3)), "string"),
        (type_("timestamp"), {"type": "long", "logicalType": "local-timestamp-micros"}),
        (type_("timestamptz"), {"type": "long", "logicalType": "timestamp-micros"}),
        (type_("interval"), "string"),
        (type_("geometry", namespace="public"), "string"),
        (type_("int4", namespace="mine"), "string"),
        (type_("mood", kind="enum", namespace="public", labels=("a",)), "string"),
        (type_("d", kind="domain", element=type_("numeric", numeric(5, 1))), decimal(5, 1)),
        (type_("dd", kind="domain", element=type_("d", kind="domain", element=type_("int4"))), "int"),
        (type_("_int4", kind="array", element=type_("int4")), {"type": "array", "items": ["null", "int"]}),
        (
            type_("_numeric", numeric(5, 1), kind="array", element=type_("numeric")),
            {"type": "array", "items": ["null", decimal(5, 1)]},
        ),
        (type_("_geometry", kind="array", namespace="public", element=type_("geometry", namespace="public")), "string"),
        (
            type_(
                "_place",
                kind="array",
                element=type_("place", kind="domain", element=type_("geometry", namespace="public")),
            ),
            "string",
        ),
        (type_("int4range", kind="range", element=type_("int4")), "string"),
        (type_("pair", kind="composite", namespace="public"), "string"),
    ],
    ids=lambda value: value.name if isinstance(value, TypeShape) else None,
)
def test_a_types_avro_type(shape: TypeShape, schema: Any) -> None:
    assert encoding_of(shape).schema == schema


@pytest.mark.parametrize("name", ["date", "time", "timestamp", "timestamptz"])
def test_in_a_key_what_cannot_always_be_said_is_text(name: str) -> None:
    assert not encoding_of(type_(name)).total
    assert key_encoding_of(type_(name)).schema == "string"
    assert key_encoding_of(type_(name)).total


def test_copy_selects_text_where_the_binary_form_is_not_read() -> None:
    column = ColumnShape('odd "name"', type_("interval"))
    assert copy_item(replace(column, type=type_("int4"))) == '"odd ""name"""'
    assert copy_item(column) == (
        'CASE WHEN "odd ""name""" IS DISTINCT FROM NULL THEN pg_catalog.format(\'%s\', "odd ""name""") END'
    )


def test_an_array_of_a_domain_is_delimited_as_one_of_the_type_below_it() -> None:
    area = type_("area", kind="domain", namespace="public", element=type_("box"))
    for element in (type_("box"), area, type_("yard", kind="domain", namespace="public", element=area)):
        assert encoding_of(type_("_a", kind="array", element=element)).delimiter == ";"
    for element in (type_("int4"), type_("box", namespace="public", kind="enum")):
        assert encoding_of(type_("_a", kind="array", element=element)).delimiter == ","
