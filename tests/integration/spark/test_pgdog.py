"""A real PgDog moves rows between shards, is killed between the two phases, and ends by itself what
it left: by the table's plain name each row is there once, whenever it is read.

The tests need PgDog 0.1.51 or newer: `TWOFOLD_PGDOG` is the path of its program.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from fixtures.catalogs import RestCatalogServer, catalog_options, one_at_a_time
from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_database, fresh_prefix
from helpers.connector import ledger
from helpers.connector.moving_accounts import read_sources
from helpers.spark import interpreted
from helpers.spark.group_lake import GroupLake
from helpers.spark.group_process import publishes, running
from helpers.spark.pgdog import HOME, PROGRAM, STAYING, PgDog, Teller, Work, fill, move, pay, pay_in_one_statement
from helpers.spark.shards import (
    assert_verified,
    assert_whole,
    make_duckdb,
    make_pyiceberg,
    read_plainly,
    reading_all_the_time,
    shows_the_sources,
)
from readers.catalogs import RestTables
from readers.rest_session import RestAccess
from twofold.stack import PostgresServer
from twofold_spark.catalog_choice import CatalogChoice
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

READS: Final = int(os.environ.get("TWOFOLD_TEST_PGDOG_READS", "10000"))
KILLS_OF_ALL: Final = max(2, READS // 1000)
MANY: Final = range(1, 101)
TENTH: Final = MANY[-10:]
"""The keys that get another shard."""
PAYING: Final = [each for each in MANY if each not in STAYING]
_PAID: Final = """
    SELECT count(*) FROM (
        SELECT FROM ledger WHERE tbl = 'account' AND op = 'u' GROUP BY xid HAVING {}
    ) AS transactions
"""
PAID_WITHIN: Final = _PAID.format("count(*) = 2")
"""Payments whose accounts are in one shard."""
PARTS_OF_ACROSS: Final = _PAID.format(f"count(*) = 1 AND max((key ->> 'id')::int) < {TENTH[0]}")
"""Of payments whose accounts are in two, those parts that can be no row that moved."""


@pytest.fixture
def members(connector: Maker) -> Mapping[str, Installation]:
    return _start_members(connector, DATABASES)


def _start_members(connector: Maker, many: int, *servers: PostgresServer) -> Mapping[str, Installation]:
    """Start the connectors of databases that these servers have by turns, or the session's."""
    names = sorted(fresh_prefix() for _ in range(many))
    group = {"name": names[0], "members": names}
    databases = dict.fromkeys(names, "")
    if servers:
        databases = {
            name: connector.ending.enter_context(fresh_database(server, f"db_{name}"))
            for name, server in zip(names, cycle(servers), strict=False)
        }
    made = {name: connector(name=name, conninfo=databases[name], init=False, group=group) for name in names}
    for here in made.values():
        here.sql(ledger.SCHEMA, HOME)
        here.initialise()
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
    lake = GroupLake(spark, tmp_path, members, sharding=Sharding.parse("*"))
    if sink == "jdbc":
        lake.choice = SinkChoice("jdbc", request.getfixturevalue("database"))
    wait_until(lambda: shows_the_sources(lake), 600, "the table has the rows of all")
    with ExitStack() as ending:
        _start_tellers(pgdog, (pay, move, move, pay_in_one_statement), ending)
        reads = ending.enter_context(reading_all_the_time(lambda: read_plainly(lake)))
        lake.follow_during(lambda: _kill_again_and_again(pgdog, lake, reads))
    wait_until(lambda: not _list_prepared(lake), 90, "every transaction has its outcome")
    wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of all")
    assert_whole(read_plainly(lake))
    assert sum(here.ask(MOVES) for here in members.values()) > 20 * KILLS
    assert_verified(lake)


