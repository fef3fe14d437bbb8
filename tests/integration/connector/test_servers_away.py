"""Servers that die and come back: whatever the connector was doing, it goes on by itself, and the topics are what the source committed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

import pytest

from connector_topics import COMMITTED, UNCOMMITTED
from connector_workload import Workload
from fix_connector import Installation, Maker, Running, wait_until
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer


def is_asleep(run: Running) -> bool:
    return run.asleep


def test_the_broker_is_killed_and_comes_back_in_every_state(
    connector: Maker, own_kafka: Callable[..., KafkaCluster]
) -> None:
    kafka = own_kafka()
    here = connector(kafka_server=kafka, kafka={"call_timeout": 10.0})
    work = Workload(here, seed=7)
    for place in ("after_flush:2", "before_commit:3", "after_open:2", "before_abort"):
        run = here.start(f"{place}=stop")
        work.run()
        wait_until(partial(is_asleep, run), what=place)
        kafka.kill()
        run.signal(signal.SIGCONT)
        work.run()
        kafka.start()
        here.caught_up()
        run.stop()
    here.start()
    work.settle()
    here.check()


@pytest.mark.parametrize("place", ["before_commit:2", "after_open"])
def test_a_transaction_that_the_broker_timed_out(place: str, connector: Maker) -> None:
    here = connector(kafka={"transaction_timeout": 2.0}, prepared={"hold": 1.5})
    work = Workload(here, seed=8)
    run = here.start(f"{place}=stop")
    work.run()
    wait_until(partial(is_asleep, run))
    wait_until(lambda: readable_to_the_end(here), 60, "the broker has ended the transaction")
    run.signal(signal.SIGCONT)
    work.run()
    work.settle()
    here.check()
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


def test_postgresql_is_killed_with_prepared_transactions_open(
    connector: Maker, own_postgres: Callable[..., PostgresServer]
) -> None:
    """A crash forgets confirmed positions that were not written yet: what is sent again is passed over."""
    server = own_postgres()
    here = connector(conninfo=server.dsn())
    work = Workload(here, seed=9)
    work.running = run = here.start()
    for _ in range(2):
        work.run()
        gid = work.prepare(open_it=True)
        here.caught_up()
        server.kill()
        server.start()
        work.connect()
        work.commit(gid)
        work.run()
    work.settle()
    here.check()
    run.stop()


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
    wait_until(lambda: "the run has ended (Unreachable" in run.said()[said:])
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
