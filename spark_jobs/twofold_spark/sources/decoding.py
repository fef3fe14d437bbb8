"""From Confluent-framed Avro to columns, in one pass over the rows.

Spark's `from_avro` knows no registry, so the expression is a CASE over the schema ids of the
topic's subject. Every version is read into one reader schema, the union of all versions: the latest
version, with the columns that it dropped as nullable ones.

A column that the reader schema lacks would disappear silently. So a record whose schema id is not
in the CASE is not decoded but counted as unknown, and the caller asks the registry again.

Each job names the parts of the envelope that it reads, and Avro skips the rest.

A malformed record becomes an envelope without `op`. `from_avro`'s PERMISSIVE mode returns a struct
of nulls, and `op` is never null in a valid record. So the fold counts it and the quarantine finds
it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from twofold_spark.row_columns import KEY_TEXT
from twofold_spark.sources.registry import AvroSchema, Subject

_FRAME = 5
"""Length of the frame: magic 0, and four bytes of schema id."""
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
"""The second one because a session may say of Avro's dates that Spark 2 wrote them: Spark would
move those before 1582 by days, or call their records malformed.
"""

EnvelopeParts = Mapping[str, frozenset[str]]
"""Fields of the envelope; of a field that is a record, which of its fields (an empty set: all)."""

_ALL: frozenset[str] = frozenset()
OP: EnvelopeParts = {"op": _ALL}
CHANGE: EnvelopeParts = {
    "before": _ALL,
    "after": _ALL,
    **OP,
    "unchanged": _ALL,
    "source": frozenset({"lsn"}),
    "transaction": frozenset({"id"}),
}


def decode_envelope(value: Column, parts: EnvelopeParts | None, *subjects: Subject) -> Column:
    """Decode the envelope, or parts of it; of several topics, if their rows have the same columns.

    It is null for a tombstone and for an unknown schema id.
    """
    return _case_by_schema_id(value, [(each, json.dumps(_narrow(each, parts))) for each in subjects])


def _narrow(subject: Subject, parts: EnvelopeParts | None) -> AvroSchema:
    reader = build_reader_schema(subject)
    if parts is None:
        return reader
    fields = (field for field in reader["fields"] if field["name"] in parts)
    return {**reader, "fields": [_narrow_field(field, parts[field["name"]]) for field in fields]}


def decode_record(value: Column, subject: Subject) -> Column:
    """Decode a commit record or a key into the subject's latest version."""
    return _case_by_schema_id(value, [(subject, json.dumps(subject.latest))])


def has_unknown_schema(value: Column, *subjects: Subject) -> Column:
    """Whether the value is no framed Avro, or has a schema id that the subjects lack."""
    known = sorted({identifier for subject in subjects for identifier in subject.ids})
    return value.isNotNull() & ~f.substring(value, 1, _FRAME).isin([_frame(i) for i in known])


def schema_id(value: Column) -> Column:
    """Return the id in the frame; null where the value is not framed."""
    is_framed = (f.length(value) >= _FRAME) & (f.substring(value, 1, 1) == f.lit(bytearray(1)))
    return f.when(is_framed, f.conv(f.hex(f.substring(value, 2, 4)), 16, 10).cast("long"))


def find_unknown_ids(records: DataFrame, subject: Subject) -> frozenset[int]:
    """Find the schema ids of the records that the subject lacks."""
    found = records.where(has_unknown_schema(f.col("value"), subject)).agg(f.collect_set(schema_id(f.col("value"))))
    return frozenset(found.collect()[0][0])


def _case_by_schema_id(value: Column, readers: Iterable[tuple[Subject, str]]) -> Column:
    """Decode a value as the version of its schema's id, into the subject's reader schema."""
    head, body = f.substring(value, 1, _FRAME), f.substring(value, _FRAME + 1, 2**31 - 1)
    case: Any = f
    for subject, reader in readers:
        options = {**_OPTIONS, "avroSchema": reader}
        for identifier, writer in subject.versions:
            decoded = from_avro(body, json.dumps(writer), options)
            case = case.when(head == f.lit(_frame(identifier)), decoded)
    return cast("Column", case)


def _frame(identifier: int) -> bytearray:
    return bytearray(b"\0" + identifier.to_bytes(4, "big"))


def build_reader_schema(subject: Subject) -> AvroSchema:
    """Build the union of all versions from the latest one.

    Each column is as wide as in any version. Columns of the row that only older versions have are
    added.
    """
    reader = copy.deepcopy(subject.latest)
    fields = find_row_schema(reader)["fields"]
    columns = {column["name"]: column for column in fields}
    for _, older in reversed(subject.versions[:-1]):
        for column in find_row_schema(older)["fields"]:
            name = column["name"]
            if name not in columns:
                columns[name] = {"name": name, "type": _make_nullable(column["type"]), "default": None}
                fields.append(columns[name])
            elif _is_wider(column["type"], columns[name]["type"]):
                columns[name]["type"] = copy.deepcopy(column["type"])
    return reader


