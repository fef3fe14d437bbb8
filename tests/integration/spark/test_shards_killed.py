"""Databases that are shards of one table, their connectors and the mirror's process killed: by its
plain name each row is there once, whenever it is read, and in Delta in the last cut too.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fixtures.connector import Maker, wait_until
from helpers.connector import moving_accounts
from helpers.connector.moving_accounts import Mover
from helpers.spark import interpreted
from helpers.spark.group_lake import GroupLake, start_members
from helpers.spark.group_process import publishes, running
from helpers.spark.shards import (
    Program,
    assert_verified,
    make_duckdb,
    read_plainly,
    reading_all_the_time,
    shows_the_sources,
)
from readers.catalogs import SqlTables
from twofold_spark.sinks.sharding import Sharding
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
"""The short form is in test_sharded_tables.py: the driver dies, in the process of the test."""

_BATCH_S = 4.0
"""The mirror is killed at any instant of about a batch."""


@pytest.mark.parametrize(
    ("sink", "databases", "kills", "reads"), [("iceberg", 3, 2, 300), ("delta", 3, 4, 100), ("iceberg", 8, 10, 10_000)]
)
def test_each_row_is_there_once_whatever_is_killed(
    spark: SparkSession, connector: Maker, tmp_path: Path, sink: str, databases: int, kills: int, reads: int
) -> None:
    members = start_members(connector, many=databases, prepare=moving_accounts.fill)
    lake = GroupLake(spark, tmp_path, members, sharding=Sharding.parse("*"))
    if sink == "delta":
        lake.choice = SinkChoice("delta", str(tmp_path / "delta"))
    wait_until(lambda: shows_the_sources(lake), 600, "the table has the rows of all")
    place = ("--warehouse", str(tmp_path / "group"), "--catalog", lake.catalog)
    rng, mover = random.Random(3), Mover(members)
    with ExitStack() as ending:
        mover.start()
        ending.callback(mover.stop)
        other = _open_duckdb(lake, ending) if sink == "iceberg" else lambda: _read_last_cut(lake)
        counts = ending.enter_context(reading_all_the_time(lambda: read_plainly(lake), other))
        for number in range(kills):
            with running(lake, *place, "--trigger", "interval=100ms", environment=interpreted.ENVIRONMENT) as job:
                publishes(job, rng.randint(1, 3))
                killed = rng.choice(list(members.values()))
                killed.runs[-1].kill9()
                time.sleep(rng.uniform(0, _BATCH_S))  # any instant will do
                os.killpg(job.pid, signal.SIGKILL)
                killed.start()
            print(f"kill {number + 1} of {kills}, {counts} reads, {mover.moves} moves", flush=True)
        with running(lake, *place, "--trigger", "interval=100ms") as job:
            while sum(counts) < reads:
                publishes(job, 1)
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of all")
    assert min(counts) >= reads // 10
    assert mover.moves > 5 * kills
    assert_verified(lake)


def _read_last_cut(lake: GroupLake) -> list[dict[str, Any]]:
    return [row.asDict() for row in lake.read()["public.account"].collect()]


def _open_duckdb(lake: GroupLake, ending: ExitStack) -> Program:
    """Make a program that reads the table by the file that the catalog names."""
    tables = SqlTables("sqlite", f"sqlite:///{lake.folder}/group/catalog.db", lake.catalog)
    ending.callback(tables.close)
    return make_duckdb(tables, ending)
