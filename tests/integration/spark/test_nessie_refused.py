"""Nessie 0.99 keeps no branches of Iceberg tables: a mirror is refused before it merges anything.

The server is 245 MB, so this is slow; `nessie.lock` is beside this file. It needs Java 21.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fixtures.catalogs import answers_as_catalog
from fixtures.object_store import ObjectStore
from fixtures.spark import new_lake
from helpers.spark.writer import Writer, table
from twofold.stack.process import LOOPBACK, GuardedProcess, choose_port
from twofold_common import artifacts, java
from twofold_spark.catalog_choice import CatalogChoice
from twofold_spark.errors import SetupError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def nessie(object_store: ObjectStore, tmp_path: Path) -> Iterator[str]:
    """Nessie's address as a REST catalog; its tables are in the object store."""
    (jar,) = artifacts.fetch(artifacts.read_lock(Path(__file__).with_name("nessie.lock").read_text("utf-8")))
    port, management = choose_port(None, "Nessie"), choose_port(None, "Nessie's management")
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": LOOPBACK,
        "quarkus.http.port": str(port),
        "quarkus.management.host": LOOPBACK,
        "quarkus.management.port": str(management),
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "lake",
        "nessie.catalog.warehouses.lake.location": f"s3://{object_store.bucket}/nessie",
        f"{s3}.endpoint": object_store.endpoint,
        f"{s3}.path-style-access": "true",
        f"{s3}.region": "us-east-1",
        f"{s3}.request-signing-enabled": "false",
        f"{s3}.access-key": "urn:nessie-secret:quarkus:store-key",
        "store-key.name": object_store.access_key,
        "store-key.secret": object_store.secret_key,
    }
    process = GuardedProcess(
        "Nessie",
        [java.find("Nessie", 21).program, "-Xmx512m", *(f"-D{k}={v}" for k, v in settings.items()), "-jar", jar],
        log=tmp_path / "nessie.log",
    )
    address = f"http://{LOOPBACK}:{port}/iceberg"
    try:
        process.wait_until(lambda: answers_as_catalog(address), seconds=180)
        yield address
    finally:
        process.stop()


@pytest.mark.parametrize("version", [2, 3])
def test_nothing_is_merged(
    spark: SparkSession,
    lake_writer: Writer,
    object_store: ObjectStore,
    nessie: str,
    tmp_path: Path,
    version: int,
) -> None:
    store = object_store.properties | object_store.credentials
    properties = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **store}
    choice = CatalogChoice.choose(None, nessie, {"warehouse": "lake", **properties})
    lake = new_lake(spark, lake_writer, tmp_path / "folder", choice)
    lake.format_version = version
    lake.writer.table(table("accounts", {"id": "int8", "v": "text"}))
    with lake.writer.commit() as tx:
        tx.upsert("accounts", {"id": 1, "v": "x"})
    with pytest.raises(SetupError, match="keeps no branches of Iceberg tables") as refused:
        lake.mirror()
    assert "give another --catalog-uri. Nessie is such a catalog" in str(refused.value)
    assert not lake.applied
    assert [row[0] for row in spark.sql(f"SHOW NAMESPACES IN {lake.catalog}").collect()] == ["twofold"]
