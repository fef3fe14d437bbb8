"""Appends rows to an Iceberg table, by Iceberg's own writer: without a Spark job.

A cut is a row for each source, and every batch publishes one. Planning and running an INSERT of one
row takes Spark longer than merging a small table.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from twofold_spark.java_classes import java_class
from twofold_spark.sinks.iceberg_repeated import forget_repeated_append
from twofold_spark.sinks.iceberg_tables import MAIN, current_snapshot

NO_SUMMARY: Mapping[str, str] = {}


def append_rows(
    spark: SparkSession,
    table: Any,
    rows: Iterable[Mapping[str, Any]],
    *,
    branch: str = MAIN,
    summary: Mapping[str, str] = NO_SUMMARY,
) -> None:
    """Append rows to a branch of a loaded table; they are durable when this returns.

    Iceberg tries again if another commit came between. The table is as of the commit then.
    """
    parquet = java_class(spark, "org.apache.iceberg.FileFormat").PARQUET
    place = table.locationProvider().newDataLocation(f"{uuid.uuid4()}.parquet")
    file = table.io().newOutputFile(place)
    schema = table.schema()
    fields = json.loads(java_class(spark, "org.apache.iceberg.SchemaParser").toJson(schema))
    data = java_class(spark, "org.apache.iceberg.InternalData")
    writer = data.write(parquet, file).schema(schema).build()
    try:
        parser = java_class(spark, "org.apache.iceberg.SingleValueParser")
        for row in rows:
            writer.add(parser.fromJson(schema.asStruct(), json.dumps(to_single_value(fields, row))))
    finally:
        writer.close()
    files = java_class(spark, "org.apache.iceberg.DataFiles")
    written = files.builder(table.spec()).withInputFile(file.toInputFile()).withFormat(parquet)
    append = table.newAppend().appendFile(written.withMetrics(writer.metrics()).build()).toBranch(branch)
    for key, value in summary.items():
        append = append.set(key, value)
    before = current_snapshot(table, branch)
    append.commit()
    if table.snapshot(branch).parentId() != before:
        forget_repeated_append(spark, table, branch)


def to_single_value(kind: Any, value: Any) -> Any:
    """Build the JSON of Iceberg's specification: a struct's fields go by their ids."""
    if value is None or isinstance(kind, str):
        return value.isoformat(timespec="microseconds") if isinstance(value, dt.datetime) else value
    if kind["type"] == "list":
        return [to_single_value(kind["element"], each) for each in value]
    return {str(field["id"]): to_single_value(field["type"], value[field["name"]]) for field in kind["fields"]}
