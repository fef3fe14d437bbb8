"""The MERGE that each engine is given, and what a table's rows are known by."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import ArrayType, DoubleType, FloatType, LongType, StringType, StructField, StructType

from twofold_spark.sinks import jdbc_tables
from twofold_spark.sinks.merge_sql import POSTGRES, find_floats, merge_statement, missing_copies_query
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.sources.decoding import merge_key_columns


def test_names_and_unchanged_columns_are_written_as_each_engine_has_them() -> None:
    spark = merge_statement("c.`s`.`t`", "v", ["id"], ["id", "it's", "b"], unchanged=["it's"], among="t.`id` IN (1)")
    assert "ON t.`id` = s.`id` AND t.`id` IN (1) WHEN" in spark
    assert "`b` = s.`b`" in spark
    assert "`it's` = CASE WHEN array_contains(s._twofold_unchanged, 'it\\'s') THEN t.`it's` ELSE s.`it's` END" in spark
    postgres = merge_statement('"s"."t"', "v", ["id"], ["id", "it's"], unchanged=["it's"], dialect=POSTGRES)
    assert """"it's" = CASE WHEN 'it''s' = ANY (s._twofold_unchanged) THEN t."it's" ELSE s."it's" END""" in postgres


def test_a_keyless_row_is_its_own_key() -> None:
    statement = merge_statement("t", "v", [], ["a", "b", "_copies"], unchanged=())
    assert "ON t.`a` IS NOT DISTINCT FROM s.`a` AND t.`b` IS NOT DISTINCT FROM s.`b` WHEN" in statement


def test_a_keyless_row_is_identical_where_its_floats_are() -> None:
    """0 and -0 are equal, and two rows."""
    kinds = {
        "a": DoubleType(),
        "b": FloatType(),
        "c": ArrayType(FloatType()),
        "d": ArrayType(LongType()),
        "e": StringType(),
    }
    rows = StructType([StructField(name, kind) for name, kind in kinds.items()])
    floats = find_floats(rows)
    assert floats == {"a": False, "b": False, "c": True}
    spark = merge_statement("t", "v", [], ["b", "c", "e", "_copies"], unchanged=(), floats=floats)
    assert "CAST(CAST(t.`b` AS double) AS string) IS NOT DISTINCT FROM CAST(CAST(s.`b` AS double) AS string)" in spark
    assert "CAST(CAST(t.`c` AS array<double>) AS string) IS NOT DISTINCT FROM" in spark
    assert "t.`e` IS NOT DISTINCT FROM s.`e`" in spark
    asked = missing_copies_query("t", "v", ["b", "_copies"], ["b", "c", "_copies"], floats)
    assert 't."b"::float8::text IS NOT DISTINCT FROM s."b"::float8::text AND s."c" IS NULL' in asked
    names = {"a": "real", "b": "double precision[]", "c": "numeric(3,1)", "d": "text"}
    assert jdbc_tables.find_floats(names) == {"a": False, "b": True}


def test_what_a_keyless_table_lacks_is_asked_for_by_the_columns_that_it_has() -> None:
    asked = missing_copies_query("t", "v", ["a", "_copies"], ["a", "new", "_copies"])
    assert 't."a" IS NOT DISTINCT FROM s."a" AND s."new" IS NULL AND t._copies + s._copies >= 0' in asked
    assert "FROM t" not in missing_copies_query("t", "v", [], ["a", "_copies"])


def _record(**types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}


def test_a_key_column_that_is_text_only_in_the_key_is_merged_by_its_text() -> None:
    date = ["null", {"type": "int", "logicalType": "date"}]
    uuid = {"type": "string", "logicalType": "uuid"}
    row = _record(id="long", until=date, code=["null", "string"], token=uuid)
    value = {"type": "record", "name": "Envelope", "fields": [{"name": "before", "type": ["null", row]}]}
    key = _record(id="long", until="string", code="string", token=uuid)
    assert merge_key_columns(key, value) == ("id", "_key_until", "code", "token")


@pytest.mark.parametrize("text", ["jdbc", "iceberg=x", "parquet"])
def test_a_sink_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be one of: iceberg"):
        SinkChoice.parse(text)
