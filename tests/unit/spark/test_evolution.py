"""Which ALTERs a table needs, and the reader schema that the rows are read into."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from twofold_spark.errors import Refused
from twofold_spark.sinks.column_changes import format_columns, list_alterations
from twofold_spark.sources.decoding import build_reader_schema, find_row_schema
from twofold_spark.sources.registry import AvroSchema, Subject
from twofold_spark.streaming import Trigger


def _struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_columns_are_added_and_types_widened_within_structs_too() -> None:
    there = _struct(a=IntegerType(), gone=StringType(), d=DecimalType(10, 2), s=_struct(x=FloatType()))
    wanted = _struct(a=LongType(), d=DecimalType(12, 2), s=_struct(x=DoubleType(), y=StringType()), b=StringType())
    assert list_alterations(there, wanted, table="t") == [
        "ALTER COLUMN `a` TYPE bigint",
        "ALTER COLUMN `d` TYPE decimal(12,2)",
        "ALTER COLUMN `s`.`x` TYPE double",
        "ADD COLUMN `s`.`y` string",
        "ADD COLUMN `b` string",
    ]


def _commented(name: str, comment: str | None) -> StructType:
    return StructType([StructField(name, IntegerType(), metadata={"comment": comment} if comment else None)])


def test_comment_follows_the_sources_if_there_is_one() -> None:
    hard = "it's ${a}\\"
    clause = "COMMENT 'it\\'s \\u0024{a}\\\\'"
    assert format_columns(_commented("a", hard)) == f"`a` int {clause}"
    assert format_columns(_commented("a", hard), required=("a",)) == f"`a` int NOT NULL {clause}"
    plain = _struct(a=IntegerType())
    assert list_alterations(StructType(), _commented("a", hard), table="t") == [f"ADD COLUMN `a` int {clause}"]
    for present in plain, _commented("a", "by hand"):
        assert list_alterations(present, _commented("a", hard), table="t") == [f"ALTER COLUMN `a` {clause}"]
    for wanted in plain, _commented("a", hard):
        assert list_alterations(_commented("a", hard), wanted, table="t") == []
    wider = StructType([StructField("a", LongType(), metadata={"comment": "new"})])
    alterations = ["ALTER COLUMN `a` COMMENT 'new'", "ALTER COLUMN `a` TYPE bigint"]
    assert list_alterations(plain, wider, table="t") == alterations


def test_a_table_that_is_wider_already_takes_older_rows() -> None:
    assert list_alterations(_struct(a=LongType()), _struct(a=IntegerType()), table="t") == []


@pytest.mark.parametrize("wanted", [StringType(), IntegerType(), DecimalType(10, 3)])
def test_what_no_widening_leads_to_is_refused(wanted: DataType) -> None:
    with pytest.raises(Refused, match=r"t\.a has the type decimal\(10,2\) in the table"):
        list_alterations(_struct(a=DecimalType(10, 2)), _struct(a=wanted), table="t")


def _envelope(*columns: tuple[str, Any]) -> AvroSchema:
    row = {"type": "record", "name": "Value", "fields": [{"name": n, "type": ["null", t]} for n, t in columns]}
    return {"type": "record", "name": "Envelope", "fields": [{"name": "before", "type": ["null", row]}]}


def test_the_reader_schema_is_the_latest_with_what_it_dropped() -> None:
    versions = (
        _envelope(("a", "int"), ("old", "int")),
        _envelope(("a", "long")),
        _envelope(("b", "int"), ("a", "long")),
    )
    reader = find_row_schema(build_reader_schema(Subject("s", tuple(enumerate(versions, 1)))))
    assert [field["name"] for field in reader["fields"]] == ["b", "a", "old"]
    assert reader["fields"][2] == {"name": "old", "type": ["null", "int"], "default": None}
    assert len(find_row_schema(versions[2])["fields"]) == 2, "the registry's own schema is left as it is"


def _decimal(precision: int, scale: int) -> AvroSchema:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("older", "latest", "read_as"),
    [
        ("long", "int", "long"),
        ("int", "long", "long"),
        ("double", "float", "double"),
        (_decimal(12, 2), _decimal(10, 2), _decimal(12, 2)),
        (_decimal(12, 4), _decimal(10, 2), _decimal(10, 2)),
        ({"type": "long", "logicalType": "time-micros"}, "int", "int"),
        ("long", {"type": "int", "connect.type": "int16"}, "long"),
        ("string", "int", "int"),
    ],
)
def test_a_column_that_was_narrowed_is_read_as_wide_as_it_was(older: Any, latest: Any, read_as: Any) -> None:
    versions = (_envelope(("a", older)), _envelope(), _envelope(("a", latest)))
    reader = find_row_schema(build_reader_schema(Subject("s", tuple(enumerate(versions, 1)))))
    assert reader["fields"] == [{"name": "a", "type": ["null", read_as]}]


def test_triggers_are_read_as_they_are_written() -> None:
    assert Trigger.parse("interval=500ms") == Trigger("interval", "500 milliseconds")
    with pytest.raises(ValueError, match="must be one of"):
        Trigger.parse("1s")
