"""A real PgDog moves rows between shards, is killed between the two phases, and ends by itself what
it left: by the table's plain name each row is there once, whenever it is read.

The test needs PgDog 0.1.51 or newer: `TWOFOLD_PGDOG` is the path of its program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.connector import ledger
from helpers.connector.moving_accounts import read_sources
from helpers.spark.group_lake import GroupLake
from helpers.spark.pgdog import HOME, PROGRAM, PgDog, Teller, fill, move, pay, pay_in_one_statement
from helpers.spark.shards import (
    assert_verified,
    assert_whole,
    read_plainly,
    reading_all_the_time,
    shows_the_sources,
)
from twofold.config import load
from twofold.run.initialisation import initialise
from twofold_spark.sinks.sharding import Sharding
from twofold_spark.sinks.sink_choice import SinkChoice

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PROGRAM, reason="needs PgDog: set TWOFOLD_PGDOG to the path of its program"),
]
DATABASES = 3
KILLS = 4
MOVES = "SELECT count(*) FROM ledger WHERE tbl = 'account' AND op = 'd'"


@pytest.fixture
def members(connector: Maker) -> Mapping[str, Installation]:
    names = sorted(fresh_prefix() for _ in range(DATABASES))
    made = {name: connector(name=name, init=False, group={"name": names[0], "members": names}) for name in names}
    for here in made.values():
        here.sql(ledger.SCHEMA, HOME)
        initialise(load(here.file), print)
    for here in made.values():
        here.start()
    return made


@pytest.fixture
def pgdog(members: Mapping[str, Installation], tmp_path: Path) -> Iterator[PgDog]:
    pgdog = PgDog(tmp_path / "pgdog", [here.conninfo for here in members.values()])
    pgdog.start()
    yield pgdog
    pgdog.stop()


@pytest.mark.parametrize("sink", ["iceberg", "jdbc"])
def test_each_row_is_there_once_while_pgdog_moves_it(
    spark: SparkSession,
    members: Mapping[str, Installation],
    pgdog: PgDog,
    tmp_path: Path,
    sink: str,
    request: pytest.FixtureRequest,
) -> None:
    fill(pgdog)
    assert len({prefix for prefix, _, _ in read_sources(members).values()}) == DATABASES
    lake = GroupLake(spark, tmp_path, members, next(iter(members)), sharding=Sharding.parse("*"))
    if sink == "jdbc":
        lake.choice = SinkChoice("jdbc", request.getfixturevalue("database"))
    wait_until(lambda: shows_the_sources(lake), 600, "the table has the rows of all")
    with ExitStack() as ending:
        for seed, work in enumerate((pay, move, move, pay_in_one_statement)):
            teller = Teller(pgdog, work, seed)
            teller.start()
            ending.callback(teller.stop)
        reads = ending.enter_context(reading_all_the_time(lambda: read_plainly(lake)))
        lake.follow_during(lambda: _kill_again_and_again(pgdog, lake, reads))
    wait_until(lambda: not _list_prepared(lake), 60, "every transaction has its outcome")
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of all")
    assert_whole(read_plainly(lake))
    assert sum(here.ask(MOVES) for here in members.values()) > 20 * KILLS
    assert_verified(lake)


def _kill_again_and_again(pgdog: PgDog, lake: GroupLake, reads: list[int]) -> None:
    for _ in range(KILLS):
        _wait_for_cuts(lake)
        _wait_for_reads(reads)
        while not (left := _kill_between_phases(pgdog, lake, reads)):
            pgdog.start()
        pgdog.start()
        _wait_for_outcomes(lake, left)


def _kill_between_phases(pgdog: PgDog, lake: GroupLake, reads: list[int]) -> set[str]:
    """Return the branches that it left prepared, once the table was read without it."""
    wait_until(lambda: _list_prepared(lake), 60, "a transaction is between its phases")
    pgdog.kill()
    _wait_for_reads(reads)
    return _list_prepared(lake)


def _wait_for_cuts(lake: GroupLake) -> None:
    before = len(lake.published)
    wait_until(lambda: len(lake.published) > before + 2, 300, "the mirror publishes")


def _wait_for_reads(reads: list[int]) -> None:
    before = reads[0]
    wait_until(lambda: reads[0] > before + 20, 300, "the table is read while this goes on")


def _wait_for_outcomes(lake: GroupLake, left: set[str]) -> None:
    wait_until(lambda: not left & _list_prepared(lake), 60, "PgDog has ended what it left")


def _list_prepared(lake: GroupLake) -> set[str]:
    here = next(iter(lake.members.values()))
    names = [conninfo_to_dict(each.conninfo)["dbname"] for each in lake.members.values()]
    with psycopg.connect(here.conninfo) as connection:
        rows = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = ANY(%s)", (names,))
        return {gid for (gid,) in rows}
