"""The schemas: of a table's key and envelope, made from its shape, and the fixed ones of the
`.avsc` files beside this module.

All are JSON values (dicts, lists, names), complete and deterministic: the same shape gives the same
schema, so that a second registration finds the first. The envelope is Debezium's
(docs/reference/envelope.md says where it differs). Standard library only; reads its own package
data and touches nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from twofold_avro.comments import envelope_doc, mark_comments, row_doc
from twofold_avro.connect import with_names, with_names_in_key
from twofold_avro.names import avro_name, namespace_of
from twofold_avro.shapes import ColumnShape, TableShape
from twofold_avro.types import Avro, encoding_of, key_encoding_of

FixedName = Literal["commit", "frontier", "message", "pin", "prepared", "progress", "source", "special", "transaction"]

POLICY = "twofold.policy"
"""The property of a key's and a row's record that names the columns under a data policy.

So a change of the policy is a change of the schema."""
HASHED_WITH = "twofold.hashed_with"
"""The property of a key's record that tells the key of its hashes from others: rows of one message
key would have two hashes."""
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def key_schema(shape: TableShape, prefix: str) -> Avro | None:
    """Return the message key's record, columns in the table's order; None without a key."""
    if shape.keyless:
        return None
    fields = [_field(column, _key_type(column)) for column in shape.key]
    key = _record("Key", shape, prefix, f"The message key of {shape.schema}.{shape.table}.", fields)
    hashed_with = next((column.hashed_with for column in shape.key if column.hashed_with), None)
    return {**_with_policy(key, shape.key), **({HASHED_WITH: hashed_with} if hashed_with else {})}


def envelope_schema(shape: TableShape, prefix: str) -> Avro:
    """Return the message value's record: Debezium's envelope around the table's row."""
    table = f"{shape.schema}.{shape.table}"
    row = _record("Value", shape, prefix, shape.comment or row_doc(table), map(_column, shape.written))
    row = mark_comments(_with_policy(row, shape.columns), table)
    names = {"type": "array", "items": "string"}
    return _record(
        "Envelope",
        shape,
        prefix,
        envelope_doc(table),
        [
            _optional(
                "before", row, "The row before the change, as far as PostgreSQL sends it: the key, or all of it."
            ),
            _optional("after", f"{_namespace(shape, prefix)}.Value", "The row after the change; null for d and t."),
            {"name": "source", "type": fixed("source"), "doc": "Where the change comes from."},
            {"name": "op", "type": "string", "doc": "c insert, u update, d delete, r backfilled row, t truncate."},
            _optional("ts_ms", "long", "When the connector handled the change."),
            _optional(
                "transaction", fixed("transaction"), "The change's place in its transaction; null in a backfill."
            ),
            {
                "name": "unchanged",
                "type": names,
                "default": [],
                "doc": "Columns of `after` that the change left alone and whose TOASTed value PostgreSQL did not send: null here.",
            },
            {
                "name": "special",
                "type": {"type": "array", "items": fixed("special")},
                "default": [],
                "doc": "Values that their column's Avro type cannot say: null in the column, PostgreSQL's text here.",
            },
        ],
    )


@cache
def _text(name: str) -> str:
    return files(__name__).joinpath(f"{name}.avsc").read_text(encoding="utf-8")


def fixed(name: FixedName) -> dict[str, Any]:
    """Return a fixed schema; others that it names are written out at their first mention."""
    schema: dict[str, Any] = json.loads(_text(name))
    _resolve(schema, schema["namespace"], set())
    return schema


def canonical(schema: Avro) -> str:
    """Return a schema as the text that is registered; equal schemas have equal texts."""
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def misread(old: Avro, new: Avro) -> list[str]:
    """Return the columns whose old bytes a reader of the new schema misreads unnoticed.

    Avro resolves bytes to bytes, bytes to string and long to long whatever their logical types say,
    and registries ask no more. A decimal's new scale would move the point in every earlier row.
    Such a change needs a reload into a fresh topic.
    """
    before = {field["name"]: _meaning(field["type"]) for field in _columns(old)}
    return [
        field.get("postgres.name", field["name"])
        for field in _columns(new)
        if before.get(field["name"], _meaning(field["type"])) != _meaning(field["type"])
    ]


