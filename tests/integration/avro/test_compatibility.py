"""What the registry lets pass of a table's changes, in each of its compatibility modes: the table
of docs/use/evolution.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helpers.avro.schema_readers import Subject
from twofold.kafka.schema_registry import Registry
from twofold_avro.schemas import canonical, envelope_schema
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape

pytestmark = pytest.mark.core

MODES = ("BACKWARD", "FORWARD", "FULL", "NONE")


def column(name: str, kind: str, typmod: int = -1) -> ColumnShape:
    return ColumnShape(name, TypeShape(0, "pg_catalog", kind, typmod=typmod))


def numeric(precision: int, scale: int) -> ColumnShape:
    return column("c", "numeric", (precision << 16 | scale) + 4)


ID = replace(column("id", "int8"), in_key=True, in_identity=True)


@pytest.fixture
def client(registry: Any) -> Registry:
    return Registry(registry.url)


@pytest.mark.parametrize(
    ("old", "new", "passes"),
    [
        ([], [column("c", "int4")], MODES),
        ([column("c", "int4")], [], MODES),
        ([column("c", "int4")], [column("d", "int4")], MODES),
        ([column("c", "int4")], [column("c", "int8")], ("BACKWARD", "NONE")),
        ([column("c", "float4")], [column("c", "float8")], ("BACKWARD", "NONE")),
        ([column("c", "int8")], [column("c", "int4")], ("FORWARD", "NONE")),
        ([column("c", "int4")], [column("c", "text")], ("NONE",)),
        ([numeric(10, 2)], [numeric(12, 2)], MODES),
        ([numeric(10, 2)], [numeric(12, 4)], MODES),
        ([column("c", "timestamp")], [column("c", "timestamptz")], MODES),
    ],
)
def test_what_a_mode_lets_pass(
    client: Registry,
    registry: Any,
    prefix: str,
    old: list[ColumnShape],
    new: list[ColumnShape],
    passes: tuple[str, ...],
) -> None:
    before, after = (
        canonical(envelope_schema(TableShape(1, "public", "t", (ID, *columns)), prefix)) for columns in (old, new)
    )
    subject = f"{prefix}.public.t-value"
    client.register(subject, before)
    found = []
    for mode in MODES:
        values = Subject(registry.url, f"{prefix}.public.t")
        values.allow(mode)
        if values.accepts(after):
            found.append(mode)
    assert tuple(found) == passes
