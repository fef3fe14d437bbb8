"""Which catalog the options mean, and what Spark is told of it."""

from __future__ import annotations

import pytest

from twofold_spark.catalog_choice import WAREHOUSE_CATALOG, CatalogChoice
from twofold_spark.errors import UsageError


@pytest.mark.parametrize(
    ("kind", "uri", "expected"),
    [
        (None, None, "sqlite"),
        (None, "https://catalog:8181", "rest"),
        (None, "jdbc:postgresql://db/catalog", "jdbc"),
        (None, "thrift://meta:9083", "hive"),
        ("glue", None, "glue"),
        ("rest", "catalog.internal/api", "rest"),
    ],
)
def test_the_address_tells_the_kind(kind: str | None, uri: str | None, expected: str) -> None:
    assert CatalogChoice.choose(kind, uri, None).kind == expected


@pytest.mark.parametrize(
    ("kind", "uri", "message"),
    [
        (None, "s3://bucket", "does not tell the kind of the catalog: add --catalog-type"),
        ("rest", None, "--catalog-type rest needs --catalog-uri"),
        ("sqlite", "jdbc:sqlite:x", "--catalog-type sqlite takes no --catalog-uri"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str | None, uri: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CatalogChoice.choose(kind, uri, None)


def test_the_file_adds_credentials_and_its_warehouse_is_the_catalogs() -> None:
    file = {"credential": "me:secret", "warehouse": "lake"}
    settings = CatalogChoice.choose(None, "http://catalog", file).settings("/folder", "c")
    assert settings == {
        "spark.sql.catalog.c": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.c.type": "rest",
        "spark.sql.catalog.c.uri": "http://catalog",
        "spark.sql.catalog.c.cache-enabled": "false",
        "spark.sql.catalog.c.credential": "me:secret",
        "spark.sql.catalog.c.warehouse": "lake",
    }
    default = WAREHOUSE_CATALOG.settings("/folder", "c")
    assert default["spark.sql.catalog.c.uri"] == "jdbc:sqlite:/folder/catalog.db?busy_timeout=30000"
    assert default["spark.sql.catalog.c.warehouse"] == "/folder"
