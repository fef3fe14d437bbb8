"""Jobs that are killed at random times in batches while a bank of a real source is at work: the
tables equal the source, read by programs that know nothing of the product, and every cut that a
reader saw was whole.

The times come from `random`, whose seed pytest-randomly prints: `--randomly-seed` repeats them.
TWOFOLD_TEST_KILLS is how often each job is killed, 20 times if it is not set.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from fixtures.connector import Maker
from fixtures.object_store import ObjectStore, opened_stored_lake
from fixtures.spark import Lake
from helpers.spark import class_archive, interpreted
from helpers.spark import process as spark_process
from helpers.spark.plain_tables import IcebergTables, TotalsThread, assert_equal_to_source, open_tables
from helpers.spark.source_bank import make_change, opened_bank
from helpers.spark.writer import Writer
from readers.catalogs import RestTables
from readers.programs import READERS, make_reader
from readers.rest_session import RestAccess
from readers.trial import try_transfers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

KILLS: Final = int(os.environ.get("TWOFOLD_TEST_KILLS", "20"))
READS: Final = 25 * KILLS
_STARTS_S: Final = 12.0
"""About as long as a job takes to its first batch."""
_BATCH_S: Final = 2.0


def _kill(lake: Lake, rng: random.Random, command: str, *options: str) -> None:
    """Start a job and kill it while it starts, or some batches later, at any instant of one."""
    with spark_process.running(lake, *options, command=command, environment=interpreted.ENVIRONMENT) as process:
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0, _STARTS_S))
        else:
            spark_process.batches(process, command, rng.randrange(1, 4))
            time.sleep(rng.uniform(0, _BATCH_S))
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("kept", ["delta", "jdbc"], indirect=True)
def test_a_killed_mirror_equals_its_source(kept: Lake, connector: Maker) -> None:
    """After every fourth kill the checkpoint is lost as well."""
    rng = random.Random(random.getrandbits(32))
    with ExitStack() as ending:
        bank = ending.enter_context(opened_bank(kept, connector, rng))
        spark_process.run(kept, "--trigger", "available-now", within_s=900)
        totals = TotalsThread(open_tables(kept).read_total, pause_s=0.5)
        ending.callback(totals.stop)
        for kill in range(KILLS):
            _kill(kept, rng, "mirror", "--maintain-every", "200")
            if kill % 4 == 3:
                kept.lose_checkpoints()
            print(f"kill {kill + 1}: {bank.outcomes.total()} transactions, {totals.totals.total()} reads", flush=True)
        bank.stop()
        bank.last_sequence()
        spark_process.run(kept, "--trigger", "available-now", within_s=900)
        assert_equal_to_source(open_tables(kept), bank)
    print(f"{kept.choice.name}: {KILLS} kills, {dict(bank.outcomes)}, {totals.totals.total()} reads, 0 torn")


def test_a_killed_changelog_has_every_change_once(lake: Lake, connector: Maker) -> None:
    """After every fourth kill the checkpoint is lost as well."""
    rng = random.Random(random.getrandbits(32))
    with opened_bank(lake, connector, rng) as bank:
        for kill in range(KILLS):
            _kill(lake, rng, "changelog")
            if kill % 4 == 3:
                lake.lose_checkpoints()
            print(f"kill {kill + 1}: {bank.outcomes.total()} transactions", flush=True)
        bank.stop()
        bank.last_sequence()
        spark_process.run(lake, "--trigger", "available-now", command="changelog", within_s=900)
        found, wanted = _read_changelog(lake), bank.read_changes()
    assert found == wanted, (found - wanted, wanted - found)
    print(f"changelog: {KILLS} kills, {dict(bank.outcomes)}, {found.total()} changes, each once")


def _read_changelog(lake: Lake) -> Counter[tuple[Any, ...]]:
    """Read all changes, by pyiceberg, as the source's ledger has them."""
    catalog = SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.warehouse}/catalog.db")
    found: Counter[tuple[Any, ...]] = Counter()
    for identifier in catalog.list_tables("public_changelog"):
        for row in catalog.load_table(identifier).scan().to_arrow().to_pylist():
            image = row["after"] or row["before"]
            key = {"id": image["id"]} if "id" in image else None
            found[make_change(identifier[-1], row["op"], key, row["after"])] += 1
    return found


def test_a_killed_mirror_in_a_rest_catalog_and_s3_equals_its_source_and_no_reader_sees_two_cuts(
    spark: SparkSession,
    lake_writer: Writer,
    tmp_path: Path,
    connector: Maker,
    object_store: ObjectStore,
) -> None:
    """Spark, pyiceberg and DuckDB read by plain names, beside all kills. The store is one process
    of Python, so they rest half of the time.
    """
    class_archive.make(s3=True)
    rng = random.Random(random.getrandbits(32))
    with ExitStack() as ending:
        lake = ending.enter_context(opened_stored_lake(spark, lake_writer, tmp_path, object_store, at_once=True))
        access = RestAccess(lake.catalog_choice.uri)
        tables = RestTables("rest", access, commits_at_once=True, store=object_store)
        bank = ending.enter_context(opened_bank(lake, connector, rng))
        readers = [make_reader(name, lake, tables, ending) for name in READERS]
        outcome = try_transfers(lake, tables, readers, bank, options=(), reads=READS, kills=KILLS, rng=rng, rests=1.0)
        print(outcome.describe(), dict(bank.outcomes))
        assert outcome.torn == 0
        assert_equal_to_source(IcebergTables(tables.for_pyiceberg()), bank)
