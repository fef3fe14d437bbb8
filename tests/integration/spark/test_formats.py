"""Tables as other engines read them, in both of Iceberg's formats."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from fixtures.spark import Lake
from helpers.spark.writer import table

ORDERS = table("orders", {"id": "int8", "line": "int4", "note": "text"}, key=("id", "line"))
RATES = table("rates", {"rate": "float8", "v": "int4"}, key=("rate",))


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_other_engines_read_the_tables_of_each_format(lake: Lake, version: int) -> None:
    lake.format_version, lake.write_mode = version, "merge-on-read"
    lake.writer.table(ORDERS)
    lake.writer.table(RATES)
    for number in (1, 2):
        with lake.writer.commit() as tx:
            for line in range(5):
                tx.upsert("orders", {"id": 1, "line": line, "note": f"{number}"})
            tx.delete("orders", (1, number))
            tx.upsert("rates", {"rate": 0.5, "v": number})
        lake.mirror()
    lake.assert_equal()
    catalog = SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.warehouse}/catalog.db", warehouse=str(lake.warehouse))
    found = catalog.load_table("public.orders")
    assert found.format_version == version
    rows = {(row["id"], row["line"]): row for row in found.scan().to_arrow().to_pylist()}
    assert rows == lake.writer.model["orders"]
    assert found.schema().identifier_field_names() == {"id", "line"}
    assert [field.required for field in found.schema().fields] == [True, True, False]
    rates = catalog.load_table("public.rates").schema()
    assert (rates.identifier_field_names(), rates.find_field("rate").required) == (set(), True), "no float identifies"