def _is_wider(older: Any, latest: Any) -> bool:
    """Whether only the older type can hold the values of both.

    A column that was narrowed keeps its older rows.
    """
    match _bare_type(older), _bare_type(latest):
        case ("long", "int") | ("double", "float"):
            return True
        case ({"logicalType": "decimal"} as one, {"logicalType": "decimal"} as other):
            return bool(one["scale"] == other["scale"] and one["precision"] > other["precision"])
    return False


def _bare_type(avro_type: Any) -> Any:
    """Return the type that is not null.

    It is the name alone, unless the type is logical or composed of others.
    """
    if isinstance(avro_type, list):
        return _bare_type(next((b for b in avro_type if b != "null"), "null"))
    match avro_type:
        case {"type": str(name)} if not {"logicalType", "items", "fields"} & avro_type.keys():
            return name
    return avro_type


def _narrow_field(field: AvroSchema, wanted: frozenset[str]) -> AvroSchema:
    if not wanted:
        return field
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    kept = [
        {**b, "fields": [inner for inner in b["fields"] if inner["name"] in wanted]} if isinstance(b, dict) else b
        for b in branches
    ]
    return {**field, "type": kept if len(kept) > 1 else kept[0]}


def find_row_schema(envelope_schema: AvroSchema) -> AvroSchema:
    """Return the record of a table's row.

    It is defined at its first use: in `before`, as Debezium has it, or in `after`.
    """
    for name in ("before", "after"):
        for field in envelope_schema["fields"]:
            if field["name"] == name:
                for branch in field["type"] if isinstance(field["type"], list) else [field["type"]]:
                    if isinstance(branch, dict) and branch.get("type") == "record":
                        return branch
    raise ValueError("an envelope without a row")


def merge_key_columns(key: AvroSchema, value: AvroSchema) -> tuple[str, ...]:
    """Return the columns that identify a row.

    They are the row's own, or `_key_<column>` where the row's may be null.

    A type with values that Avro cannot express (infinity, NaN) is text in the key and null in the
    row.
    """
    types = {column["name"]: _primitive_type(column["type"]) for column in find_row_schema(value)["fields"]}
    texts = {
        c["name"] for c in key["fields"] if _primitive_type(c["type"]) == "string" != types.get(c["name"], "string")
    }
    return tuple(KEY_TEXT + c["name"] if c["name"] in texts else c["name"] for c in key["fields"])


def _primitive_type(avro_type: Any) -> str:
    """Return the type of a field's bytes, without its logical type and without null."""
    match avro_type:
        case [*branches]:
            return next((_primitive_type(b) for b in branches if b != "null"), "null")
        case {"type": inner}:
            return _primitive_type(inner)
    return str(avro_type)


def _make_nullable(avro_type: Any) -> list[Any]:
    branches = avro_type if isinstance(avro_type, list) else [avro_type]
    return ["null", *(b for b in branches if b != "null")]


UnreadableChoice = Literal["stop", "skip"]

RECORD_PLACE = ("topic", "partition", "offset")


def select_unreadable(records: DataFrame, subject: Subject, topic: str) -> DataFrame:
    """Select the records that cannot be decoded, and add the reason."""
    value = f.col("value")
    identifier = f.conv(f.hex(f.substring(value, 2, 4)), 16, 10)
    reason = f.when(
        has_unknown_schema(value, subject),
        f.concat(f.lit("not framed, or unknown schema id "), f.coalesce(identifier, f.lit("-"))),
    ).otherwise("malformed Avro")
    return (
        records.where(value.isNotNull())
        .withColumn("e", decode_envelope(value, None, subject))
        .where(f.col("e.op").isNull())
        .select(
            f.lit(topic).alias("topic"),
            "partition",
            "offset",
            "key",
            "value",
            reason.alias("reason"),
            f.current_timestamp().alias("seen_at"),
        )
    )


def decode_changes(raw: DataFrame, subject: Subject, parts: EnvelopeParts) -> DataFrame:
    """Decode records into columns: their place, and the envelope.

    `unreadable` marks a record that has no envelope.
    """
    decoded = raw.withColumn("e", decode_envelope(f.col("value"), parts, subject))
    unreadable = f.col("value").isNotNull() & f.col("e.op").isNull()
    return decoded.select(
        "partition", "offset", "key", f.length("value").alias("bytes"), unreadable.alias("unreadable"), "e.*"
    )


def drop_truncated(changes: DataFrame, truncates: Mapping[int, int]) -> DataFrame:
    """Keep the changes of rows that came after their partition's last truncate."""
    rows = changes.where(f.col("op").isNotNull() & (f.col("op") != "t"))
    if not truncates:
        return rows
    last = f.coalesce(*(f.when(f.col("partition") == p, f.lit(o)) for p, o in sorted(truncates.items())), f.lit(-1))
    return rows.where(f.col("offset") > last)


def row_image(envelope: str = "") -> Column:
    """The row of a change: the new row, or the old row of a delete."""
    op, before, after = (f.col(envelope + name) for name in ("op", "before", "after"))
    return f.when(op == "d", before).otherwise(after)


def full_new_row(columns: StructType) -> Column:
    """The new row of a keyless table's change.

    Unchanged values that were not sent come from the old row.
    """
    return f.struct(
        *(
            f.when(f.array_contains("unchanged", c), f.col("before")[c]).otherwise(f.col("after")[c]).alias(c)
            for c in columns.names
        )
    )
