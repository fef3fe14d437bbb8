"""Creates Iceberg tables by Iceberg's own API.

Identifier fields are in the table's first commit, and Iceberg's refusal of a partitioning can be
told from any other error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, FloatType, StructType

from twofold_spark.errors import TableRefused
from twofold_spark.java_classes import java_class
from twofold_spark.sinks import column_changes
from twofold_spark.sinks.partitioning import Transform


def create_table(
    spark: SparkSession,
    catalog: str,
    table: str,
    columns: StructType,
    *,
    key: Sequence[str],
    partitioned_by: Sequence[Transform],
    properties: Mapping[str, str],
) -> None:
    """Create a table (`schema.name`) in one commit.

    Its key columns are required, and are its identifier fields, which other engines read.
    """
    schema = _make_schema(spark, columns, key)
    builder = find_catalog(spark, catalog).buildTable(identify(spark, table), schema)
    builder = builder.withPartitionSpec(_make_spec(spark, table, schema, partitioned_by))
    for name, value in properties.items():
        builder = builder.withProperty(name, value)
    builder.create()


def identify(spark: SparkSession, table: str) -> Any:
    """Return Iceberg's name of a table (`schema.name`)."""
    schema, _, name = table.partition(".")
    gateway: Any = spark.sparkContext._gateway
    levels = gateway.new_array(java_class(spark, "java.lang.String"), 1)
    levels[0] = schema
    namespace = java_class(spark, "org.apache.iceberg.catalog.Namespace").of(levels)
    return java_class(spark, "org.apache.iceberg.catalog.TableIdentifier").of(namespace, name)


def find_catalog(spark: SparkSession, catalog: str) -> Any:
    """Return Iceberg's own catalog behind one of the session's."""
    return spark._jsparkSession.sessionState().catalogManager().catalog(catalog).icebergCatalog()


def _make_schema(spark: SparkSession, columns: StructType, key: Sequence[str]) -> Any:
    ddl = column_changes.format_columns(columns, required=key)
    struct = java_class(spark, "org.apache.spark.sql.types.StructType").fromDDL(ddl)
    schema = java_class(spark, "org.apache.iceberg.spark.SparkSchemaUtil").convert(struct)
    identifiers = java_class(spark, "java.util.HashSet")()
    if not any(isinstance(columns[k].dataType, FloatType | DoubleType) for k in key):
        for column in key:
            identifiers.add(schema.findField(column).fieldId())
    return java_class(spark, "org.apache.iceberg.Schema")(schema.columns(), identifiers)


def _make_spec(spark: SparkSession, table: str, schema: Any, partitioned_by: Sequence[Transform]) -> Any:
    builder = java_class(spark, "org.apache.iceberg.PartitionSpec").builderFor(schema)
    try:
        for transform in partitioned_by:
            arguments = (transform.column,) if transform.size is None else (transform.column, transform.size)
            builder = getattr(builder, transform.method)(*arguments)
        return builder.build()
    except Py4JJavaError as error:
        raise TableRefused(
            f"{table} cannot be partitioned by {', '.join(map(str, partitioned_by))}: "
            f"{error.java_exception.getMessage()}",
            at_stake="how the table's rows are laid out, which the mirror never changes afterwards",
            repair=f"correct --partition-by {table}=..., or leave it out, and start the mirror again",
        ) from error
