"""Records as JSON values: every type that JSON lacks, and bytes that are no such record."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from twofold.inspect.changes import RowValues
from twofold_avro import wire
from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.names import avro_name

SAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "id": ("long", 2**62, 2**62),
    "yes": ("boolean", True, True),
    "odd name": ("string", "ä\n", "ä\n"),
    "nothing": (["null", "string"], None, None),
    "amount": ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}, Decimal("-12.30"), "-12.30"),
    "raw": ("bytes", b"\x00\xff", "\\x00ff"),
    "float": ("double", 0.1, 0.1),
    "nan": ("double", float("nan"), "nan"),
    "day": ({"type": "int", "logicalType": "date"}, date(1, 1, 1), "0001-01-01"),
    "hour": ({"type": "long", "logicalType": "time-micros"}, time(23, 59, 59, 999999), "23:59:59.999999"),
    "at": (
        {"type": "long", "logicalType": "timestamp-micros"},
        datetime(9999, 12, 31, 23, 59, 59, 1, UTC),
        "9999-12-31T23:59:59.000001+00:00",
    ),
    "wall": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  (a wall clock's)
        "2026-01-02T03:04:05",
    ),
    "list": ({"type": "array", "items": ["null", "bytes"]}, [None, b"a"], [None, "\\x61"]),
}


def framed(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    out.write(wire.header(7))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_a_record_is_json_with_the_columns_of_postgresql() -> None:
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": avro_name(name), "type": kind} for name, (kind, _, _) in SAMPLES.items()],
    }
    message = framed(schema, {avro_name(name): value for name, (_, value, _) in SAMPLES.items()})
    read = RowValues(lambda _: json.dumps(schema)).read(message)
    assert read == {name: expected for name, (_, _, expected) in SAMPLES.items()}
    json.dumps(read, allow_nan=False)


def test_bytes_that_are_no_record() -> None:
    values = RowValues(lambda _: '{"type": "record", "name": "Row", "fields": [{"name": "a", "type": "string"}]}')
    with pytest.raises(MalformedRecord, match="schema 7"):
        values.read(wire.header(7) + b"\x10ab")
    with pytest.raises(NotFramed):
        values.read(b"text")
