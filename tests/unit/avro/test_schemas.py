"""Schemas: complete, deterministic, every field documented where it is ours; adding and dropping
columns stays readable.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any, get_args

import fastavro
import pytest

from twofold_avro.comments import Comments, read_comments
from twofold_avro.schemas import (
    FixedName,
    canonical,
    envelope_schema,
    fixed,
    key_schema,
    misread,
    optional_columns,
)
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape


def type_(name: str, typmod: int = -1, namespace: str = "pg_catalog") -> TypeShape:
    return TypeShape(0, namespace, name, typmod=typmod)


ID = ColumnShape("id", type_("int8"), in_key=True, in_identity=True)
DAY = ColumnShape("day", type_("date"), in_key=True, in_identity=True)
NOTE = ColumnShape("note", type_("text"))
SHAPE = TableShape(1, "public", "orders", (ID, DAY, NOTE))


@pytest.mark.parametrize("name", get_args(FixedName))
def test_a_fixed_schema_is_whole_and_documented(name: FixedName) -> None:
    schema = fixed(name)
    fastavro.parse_schema(schema)
    undocumented = [path for path, node in _fields(schema) if not node.get("doc")]
    assert not undocumented
    assert schema["doc"]
    assert fixed(name) == schema
    assert fixed(name) is not schema


def _fields(schema: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    match schema:
        case {"type": "record", "fields": fields}:
            own = [(f"{path}.{field['name']}", field) for field in fields]
            return own + [found for place, field in own for found in _fields(field["type"], place)]
        case {"type": "array", "items": items}:
            return _fields(items, path)
        case list():
            return [found for branch in schema for found in _fields(branch, path)]
        case _:
            return []


QUOTES = """it's a "note" of ${price}, C:\\temp\n🦀"""


def commented(shape: TableShape, comment: str | None) -> TableShape:
    return replace(shape, comment=comment, columns=tuple(replace(c, comment=comment) for c in shape.columns))


def _row(shape: TableShape) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(canonical(envelope_schema(shape, "shop")))["fields"][0]["type"][1]
    return row


def test_comments_are_the_rows_doc_and_nothing_else() -> None:
    plain, schema = envelope_schema(SHAPE, "shop"), envelope_schema(commented(SHAPE, QUOTES), "shop")
    row = _row(commented(SHAPE, QUOTES))
    assert [row["doc"], *(field["doc"] for field in row["fields"])] == [QUOTES] * 4
    assert row["twofold.comments"] != _row(commented(SHAPE, "other"))["twofold.comments"]
    assert read_comments(schema) == Comments(QUOTES, dict.fromkeys(("id", "day", "note"), QUOTES))
    assert read_comments(plain) == Comments()
    assert not misread(plain, schema)
    assert commented(SHAPE, QUOTES) == SHAPE
    assert key_schema(commented(SHAPE, QUOTES), "shop") == key_schema(SHAPE, "shop"), "its id is pinned"
    assert canonical(envelope_schema(commented(SHAPE, None), "shop")) == canonical(plain)


def test_comment_of_a_column_that_is_left_out_is_left_out() -> None:
    dropped = replace(NOTE, policy="drop", comment="a secret")
    hashed = replace(NOTE, name="hashed", policy="hash", comment="shown")
    text = canonical(envelope_schema(replace(SHAPE, columns=(ID, dropped, hashed)), "shop"))
    assert "a secret" not in text
    assert "shown" in text


def test_the_envelope_is_debeziums() -> None:
    schema = envelope_schema(SHAPE, "shop")
    assert (schema["namespace"], schema["name"]) == ("shop.public.orders", "Envelope")
    assert schema["connect.name"] == "shop.public.orders.Envelope"
    names = [field["name"] for field in schema["fields"]]
    assert names == ["before", "after", "source", "op", "ts_ms", "transaction", "unchanged", "special"]
    before, after = schema["fields"][:2]
    assert before["type"][1]["connect.name"] == "shop.public.orders.Value"
    assert after["type"] == ["null", "shop.public.orders.Value"]
    assert not [path for path, field in _fields(schema) if not field.get("doc") and not path.startswith(".before.")]


def test_key_columns_are_there_and_all_others_may_be_missing() -> None:
    columns = envelope_schema(SHAPE, "shop")["fields"][0]["type"][1]["fields"]
    assert columns == [
        {"name": "id", "type": "long"},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "note", "type": ["null", "string"], "default": None},
    ]
    key = key_schema(SHAPE, "shop")
    assert key is not None
    assert key["fields"] == [{"name": "id", "type": "long"}, {"name": "day", "type": "string"}]


def test_a_keyless_table_has_no_key() -> None:
    shape = TableShape(1, "public", "log", (NOTE,))
    assert shape.keyless
    assert key_schema(shape, "shop") is None


def test_the_same_shape_is_the_same_text() -> None:
    again = TableShape(1, "public", "orders", (replace(ID), replace(DAY), replace(NOTE)))
    assert canonical(envelope_schema(SHAPE, "shop")) == canonical(envelope_schema(again, "shop"))
    assert "\n" not in canonical(fixed("commit"))


def test_an_odd_name_says_what_it_was() -> None:
    shape = replace(SHAPE, columns=(ID, ColumnShape("a b", type_("text")), ColumnShape("a_x20_b", type_("text"))))
    names = [
        f.get("postgres.name", f["name"]) for f in envelope_schema(shape, "shop")["fields"][0]["type"][1]["fields"]
    ]
    assert names == ["id", "a b", "a_x20_b"]
    fastavro.parse_schema(envelope_schema(shape, "shop"))


