"""Tables and checkpoints in a store that speaks S3, by the command line alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from fixtures.connector import Maker
from fixtures.object_store import ObjectStore
from fixtures.spark import Lake
from helpers.spark import process as spark_process
from helpers.spark.sourced import changing, read_items, verify


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_mirror_keeps_tables_and_checkpoints_in_s3(
    stored_lake: Lake, connector: Maker, object_store: ObjectStore, prefix: str, tmp_path: Path
) -> None:
    """The first job has its credentials in a file; who comes after it, in the environment."""
    lake, file = stored_lake, tmp_path / "without-credentials.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in object_store.properties.items()))
    catalog = RestCatalog("rest", uri=lake.catalog_choice.uri, **object_store.properties, **object_store.credentials)
    with changing(lake, connector) as (here, load):
        with spark_process.running(lake) as process:
            spark_process.cuts(process, 2)
            os.killpg(process.pid, signal.SIGKILL)
        before = _list_batches(object_store, prefix)
        lake.place = (*lake.place, "--catalog-file", str(file))
        with spark_process.running(lake, environment=object_store.environment) as process:
            spark_process.cuts(process, 1)
            load.close()
            here.caught_up(120)
            verify(lake, here, object_store.environment)
            process.terminate()
            spark_process.finish(process, within_s=120)
        loaded = catalog.load_table("public.item")
        assert {row["id"]: row["version"] for row in loaded.scan().to_arrow().to_pylist()} == read_items(here)
    assert loaded.metadata_location.startswith(f"s3://{object_store.bucket}/{prefix}/")
    after = _list_batches(object_store, prefix)
    assert before
    assert max(after) > max(before), "the second job read on where the first was"
    assert not (lake.warehouse / "checkpoints").exists()


def _list_batches(store: ObjectStore, prefix: str) -> set[int]:
    names = store.list_files(f"{prefix}/checkpoints/mirror/offsets")
    return {int(last) for name in names if (last := name.rpartition("/")[2])}
