"""A reader that has loaded a version goes on to read it while the mirror replaces the version and
maintains its tables, however old the version was.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from fixtures.spark import Lake
from helpers.spark.writer import table

KEPT: dt.timedelta = dt.timedelta(seconds=25)
"""Longer than two batches and their maintenance take here."""


def commit(lake: Lake, value: int) -> None:
    with lake.writer.commit() as tx:
        for key in range(3):
            tx.upsert("t", {"id": key, "v": value})


def start_reading(lake: Lake) -> Callable[[], set[int]]:
    """Load the version that there is. What is returned reads it: pyiceberg in Iceberg."""
    match lake.choice.name:
        case "iceberg":
            catalog = SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.warehouse}/catalog.db")
            scan = catalog.load_table("public.t").scan()
            return lambda: set(scan.to_arrow()["v"].to_pylist())
        case "delta":
            frame = lake.cut()["public.t"]
            return lambda: {row["v"] for row in frame.collect()}
        case _:
            connection = psycopg.connect(lake.choice.address)
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT 1 FROM twofold.cuts")

            def read() -> set[int]:
                with closing(connection):
                    return {row[0] for row in connection.execute("SELECT v FROM public.t").fetchall()}

            return read


@pytest.mark.parametrize(
    "kept", ["iceberg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("beside", "delta", "jdbc"))], indirect=True
)  # fmt: skip
def test_maintenance_behind_a_quiet_time_leaves_a_running_reader_its_version(kept: Lake) -> None:
    kept.writer.table(table("t", {"id": "int8", "v": "int8"}), partitions=1)
    for value in (1, 2):
        commit(kept, value)
        kept.mirror()
    time.sleep(KEPT.total_seconds())  # the version is older than any that maintenance keeps for its age
    reader, another = start_reading(kept), start_reading(kept)
    for value in (3, 4):  # maintenance never takes the last two
        commit(kept, value)
    kept.mirror(batch_rows=1, maintain_every=1, keep_cuts=KEPT)
    assert reader() == {2}
    kept.assert_equal()
    commit(kept, 5)
    kept.mirror(maintain_every=1, keep_cuts=dt.timedelta(0))
    if kept.choice.name == "iceberg":
        with pytest.raises(FileNotFoundError):
            another()
    else:
        assert another() == {2}, "Delta keeps files for a week, and PostgreSQL rows as long as a snapshot sees them"
