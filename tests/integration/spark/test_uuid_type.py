"""Why a `uuid` is text in the mirror's Iceberg tables, and a `time` a number: what Spark does with
Iceberg's own types. A test that fails says that a newer version can have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import UnsupportedOperationException
from pyspark.sql import SparkSession

from twofold_spark.catalog_choice import WAREHOUSE_CATALOG
from twofold_spark.java_classes import java_class
from twofold_spark.sinks.iceberg_tables import load_table

_LOW, _HIGH = "7f000000-0000-0000-0000-000000000001", "80000000-0000-0000-0000-000000000001"


@pytest.fixture
def typed(spark: SparkSession, tmp_path: Path) -> str:
    """A catalog of its own."""
    catalog = tmp_path.name
    for name, value in WAREHOUSE_CATALOG.settings(str(tmp_path), catalog).items():
        spark.conf.set(name, value)
    spark.sql(f"CREATE NAMESPACE {catalog}.public")
    return f"{catalog}.public.t"


def _add(spark: SparkSession, name: str, column: str, kind: str) -> None:
    type_: Any = java_class(spark, f"org.apache.iceberg.types.Types${kind}").get()
    load_table(spark, name).updateSchema().addColumn(column, type_).commit()


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_spark_does_not_find_a_uuid_by_its_value(spark: SparkSession, typed: str, version: int) -> None:
    """Spark's filter goes to Iceberg, which takes a first digit of 8 or more for a negative number.
    A file's bounds are in Parquet's order, without a sign."""
    properties = f"'format-version' = '{version}', 'write.merge.mode' = 'merge-on-read'"
    spark.sql(f"CREATE TABLE {typed} (note string) USING iceberg TBLPROPERTIES ({properties})")
    _add(spark, typed, "uid", "UUIDType")
    both = f"VALUES ('low', '{_LOW}'), ('high', '{_HIGH}') AS v(note, uid)"
    spark.sql(f"INSERT INTO {typed} SELECT /*+ COALESCE(1) */ note, uid FROM {both}")
    assert {tuple(row) for row in spark.table(typed).collect()} == {("low", _LOW), ("high", _HIGH)}
    for uid in (_LOW, _HIGH):
        assert spark.table(typed).where(f"uid = '{uid}'").collect() == [], "a row that is there"
        assert spark.table(typed).where(f"concat(uid, '') = '{uid}'").count() == 1, "as the filter stays in Spark"
    among = f"uid IN ('{_LOW}', '{_HIGH}')"
    spark.sql(f"DELETE FROM {typed} WHERE {among}")
    assert spark.table(typed).count() == 2, "rows that were not deleted"
    # As the mirror merges into a large table.
    spark.sql(
        f"MERGE INTO {typed} t USING (SELECT * FROM {both}) s ON t.uid = s.uid AND t.{among} "
        "WHEN MATCHED THEN UPDATE SET note = s.note WHEN NOT MATCHED THEN INSERT *"
    )
    assert spark.table(typed).count() == 4, "each key twice"


def test_spark_refuses_a_table_with_iceberg_s_time(spark: SparkSession, typed: str) -> None:
    spark.sql(f"CREATE TABLE {typed} (note string) USING iceberg")
    _add(spark, typed, "clock", "TimeType")
    with pytest.raises(UnsupportedOperationException, match="Spark does not support time fields"):
        spark.sql(f"SELECT note FROM {typed}")
