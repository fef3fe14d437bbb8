"""Servers that die and come back: whatever the connector was doing, it goes on by itself, and the
topics are what the source committed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

import psycopg
import pytest

from fixtures.connector import Installation, Maker, Running, wait_until
from fixtures.crashes import Died
from helpers.connector.topics import COMMITTED, UNCOMMITTED
from helpers.connector.workload import Workload
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer

IN_RECOVERY = ("fence_main", "fence_prepared:2", "after_takeover", "after_progress_read")
EVERY_STATE = (
    *IN_RECOVERY,
    *("after_begin:4", "after_produce:3", "after_flush:2", "before_commit:3", "after_commit:4"),
    *("before_open", "after_open:2", "before_abort", "after_abort"),
)


def ended_as_often(run: Running, times: int) -> bool:
    return run.said().count("the run has ended") >= times


def is_asleep(run: Running) -> bool:
    return run.asleep


@pytest.mark.slow
@pytest.mark.parametrize(
    "places",
    [
        ("before_commit:3", "after_open:2"),
        pytest.param(EVERY_STATE, marks=pytest.mark.timeout(900)),
    ],
    ids=["two states", "every state"],
)
def test_the_broker_is_killed_and_comes_back(
    places: tuple[str, ...], connector: Maker, own_kafka: Callable[..., KafkaCluster], died: Died
) -> None:
    kafka = own_kafka()
    here = connector(kafka_server=kafka, kafka={"call_timeout": 10.0})
    work = Workload(here, seed=7)
    for place in places:
        work.running = run = here.start(f"{place}=stop", ready=place not in IN_RECOVERY)
        work.run()
        wait_until(partial(is_asleep, run), what=place)
        work.running = None
        kafka.kill()
        run.signal(signal.SIGCONT)
        work.run()
        kafka.start()
        here.caught_up()
        run.stop()
    here.start()
    work.settle()
    here.check()
    for place in places:
        died(place, "broker", "the run ends; recovery reads which outcome it was")


@pytest.mark.parametrize("place", ["before_commit:2", pytest.param("after_open", marks=pytest.mark.slow)])
def test_a_transaction_that_the_broker_timed_out(place: str, connector: Maker) -> None:
    here = connector(kafka={"transaction_timeout": 2.0}, prepared={"hold": 1.5})
    work = Workload(here, seed=8)
    work.running = run = here.start(f"{place}=stop")
    work.run()
    wait_until(partial(is_asleep, run))
    wait_until(lambda: readable_to_the_end(here), 90, "the broker has ended the transaction")
    run.signal(signal.SIGCONT)
    work.check()
    run.stop()


def readable_to_the_end(here: Installation) -> bool:
    """Nothing is open in the table's topic."""
    ends = []
    for isolation in (COMMITTED, UNCOMMITTED):
        tail = here.reader.tail([here.table("account"), here.table("transfer")], isolation)
        tail.to_end()
        tail.close()
        ends.append(tail.ends)
    return ends[0] == ends[1]


@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param("15", marks=pytest.mark.slow), "18"])
def test_postgresql_forgets_confirmed_positions(
    version: str, connector: Maker, own_postgres: Callable[..., PostgresServer], died: Died
) -> None:
    """It writes them at a checkpoint, or when restart_lsn moves, which an old transaction prevents;
    killed, it sends again what was confirmed, outcomes of prepared ones as well.
    """
    server = own_postgres(version=version, settings={"checkpoint_timeout": "1d"})
    here = connector(conninfo=server.dsn())
    work = Workload(here, seed=9)
    work.running = run = here.start()
    work.run()
    here.caught_up()
    old = psycopg.connect(here.conninfo)
    here.at_end(old.close)
    old.execute("INSERT INTO unpublished (filler) VALUES ('not ended')")
    before = here.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
    resolved = work.prepare(open_it=True)
    work.commit(resolved)
    work.rollback(work.prepare(open_it=True))
    work.plain()
    work.settle()
    here.caught_up()
    wait_until(lambda: here.slot("confirmed_flush_lsn - '0/0'") > before)
    in_doubt = work.prepare(open_it=True)
    run.kill9()
    confirmed = here.slot("confirmed_flush_lsn - '0/0'")
    server.kill()
    server.start()
    forgotten = confirmed - here.slot("confirmed_flush_lsn - '0/0'")
    assert forgotten > 0
    work.connect()
    work.running = run = here.start()
    work.commit(in_doubt)
    work.check()
    died(
        "confirmed positions are not durable",
        f"PostgreSQL {version}",
        "it sends confirmed changes again: skipped by applied_lsn",
    )
    run.stop()


@pytest.mark.core
def test_postgresql_is_killed_under_a_running_connector(
    connector: Maker, own_postgres: Callable[..., PostgresServer], died: Died
) -> None:
    server = own_postgres()
    here = connector(conninfo=server.dsn())
    work = Workload(here, seed=9)
    work.running = run = here.start()
    work.run()
    gid = work.prepare(open_it=True)
    server.kill()
    server.start()
    work.connect()
    work.commit(gid)
    work.check()
    died("a prepared transaction is open", "PostgreSQL", "the run recovers; its rows are sent and opened again")
    run.stop()


@pytest.mark.slow  # tests/integration/evolution has its outages in the short form
def test_the_registry_is_away_at_start_and_when_a_table_is_changed(
    connector: Maker, own_registry: Callable[[], RegistryServer]
) -> None:
    registry = own_registry()
    here = connector(registry_server=registry, registry={"timeout": 2.0})
    rows = here.tail("account")
    registry.kill()
    run = here.start(ready=False)
    run.wait_for("does not answer")
    registry.start()
    run.wait_for("recovered:")
    here.sql("INSERT INTO account VALUES (1, 1, 'a')")
    assert rows.wait_for(lambda s: s.value["after"]["id"] == 1)
    registry.kill()
    said = len(run.said())
    here.sql("ALTER TABLE account ADD COLUMN more int", "INSERT INTO account VALUES (2, 1, 'b', 3)")
    wait_until(lambda: "the stream waits up to" in run.said()[said:])
    registry.start()
    here.check()
    assert not run.dead
    rows.to_end()
    assert rows.wait_for(lambda s: s.value["after"]["id"] == 2)
    run.stop()


@pytest.mark.slow
def test_postgresql_away_at_start(connector: Maker, own_postgres: Callable[..., PostgresServer]) -> None:
    server = own_postgres()
    here = connector(conninfo=server.dsn())
    server.kill()
    run = here.start(ready=False)
    run.wait_for("the run has ended (Unreachable")
    server.start()
    run.wait_for("recovered:")
    here.check()
    run.stop()


def test_a_long_outage_leaves_no_clients_behind(connector: Maker) -> None:
    """Every attempt to recover makes some, and they have threads and connections."""
    here = connector()
    here.start().stop()
    here.configure({"registry": {"url": "http://127.0.0.1:9", "timeout": 1.0}})
    run = here.start(ready=False)
    counts = []
    for attempts in range(1, 4):
        wait_until(partial(ended_as_often, run, attempts))
        counts.append(sum(name == "rdk:main" for name in run.threads))
    run.stop()
    assert max(counts) <= counts[0] + 1, "one may be under way"
