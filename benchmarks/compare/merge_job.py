"""Debezium's topics into Iceberg, as people write it: a stream, the last change of each key of a
batch, and a MERGE for each table.

    python -m compare.merge_job BOOTSTRAP FOLDER SETTINGS

SETTINGS are those of the catalog, in JSON. A batch that is done again ends in the same rows. The
session is set as Twofold's own is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from compare.bank import COLUMNS, DATABASES, TABLES
from compare.lake import CATALOG
from twofold_spark.session import local_settings

_PROPERTIES: Final = {
    "format-version": "2",
    **{f"write.{what}.mode": "merge-on-read" for what in ("merge", "update", "delete")},
}


def main() -> None:
    bootstrap, folder, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    builder = SparkSession.builder.master("local[2]").appName("merge")
    for name, value in (local_settings(str(folder), memory="1g") | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for database in DATABASES:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{database}")
        for table in TABLES:
            create(spark, f"{CATALOG}.{database}.{table}", COLUMNS[table])
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = source.option("kafka.isolation.level", "read_committed").option("startingOffsets", "earliest")
    topics = ",".join(f"{database}.{database}.{table}" for database in DATABASES for table in TABLES)
    stream = source.option("subscribe", topics).load().writeStream.foreachBatch(merge_all)
    stream.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


def create(spark: SparkSession, name: str, columns: tuple[str, ...]) -> None:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    typed = ", ".join(f"{column} bigint" for column in columns)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({typed}) USING iceberg TBLPROPERTIES ({listed})")


def merge_all(batch: DataFrame, _number: int) -> None:
    batch.persist()
    for database in DATABASES:
        for table in TABLES:
            changes = batch.where(f.col("topic") == f"{database}.{database}.{table}")
            merge(changes, f"{CATALOG}.{database}.{table}", COLUMNS[table])
    batch.unpersist()


def merge(changes: DataFrame, name: str, columns: tuple[str, ...]) -> None:
    row = f"STRUCT<{', '.join(f'{column}: BIGINT' for column in columns)}>"
    # What Debezium writes behind a delete, for Kafka's compaction, has no value.
    event = f.from_json(f.col("value").cast("string"), f"op STRING, before {row}, after {row}").alias("event")
    rows = changes.where("value IS NOT NULL").select("offset", event)
    rows = rows.select("offset", "event.op", f.coalesce("event.after", "event.before").alias("row"))
    newest = Window.partitionBy("row.id").orderBy(f.col("offset").desc())
    last = rows.withColumn("age", f.row_number().over(newest)).where("age = 1").select("op", "row.*")
    last.createOrReplaceTempView("changes")
    changes.sparkSession.sql(
        f"MERGE INTO {name} t USING changes s ON t.id = s.id WHEN MATCHED AND s.op = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{column} = s.{column}' for column in columns)} "
        f"WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(f's.{column}' for column in columns)})"
    )


if __name__ == "__main__":
    main()
