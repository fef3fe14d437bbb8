"""A mirror that merged into `main`, as versions before published cuts did, goes over to them in
place: under load, and killed on the way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from fixtures.connector import Maker
from fixtures.spark import Lake
from helpers.spark import process as spark_process
from helpers.spark.sourced import NAMES, changing, read_items, verify
from readers.catalogs import SqlTables, read_metadata
from twofold_spark.sinks.iceberg_branches import MERGES

_EARLIER = """
import sys
from twofold_spark.job import cli
from twofold_spark.sinks import iceberg_branches
iceberg_branches.choose_branch = lambda *_: "main"
sys.exit(cli.main(sys.argv[1:]))
"""
_LOOK_S = 0.01


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_mirror_of_an_earlier_version_goes_over_under_load_though_it_is_killed_on_the_way(
    lake: Lake, connector: Maker, kills: int
) -> None:
    """The kills come at its first branch and at its first merges before their cut; in the long form
    also at any instant after a cut, and the earlier version runs again in between."""
    rng = random.Random(9)
    with _tables(lake) as tables, changing(lake, connector) as (here, load):
        for kill in range(kills):
            if kill % 4 == 0:
                _run_earlier(lake)
                former = lake.cut().cut.sequence
            _run_and_kill(lake, tables, kill % 4, rng)
        with spark_process.running(lake) as process:
            spark_process.cuts(process, 1)
            load.close()
            here.caught_up(120)
            verify(lake, here)
            process.terminate()
            _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert _branches(tables).keys() == set(NAMES)
        assert {row["id"]: row["version"] for row in lake.spark.table(f"{lake.catalog}.public.item").collect()} == (
            read_items(here)
        ), "the plain name has the last cut"
        assert lake.cut(sequence=former).cut.sequence == former, "the earlier version's cuts are still there"


def _run_earlier(lake: Lake) -> None:
    """As it was left: killed within a batch."""
    with spark_process.running(lake, "--batch-rows", "40", program=("-c", _EARLIER)) as process:
        spark_process.cuts(process, 3)
        os.killpg(process.pid, signal.SIGKILL)


def _run_and_kill(lake: Lake, tables: SqlTables, when: int, rng: random.Random) -> None:
    heads = _branches(tables)
    with spark_process.running(lake, "--batch-rows", "40") as process:
        match when:
            case 0:
                _await(process, lambda: bool(_moved(tables, heads)))
            case 1:
                _await(process, lambda: _moved(tables, heads) >= {"item", "line"})
            case _:
                spark_process.cuts(process, rng.randrange(1, 4))
                time.sleep(rng.random())  # any instant of a batch will do
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _tables(lake: Lake) -> Iterator[SqlTables]:
    tables = SqlTables("sqlite", f"sqlite:///{lake.warehouse}/catalog.db", lake.catalog)
    try:
        yield tables
    finally:
        tables.close()


def _branches(tables: SqlTables) -> dict[str, int]:
    """Return the snapshot at the head of each table's branch, of those that have one."""
    refs = {name: _read_refs(location) for name, location in tables.locations().items()}
    return {name: its[MERGES]["snapshot-id"] for name, its in refs.items() if MERGES in its}


@cache
def _read_refs(location: str) -> dict[str, Any]:
    """Read once what never changes, because the looks are many and the job needs the processor."""
    found: dict[str, Any] = read_metadata(location)["refs"]
    return found


def _moved(tables: SqlTables, heads: Mapping[str, int]) -> set[str]:
    """Return the tables whose branches have other heads than these."""
    return {name for name, head in _branches(tables).items() if heads.get(name) != head}


def _await(process: subprocess.Popen[str], seen: Callable[[], bool]) -> None:
    while not seen():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(_LOOK_S)