@pytest.mark.timeout(7200)
def test_no_read_of_ten_thousand_is_torn_while_shards_move_and_all_is_killed(
    spark: SparkSession,
    own_postgres: Callable[..., PostgresServer],
    connector: Maker,
    rest_catalog: RestCatalogServer,
    tmp_path: Path,
) -> None:
    """Eight databases on two servers, whose mirror is in a REST catalog. PgDog, a connector and the
    mirror's process are killed in each round. pyiceberg and DuckDB read the table by its name.
    """
    members = _start_members(connector, 8, own_postgres(), own_postgres())
    pgdog, rng = PgDog(tmp_path / "pgdog", [here.conninfo for here in members.values()]), random.Random(3)
    with ExitStack() as ending:
        ending.callback(pgdog.stop)
        pgdog.start()
        fill(pgdog, MANY)
        assert len({prefix for prefix, _, _ in read_sources(members).values()}) == len(members)
        address, _ = ending.enter_context(one_at_a_time(rest_catalog))
        choice = CatalogChoice.choose(None, address, {"warehouse": str(rest_catalog.folder)})
        lake = GroupLake(spark, tmp_path, members, sharding=Sharding.parse("*"), catalog_choice=choice)
        place = (
            *("--warehouse", str(tmp_path / "group"), "--catalog", lake.catalog),
            *(*catalog_options(choice, tmp_path), "--trigger", "interval=100ms"),
        )
        environment = interpreted.make_environment(lake.member_settings)
        wait_until(lambda: shows_the_sources(lake), 600, "the table has the rows of all")
        tables = RestTables("rest", RestAccess(address), commits_at_once=True)
        with ExitStack() as working:
            reshard = partial(move, accounts=TENTH)
            transfer = partial(pay, accounts=PAYING)
            works = transfer, transfer, reshard, reshard, pay_in_one_statement
            _start_tellers(pgdog, works, working, pause_s=0.25)  # or eight connectors take two cores for themselves
            programs = make_pyiceberg(tables), make_duckdb(tables, working)
            counts = working.enter_context(reading_all_the_time(*programs, accounts=MANY))
            for number in range(KILLS_OF_ALL):
                with running(lake, *place, environment=environment) as job:
                    publishes(job, rng.randint(1, 3))
                    killed = rng.choice(list(members.values()))
                    killed.runs[-1].kill9()
                    while not (left := _kill_between_phases(pgdog, lake, counts)):
                        pgdog.start()
                    time.sleep(rng.uniform(0, 4))  # any instant of a batch will do
                    os.killpg(job.pid, signal.SIGKILL)
                    killed.start()
                    pgdog.start()
                    _wait_for_outcomes(lake, left)
                print(f"kill {number + 1} of {KILLS_OF_ALL}, {counts} reads, {_sum(members, MOVES)} moves", flush=True)
            with running(lake, *place, environment=environment) as job:
                while sum(counts) < READS:
                    before = [*counts]
                    publishes(job, 3)
                    assert all(now > then for now, then in zip(counts, before, strict=True)), counts
        wait_until(lambda: not _list_prepared(lake), 90, "every transaction has its outcome")
        wait_until(lambda: shows_the_sources(lake), 300, "the table has the rows of all")
        assert_whole(read_plainly(lake), MANY)
        assert min(counts) >= READS // 10
        moves, within, parts = (_sum(members, query) for query in (MOVES, PAID_WITHIN, PARTS_OF_ACROSS))
        print(
            f"{counts} reads, 0 torn; {moves} moves, payments {within} within, {parts // 2} across shards", flush=True
        )
        assert moves >= 10 * len(TENTH)
        assert min(within, parts // 2) > 20
        assert_verified(lake)


def _sum(members: Mapping[str, Installation], query: str) -> int:
    return int(sum(here.ask(query) for here in members.values()))


def _start_tellers(pgdog: PgDog, works: Sequence[Work], ending: ExitStack, pause_s: float = 0.02) -> None:
    for seed, work in enumerate(works):
        teller = Teller(pgdog, work, seed, pause_s)
        teller.start()
        ending.callback(teller.stop)


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
    wait_until(lambda: _list_prepared(lake), 90, "a transaction is between its phases")
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
    wait_until(lambda: not left & _list_prepared(lake), 90, "PgDog has ended what it left")


def _list_prepared(lake: GroupLake) -> set[str]:
    """Ask each server once."""
    databases = {each.conninfo: conninfo_to_dict(each.conninfo) for each in lake.members.values()}
    names = [parts["dbname"] for parts in databases.values()]
    found = set[str]()
    for conninfo in {parts["port"]: conninfo for conninfo, parts in databases.items()}.values():
        with psycopg.connect(conninfo) as connection:
            rows = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = ANY(%s)", (names,))
            found |= {gid for (gid,) in rows}
    return found
