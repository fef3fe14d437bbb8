"""Catalogs that the options name."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from fixtures.catalogs import RestCatalogServer, find_in_postgres
from fixtures.spark import Lake, new_lake
from helpers.spark import process as spark_process
from helpers.spark.writer import Writer, table
from twofold_spark.catalog_choice import CatalogChoice

ORDERS = table("orders", {"id": "int8", "line": "int4", "note": "text"}, key=("id", "line"))


def _write(lake: Lake, version: int) -> None:
    with lake.writer.commit() as tx:
        for line in range(5):
            tx.upsert("orders", {"id": 1, "line": line, "note": f"{version}"})
        tx.delete("orders", (1, version))


@pytest.mark.slow
def test_the_command_line_alone_makes_a_job_use_a_rest_catalog(
    spark: SparkSession,
    lake_writer: Writer,
    tmp_path: Path,
    rest_catalog: RestCatalogServer,
) -> None:
    file = tmp_path / "catalog.properties"
    file.write_text(f"warehouse={rest_catalog.folder}\ncredential=me:secret\nscope=catalog\n")
    properties = {"warehouse": str(rest_catalog.folder), "credential": "me:secret"}
    choice = CatalogChoice.choose(None, rest_catalog.url, properties)
    lake = new_lake(spark, lake_writer, tmp_path, choice)
    lake.writer.table(ORDERS)
    _write(lake, 1)
    _write(lake, 2)
    options = ("--catalog-uri", rest_catalog.url, "--catalog-file", str(file), "--trigger", "available-now")
    spark_process.run(lake, *options, "--partition-by", "public.orders=line")
    lake.assert_equal()
    assert spark.sql(f"SELECT DISTINCT partition.line FROM {lake.catalog}.public.orders.files").count() > 1
    assert not (lake.warehouse / "catalog.db").exists()


def test_a_catalog_in_postgresql(spark: SparkSession, lake_writer: Writer, tmp_path: Path, database: str) -> None:
    choice = CatalogChoice.choose(None, *find_in_postgres(database))
    lake = new_lake(spark, lake_writer, tmp_path, choice)
    lake.writer.table(ORDERS)
    for version in (1, 2):
        _write(lake, version)
        lake.mirror()
    lake.assert_equal()
    with psycopg.connect(database) as connection:
        names = connection.execute("SELECT table_namespace, table_name FROM iceberg_tables").fetchall()
    assert set(names) == {("public", "orders"), ("twofold", "cuts")}
