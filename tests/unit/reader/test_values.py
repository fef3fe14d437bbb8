"""A reader's values are those that psycopg gives, for each type that is text in Avro."""

from __future__ import annotations

import io
import json
from datetime import time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import fastavro
import pytest

from twofold_avro.connect import with_names, with_names_in_key
from twofold_avro.schemas import envelope_schema
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape
from twofold_avro.types import encoding_of, key_encoding_of
from twofold_reader.changes import ChangeDecoder
from twofold_reader.values import find_conversions


def base(name: str) -> TypeShape:
    return TypeShape(0, "pg_catalog", name, "base")


def convert(shape: TypeShape, value: Any) -> Any:
    """As a reader does with a column of this type."""
    column = {"name": "c", "type": ["null", with_names(shape, encoding_of(shape).schema)]}
    for _, value_of in find_conversions([column]):
        return value_of(value)
    return value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("numeric", "12345678901234567890.10", Decimal("12345678901234567890.10")),
        ("numeric", "-Infinity", Decimal("-Infinity")),
        ("interval", "1 year 2 mons -3 days +04:05:06.789", timedelta(days=422, seconds=14706, microseconds=789000)),
        ("interval", "-00:00:01.5", timedelta(seconds=-1.5)),
        ("interval", "-1 mons +2 days", timedelta(days=-28)),
        ("interval", "00:00:00", timedelta()),
        ("interval", "3 days", timedelta(days=3)),
        ("interval", "infinity", "infinity"),
        ("interval", "178000000 years", "178000000 years"),
        ("timetz", "12:34:56.5+02", time(12, 34, 56, 500000, timezone(timedelta(hours=2)))),
        ("timetz", "12:34:56-03:30", time(12, 34, 56, 0, timezone(-timedelta(hours=3, minutes=30)))),
        ("timetz", "24:00:00+00", "24:00:00+00"),
        ("json", '{"a": [1.5, null]}', {"a": [1.5, None]}),
        ("jsonb", '"x"', "x"),
        ("inet", "10.1.2.3/8", ip_interface("10.1.2.3/8")),
        ("inet", "::1", ip_address("::1")),
        ("cidr", "10.0.0.0/8", ip_network("10.0.0.0/8")),
        ("text", "1.5", "1.5"),
        ("money", "$1.50", "$1.50"),
    ],
)
def test_a_text_becomes_python_s_type(name: str, text: str, value: object) -> None:
    found = convert(base(name), text)
    assert found == value
    assert type(found) is type(value)


def test_elements_of_arrays_and_domains_do_too() -> None:
    array = TypeShape(0, "pg_catalog", "_numeric", "array", element=base("numeric"))
    assert convert(array, ["1.5", None]) == [Decimal("1.5"), None]
    domain = TypeShape(0, "public", "price", "domain", element=base("numeric"))
    assert convert(domain, "1.5") == Decimal("1.5")


def test_a_bounded_numeric_and_a_key_have_the_schemas_that_they_had() -> None:
    """A key's schema with another attribute would give the same key other bytes."""
    bounded = TypeShape(0, "pg_catalog", "numeric", "base", typmod=(12 << 16 | 2) + 4)
    assert "postgres.type" not in with_names(bounded, encoding_of(bounded).schema)
    for name in ("numeric", "interval", "timetz"):
        assert with_names_in_key(base(name), key_encoding_of(base(name)).schema) == "string"


class Record:
    """A record of a topic: the table's one insert."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def topic(self) -> str:
        return "bank.public.t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value


@pytest.mark.parametrize(("as_avro", "value"), [(True, "1.50"), (False, Decimal("1.50"))])
def test_a_change_has_either_kind_of_values(as_avro: bool, value: object) -> None:
    shape = TableShape(1, "public", "t", (ColumnShape("a b", base("numeric")),))
    schema = envelope_schema(shape, "bank")
    source = {"version": "", "connector": "", "name": "", "ts_ms": 0, "snapshot": "false", "db": "", "sequence": None}
    source |= {"schema": "public", "table": "t", "txId": 1, "lsn": 1, "xmin": None, "commit_lsn": 1, "ts_us": 0}
    envelope = {"before": None, "after": {"a_x20_b": "1.50"}, "source": source, "op": "c", "ts_ms": None}
    out = io.BytesIO(b"\0\0\0\0\7")
    out.seek(5)
    fastavro.schemaless_writer(out, schema, {**envelope, "transaction": None, "unchanged": [], "special": []})
    decoder = ChangeDecoder(lambda _: json.dumps(schema))
    ((*_, change, _),) = decoder.read_rows([[Record(out.getvalue())]], 0, {}, with_truncates=True, as_avro=as_avro)
    assert change.after == {"a b": value}