@pytest.mark.parametrize(("writer", "reader"), [((ID,), (ID, NOTE)), ((ID, NOTE), (ID,))])
def test_old_and_new_readers_read_a_table_that_gained_or_lost_a_column(
    writer: tuple[ColumnShape, ...], reader: tuple[ColumnShape, ...]
) -> None:
    old = fastavro.parse_schema(envelope_schema(replace(SHAPE, columns=writer), "shop"))
    new = fastavro.parse_schema(envelope_schema(replace(SHAPE, columns=reader), "shop"))
    source = {
        "version": "",
        "connector": "",
        "name": "",
        "db": "",
        "schema": "",
        "table": "",
        "ts_ms": 1,
        "ts_us": 1,
        "lsn": 1,
    }
    out = io.BytesIO()
    record = {"after": {"id": 1, **({"note": "x"} if NOTE in writer else {})}, "source": source, "op": "c"}
    fastavro.schemaless_writer(out, old, record)
    out.seek(0)
    read: Any = fastavro.schemaless_reader(out, old, new)
    assert read["after"] == ({"id": 1, "note": None} if NOTE in reader else {"id": 1})


@pytest.mark.parametrize("kept", [12, 14], ids=["before the parsed gid", "before the commit's position"])
def test_rows_from_before_a_fields_time_are_read_and_rows_with_it_by_older_readers(kept: int) -> None:
    new, old = envelope_schema(SHAPE, "shop"), envelope_schema(SHAPE, "shop")
    (source,) = (field for field in old["fields"] if field["name"] == "source")
    added = {field["name"]: field["default"] for field in source["type"]["fields"][kept:]}
    source["type"]["fields"] = source["type"]["fields"][:kept]
    values = {"global_id": "global", "branch": "b", "commit_lsn": 2**62}
    assert added == dict.fromkeys(list(values)[-len(added) :])
    place = dict.fromkeys(("version", "connector", "name", "db", "schema", "table"), "")
    numbers = {"ts_ms": 1, "ts_us": 1, "lsn": 1}
    written = {"source": {**place, **numbers, "gid": "g", **values}, "op": "c"}
    found = [_carried(written, writer, reader)["source"] for writer, reader in ((old, new), (new, old), (new, new))]
    assert [{name: source.get(name) for name in values} for source in found] == [
        {**values, **added},
        {**values, **added},
        values,
    ]


def _carried(record: dict[str, Any], writer: Any, reader: Any) -> Any:
    """Written with one schema, read with another."""
    out = io.BytesIO()
    parsed = fastavro.parse_schema(writer)
    fastavro.schemaless_writer(out, parsed, record)
    out.seek(0)
    return fastavro.schemaless_reader(out, parsed, fastavro.parse_schema(reader))


NUMERIC_10_2 = type_("numeric", (10 << 16 | 2) + 4)
NUMERIC_12_2 = type_("numeric", (12 << 16 | 2) + 4)
NUMERIC_12_4 = type_("numeric", (12 << 16 | 4) + 4)


def array_of(element: TypeShape) -> TypeShape:
    return TypeShape(0, "pg_catalog", f"_{element.name}", "array", element=element)


@pytest.mark.parametrize(
    ("old", "new", "is_misread"),
    [
        (NUMERIC_10_2, NUMERIC_12_2, False),
        (NUMERIC_10_2, NUMERIC_12_4, True),
        (array_of(NUMERIC_10_2), array_of(NUMERIC_12_4), True),
        (type_("timestamp"), type_("timestamptz"), True),
        (type_("int4"), type_("date"), True),
        (type_("text"), NUMERIC_10_2, True),
        (NUMERIC_10_2, type_("numeric"), True),
        (type_("bytea"), type_("text"), True),
        (type_("text"), type_("bytea"), True),
        (type_("int4"), type_("int8"), False),
        (type_("uuid"), type_("text"), False),
    ],
    ids=lambda value: value.name if isinstance(value, TypeShape) else str(value),
)
def test_a_change_that_old_rows_would_not_survive_is_told(old: TypeShape, new: TypeShape, is_misread: bool) -> None:
    before, after = (envelope_schema(replace(SHAPE, columns=(ID, ColumnShape("v", t))), "shop") for t in (old, new))
    assert misread(before, after) == (["v"] if is_misread else [])
    assert misread(before, before) == []


def test_a_new_column_is_no_misreading() -> None:
    narrow = envelope_schema(replace(SHAPE, columns=(ID,)), "shop")
    assert misread(narrow, envelope_schema(SHAPE, "shop")) == misread(envelope_schema(SHAPE, "shop"), narrow) == []


def test_a_column_that_was_optional_stays_so_in_the_key() -> None:
    """Readers of a table that had no key can read its rows when it has one."""
    keyless = replace(SHAPE, columns=tuple(replace(c, in_key=False, in_identity=False) for c in SHAPE.columns))
    before, narrower = envelope_schema(keyless, "shop"), envelope_schema(SHAPE, "shop")
    assert optional_columns(before) == {"id", "day", "note"}
    assert optional_columns(narrower) == {"day", "note"}, "a date may be infinity, which is null in the row"
    kept = replace(SHAPE, columns=(replace(ID, optional=True), replace(DAY, optional=True), NOTE))
    assert canonical(envelope_schema(kept, "shop")) == canonical(before)
    assert canonical(key_schema(kept, "shop")) == canonical(key_schema(SHAPE, "shop"))