def optional_columns(envelope: Avro) -> frozenset[str]:
    """Return the columns that may be null in this envelope's rows, by PostgreSQL's names."""
    return frozenset(
        column.get("postgres.name", column["name"]) for column in _columns(envelope) if isinstance(column["type"], list)
    )


def policy_of(envelope: Avro) -> dict[str, str]:
    """Return the columns of an envelope's rows that are under a data policy, with its actions."""
    found: dict[str, str] = envelope["fields"][0]["type"][1].get(POLICY, {})
    return found


def newly_hidden(old: Avro, new: Avro) -> dict[str, str]:
    """Return the columns that rows of the old envelope show and a data policy hides in the new one,
    with its actions.
    """
    before, shown = policy_of(old), column_names(old)
    return {name: action for name, action in policy_of(new).items() if name in shown and name not in before}


def column_names(envelope: Avro) -> frozenset[str]:
    """Return the columns that an envelope's rows have, by their PostgreSQL names."""
    return frozenset(column.get("postgres.name", column["name"]) for column in _columns(envelope))


def _columns(record: Avro) -> list[dict[str, Any]]:
    """Return the row's columns: those of `before` in an envelope; a key is itself the row."""
    fields: list[dict[str, Any]] = record["fields"]
    if record["name"] == "Envelope":
        fields = fields[0]["type"][1]["fields"]
    return fields


def _meaning(schema: Avro) -> Avro:
    """Return what a type's numbers or bytes stand for."""
    match schema:
        case ["null", branch]:
            return _meaning(branch)
        case {"type": "array", "items": items}:
            return _meaning(items)
        case "bytes":
            return "bytes"
        case {"logicalType": "uuid"}:
            return None
        case {"logicalType": str(logical), **rest}:
            return logical, rest.get("scale")
        case _:
            return None


def _resolve(node: Avro, namespace: str, known: set[str]) -> Avro:
    """Put fixed schemas that are mentioned by name (`twofold.Source`) in at their first mention."""
    match node:
        case str() if node in _PRIMITIVES or node in known:
            return node
        case str():
            inner = fixed(node.removeprefix(f"{namespace}.").lower())  # type: ignore[arg-type]
            known.add(node)
            return inner
        case list():
            return [_resolve(branch, namespace, known) for branch in node]
        case {"type": "record", "name": str(name), "fields": list(fields)}:
            known.add(f"{namespace}.{name}")
            for field in fields:
                field["type"] = _resolve(field["type"], namespace, known)
        case {"type": "array", "items": items}:
            node["items"] = _resolve(items, namespace, known)
        case {"type": "enum", "name": str(name)}:
            known.add(f"{namespace}.{name}")
        case _:
            pass
    return node


def _record(name: str, shape: TableShape, prefix: str, doc: str, fields: Iterable[Avro]) -> dict[str, Any]:
    namespace = _namespace(shape, prefix)
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "doc": doc,
        "fields": list(fields),
        "connect.name": f"{namespace}.{name}",
    }


def _with_policy(record: dict[str, Any], columns: Iterable[ColumnShape]) -> dict[str, Any]:
    """Name the columns under a data policy, if there are any."""
    policy = {column.name: column.policy for column in columns if column.policy is not None}
    return {**record, POLICY: policy} if policy else record


def _namespace(shape: TableShape, prefix: str) -> str:
    return namespace_of(prefix, shape.schema, shape.table)


def _column(column: ColumnShape) -> Avro:
    """Return a column of the row; all but the key's may be missing in an old or partial row."""
    encoding = encoding_of(column.type)
    schema = with_names(column.type, encoding.schema)
    doc = {"doc": column.comment} if column.comment else {}
    if column.in_key and encoding.total and not column.optional:
        return {**_field(column, schema), **doc}
    return {**_field(column, ["null", schema]), "default": None, **doc}


def _key_type(column: ColumnShape) -> Avro:
    """Return a key column's type. It has a name only if it is no text in the type's place."""
    encoding = key_encoding_of(column.type)
    return encoding.schema if encoding.as_text else with_names_in_key(column.type, encoding.schema)


def _field(column: ColumnShape, schema: Avro) -> dict[str, Any]:
    name = avro_name(column.name)
    field = {"name": name, "type": schema}
    if name != column.name:
        field["postgres.name"] = column.name
    return field


def _optional(name: str, schema: Avro, doc: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", schema], "default": None, "doc": doc}
