"""JSON becomes the Avro that its schema says, as fastavro reads it, or is refused by its place."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from twofold_avro.errors import Misfit, UnfitSchema
from twofold_avro.json_values import JsonEncoder
from twofold_avro.wire import unframe

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
AT = {"type": "long", "logicalType": "timestamp-millis"}
UUID, ID = {"type": "string", "logicalType": "uuid"}, uuid.UUID(int=17)
STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}
ORDER = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": MONEY},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "double"}, "default": {}},
        {"name": "state", "type": STATE, "default": "NEW"},
        {"name": "before", "type": ["null", "Order"], "default": None},
    ],
}  # fmt: skip
WHOLE = {"id": 17, "total": 1.5, "items": [{"sku": "A"}], "note": "x", "tags": {"a": 1}, "state": "PAID"}


def encoded(schema: Any, payload: str) -> Any:
    """What fastavro reads of it."""
    number, body = unframe(JsonEncoder(7, json.dumps(schema)).encode(payload.encode()))
    assert number == 7
    return fastavro.schemaless_reader(io.BytesIO(body), schema, None)


def test_json_becomes_the_record_that_its_schema_says() -> None:
    inner = {**WHOLE, "total": Decimal("1.50"), "before": None}
    assert encoded(ORDER, json.dumps(WHOLE)) == inner
    assert encoded(ORDER, json.dumps({**WHOLE, "before": WHOLE}))["before"] == inner
    short = encoded(ORDER, '{"id": 1, "total": "0.05", "items": []}')
    assert short == {"id": 1, "total": Decimal("0.05"), "items": [], "note": None, "tags": {}, "state": "NEW", "before": None}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "payload", "value"),
    [
        ("long", "9223372036854775807", (1 << 63) - 1),
        ("int", "-2147483648", -(1 << 31)),
        ("double", "1", 1.0),
        ("float", "0.5", 0.5),
        ("boolean", "false", False),
        ("string", '"\\u00e9"', "é"),
        (MONEY, "1200", Decimal(1200)),
        (MONEY, "0.000", Decimal(0)),
        (MONEY, "0e-999999999", Decimal(0)),
        (MONEY, '"1.500"', Decimal("1.5")),
        (AT, "1", datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        (AT, '"2026-11-26T01:00:00.250+01:00"', datetime(2026, 11, 26, 0, 0, 0, 250_000, tzinfo=UTC)),
        ({"type": "int", "logicalType": "date"}, '"2026-11-26"', date(2026, 11, 26)),
        (UUID, f'"{ID.hex}"', ID),
        (["null", "string"], "null", None),
        (["int", "long", "double", "string"], "3000000000", 3_000_000_000),
        (["int", "long", "double", "string"], "0.5", 0.5),
        (["null", {"type": "array", "items": "int"}, ITEM], '{"sku": "A"}', {"sku": "A"}),
        (["null", {"type": "array", "items": "int"}, ITEM], "[1]", [1]),
    ],
)
def test_json_becomes_the_value_that_its_schema_says(schema: Any, payload: str, value: object) -> None:
    assert encoded(schema, payload) == value


@pytest.mark.parametrize(
    ("schema", "payload", "words"),
    [
        (ORDER, json.dumps({**WHOLE, "colour": 1}), ".colour is no field of shop.Order"),
        (ORDER, json.dumps({"id": 1}), ".total is missing, and the schema has no default"),
        (ORDER, json.dumps({**WHOLE, "items": [{"sku": "A"}, {"sku": 2}]}), ".items[1].sku is no string, but a number"),
        (ORDER, json.dumps({**WHOLE, "note": 2}), ".note is no string, but a number"),
        (ORDER, json.dumps({**WHOLE, "tags": {"a": True}}), ".tags{} is no number, but a boolean"),
        (ORDER, json.dumps({**WHOLE, "state": "LOST"}), ".state is none of NEW, PAID, but a string"),
        (ORDER, json.dumps({**WHOLE, "total": 1.505}), ".total does not fit a decimal of precision 6 and scale 2"),
        (ORDER, json.dumps({**WHOLE, "total": 12345}), ".total does not fit a decimal of precision 6 and scale 2"),
        (ORDER, json.dumps({**WHOLE, "total": "NaN"}), ".total is no decimal"),
        (ORDER, "[]", "the payload is no record shop.Order, but an array"),
        (ORDER, "{", "the payload is no JSON"),
        ("int", "2147483648", "is no int"),
        ("long", "1.0", "is no long"),
        ("long", "true", "is no long"),
        ("double", "1e400", "is too large for a double"),
        ("double", "1" + 400 * "0", "is too large for a double"),
        ("float", "1e39", "is too large for a float"),
        ("string", '"\\ud800"', "has half of a surrogate pair"),
        (UUID, '"17"', "is no uuid, but a string"),
        (AT, '"2026-11-26T01:00:00"', "is no time with an offset"),
        (AT, '"2026-11-26T01:00:00.0001Z"', "finer"),
        (AT, '"2026-11-26T01:00:00.123000000001Z"', "finer"),
        (["null", "int", "string"], "0.5", "is none of null, int, string"),
    ],
)
def test_json_that_is_no_value_of_its_schema_is_refused_by_its_place(schema: Any, payload: str, words: str) -> None:
    with pytest.raises(Misfit) as raised:
        encoded(schema, payload)
    assert words in str(raised.value)


@pytest.mark.parametrize("schema", ["bytes", "nonsense", {"type": "fixed", "name": "F", "size": 2}, {"type": "record"}])
def test_a_schema_that_json_has_no_values_for_is_refused(schema: Any) -> None:
    with pytest.raises(UnfitSchema):
        JsonEncoder(1, json.dumps(schema))
