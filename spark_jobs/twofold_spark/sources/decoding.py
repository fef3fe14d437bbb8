"""From Confluent-framed Avro to columns, in one pass over the rows.

Open-source `from_avro` knows no registry, so the expression is a CASE over the schema ids that the topic's subject has.
Every version is read into one reader schema, the union of all: the latest version with the columns that it dropped put
back as nullable ones. A writer's column that the reader lacks would vanish in silence; so a record whose id is not in
the CASE is not decoded at all but counted as unknown, and the caller asks the registry again.

Each job names the parts that it reads, and Avro skips the rest.

A malformed record becomes an envelope without `op` (from_avro's PERMISSIVE mode gives a struct of nulls, and `op` is
never null in a good one), which is how the fold counts it and the quarantine finds it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from twofold_spark.mirror.toast_values import KEY_TEXT
from twofold_spark.sources.registry import Avro, Subject

_FRAME = 5
"""Magic 0 and the schema id, four bytes."""

Parts = Mapping[str, frozenset[str]]
"""Fields of the envelope, and of those that are records which of theirs; without any, all."""

_ALL: frozenset[str] = frozenset()
OP: Parts = {"op": _ALL}
CHANGE: Parts = {
    "before": _ALL,
    "after": _ALL,
    **OP,
    "unchanged": _ALL,
    "source": frozenset({"lsn"}),
    "transaction": frozenset({"id"}),
}


def envelope(value: Column, subject: Subject, parts: Parts | None = None) -> Column:
    """The decoded envelope, or some of its parts; null for a tombstone and for an unknown schema id."""
    reader = reader_schema(subject)
    if parts is not None:
        reader["fields"] = [_part(field, parts[field["name"]]) for field in reader["fields"] if field["name"] in parts]
    return _case(value, subject, json.dumps(reader))


def record(value: Column, subject: Subject) -> Column:
    """A record that is no envelope (a commit record), read into its latest version."""
    return _case(value, subject, json.dumps(subject.latest))


def unknown(value: Column, subject: Subject) -> Column:
    """Whether the value names a schema that the subject does not have yet, or is no framed Avro at all."""
    return value.isNotNull() & ~f.substring(value, 1, _FRAME).isin([_frame(i) for i in sorted(subject.ids)])


def _case(value: Column, subject: Subject, reader: str) -> Column:
    head, body = f.substring(value, 1, _FRAME), f.substring(value, _FRAME + 1, 2**31 - 1)
    options = {"mode": "PERMISSIVE", "avroSchema": reader}
    case: Column | None = None
    for identifier, writer in subject.versions:
        decoded = from_avro(body, json.dumps(writer), options)
        case = (case.when if case is not None else f.when)(head == f.lit(_frame(identifier)), decoded)
    if case is None:
        raise ValueError(f"{subject.name} has no version")
    return case


def _frame(identifier: int) -> bytearray:
    return bytearray(b"\0" + identifier.to_bytes(4, "big"))


def reader_schema(subject: Subject) -> Avro:
    """The latest version, each column as wide as any version had it, with the row's columns that older versions had and it lacks."""
    reader = copy.deepcopy(subject.latest)
    fields = row_schema(reader)["fields"]
    there = {column["name"]: column for column in fields}
    for _, older in reversed(subject.versions[:-1]):
        for column in row_schema(older)["fields"]:
            name = column["name"]
            if name not in there:
                there[name] = {"name": name, "type": _nullable(column["type"]), "default": None}
                fields.append(there[name])
            elif _wider(column["type"], there[name]["type"]):
                there[name]["type"] = copy.deepcopy(column["type"])
    return reader


def _wider(older: Any, latest: Any) -> bool:
    """Whether only the older type reads the values of both: a column that was narrowed keeps its older rows."""
    match _bare(older), _bare(latest):
        case ("long", "int") | ("double", "float"):
            return True
        case ({"logicalType": "decimal"} as one, {"logicalType": "decimal"} as other):
            return bool(one["scale"] == other["scale"] and one["precision"] > other["precision"])
    return False


def _bare(avro_type: Any) -> Any:
    """The type that is not null; its name alone, unless it has a logical type or is made of others."""
    if isinstance(avro_type, list):
        return _bare(next((b for b in avro_type if b != "null"), "null"))
    match avro_type:
        case {"type": str(name)} if not {"logicalType", "items", "fields"} & avro_type.keys():
            return name
    return avro_type


def _part(field: Avro, wanted: frozenset[str]) -> Avro:
    """The field with those of its record's fields that are wanted."""
    if not wanted:
        return field
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    kept = [
        {**b, "fields": [inner for inner in b["fields"] if inner["name"] in wanted]} if isinstance(b, dict) else b
        for b in branches
    ]
    return {**field, "type": kept if len(kept) > 1 else kept[0]}


def row_schema(envelope_schema: Avro) -> Avro:
    """The record of a table's row: defined where it is met first, in `before` (as Debezium has it) or in `after`."""
    for name in ("before", "after"):
        for field in envelope_schema["fields"]:
            if field["name"] == name:
                for branch in field["type"] if isinstance(field["type"], list) else [field["type"]]:
                    if isinstance(branch, dict) and branch.get("type") == "record":
                        return branch
    raise ValueError("an envelope without a row")


def merge_key(key: Avro, value: Avro) -> tuple[str, ...]:
    """The columns that a row is known by: the row's own, or the message key's text where the row's may be null.

    A column whose type has values that Avro cannot say (infinity, NaN) is text in the key and null in the row.
    """
    types = {column["name"]: _primitive(column["type"]) for column in row_schema(value)["fields"]}
    texts = {c["name"] for c in key["fields"] if _primitive(c["type"]) == "string" != types.get(c["name"], "string")}
    return tuple(KEY_TEXT + c["name"] if c["name"] in texts else c["name"] for c in key["fields"])


def _primitive(avro_type: Any) -> str:
    """What a field's bytes are, whatever its logical type and whether it may be null."""
    match avro_type:
        case [*branches]:
            return next((_primitive(b) for b in branches if b != "null"), "null")
        case {"type": inner}:
            return _primitive(inner)
    return str(avro_type)


def _nullable(avro_type: Any) -> list[Any]:
    branches = avro_type if isinstance(avro_type, list) else [avro_type]
    return ["null", *(b for b in branches if b != "null")]
