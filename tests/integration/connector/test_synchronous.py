"""Synchronous PREPARE: when PREPARE TRANSACTION returns, Kafka has the rows.
docs/learn/two-phase.md tells how it is set up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from statistics import quantiles
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import VERSION, fresh_database, fresh_prefix
from helpers.connector.topics import UNCOMMITTED, gid_of
from twofold.stack import KafkaCluster, PostgresServer


class Synchronous:
    """An installation whose connector is the server's one synchronous standby.

    Only coordinators wait for it.
    """

    def __init__(self, here: Installation) -> None:
        self.here = here
        self.threads = ThreadPoolExecutor(40)

    def appoint(self) -> None:
        """The connector's slot is there: now it may be named."""
        self.here.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{self.here.prefix}'", "SELECT pg_reload_conf()")
        wait_until(lambda: self.here.ask("SHOW synchronous_standby_names") == self.here.prefix)

    def coordinator(self, gid: str, *statements: str, pids: list[int] | None = None) -> float:
        """Prepares, and gives the time that PREPARE TRANSACTION took."""
        with psycopg.connect(self.here.conninfo, autocommit=True) as session:
            session.execute("SET synchronous_commit = remote_write")
            if pids is not None:
                pids.append(session.info.backend_pid)
            for statement in ("BEGIN", *statements):
                session.execute(statement.encode())
            begun = time.monotonic()
            session.execute(f"PREPARE TRANSACTION '{gid}'".encode())
            return time.monotonic() - begun

    def in_background(self, gid: str, *statements: str, pids: list[int] | None = None) -> Future[float]:
        return self.threads.submit(self.coordinator, gid, *statements, pids=pids)

    def waits(self, statement: Future[Any], words: str) -> None:
        """It has been done in PostgreSQL, and does not return."""
        wait_until(
            lambda: self.elsewhere(
                f"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%{words}%'"
            )
        )
        with suppress(NotYet):
            raise AssertionError(f"it returned {statement.result(2)}")

    def elsewhere(self, query: str) -> Any:
        """The one value that it gives, asked in another database of the server: there a session can
        always begin.
        """
        with psycopg.connect(make_conninfo(self.here.conninfo, dbname="postgres"), autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
            return row[0] if row else None

    def rows_there(self, gid: str) -> list[int]:
        return [s.value["after"]["id"] for s in self.here.read("account", UNCOMMITTED) if gid_of(s) == gid]


@pytest.fixture(scope="module")
def server(stack_folder: Path) -> Iterator[PostgresServer]:
    made = PostgresServer(
        stack_folder / "synchronous", settings={"synchronous_commit": "local", "fsync": "off"}, version=VERSION
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
def here(connector: Maker, server: PostgresServer) -> Iterator[Installation]:
    with fresh_database(server, f"db_{fresh_prefix()}") as conninfo:
        made = connector(conninfo=conninfo, prepared={"synchronous": True})
        yield made
        made.close()  # before its database goes


@pytest.fixture
def sync(here: Installation) -> Iterator[Synchronous]:
    yield Synchronous(here)
    here.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")


def insert(key: int) -> str:
    return f"INSERT INTO account VALUES ({key}, 1, 'x')"


@pytest.mark.core
def test_prepare_returns_when_the_rows_can_be_read(sync: Synchronous) -> None:
    here = sync.here
    here.configure({"prepared": {"pool": 10}})  # none of them has to wait for another's outcome
    run = here.start()
    sync.appoint()
    flushed = "SELECT sync_state = 'sync' AND flush_lsn > '0/0' FROM pg_stat_replication"
    assert wait_until(lambda: here.ask(flushed))

    for n in range(1, 11):
        sync.coordinator(f"g{n}", insert(n))
        assert sync.rows_there(f"g{n}") == [n]
    assert here.read("account") == []

    # Nothing that is published: released by what the connector says of the stream's end.
    with psycopg.connect(here.conninfo, autocommit=True) as session:
        session.execute("SET synchronous_commit = remote_write")
        begun = time.monotonic()
        session.execute("INSERT INTO unpublished (filler) VALUES ('x')")
        session.execute("CREATE TABLE not_published (id int)")
        print(f"two transactions with nothing published: {time.monotonic() - begun:.3f} s")
    sync.coordinator("empty", "INSERT INTO unpublished (filler) VALUES ('x')")

    here.sql(
        "ROLLBACK PREPARED 'empty'", *(f"{'COMMIT' if n % 2 else 'ROLLBACK'} PREPARED 'g{n}'" for n in range(1, 11))
    )
    topics = here.check()
    assert {s.value["after"]["id"] for s in topics.rows if s.value["after"]["id"]} == {1, 3, 5, 7, 9}
    run.stop()


def test_one_that_is_parked_by_a_rule_is_acknowledged_at_once(sync: Synchronous) -> None:
    here = sync.here
    here.configure({"prepared": {"rules": [{"gid": "later*", "action": "park"}]}})
    here.carry()
    sync.appoint()
    sync.coordinator("later 1", insert(1))
    assert sync.rows_there("later 1") == []
    here.sql("COMMIT PREPARED 'later 1'")
    here.check()


def test_without_the_broker_prepare_does_not_return_and_a_rollback_leaves_nothing(
    connector: Maker, server: PostgresServer, own_kafka: Callable[[], KafkaCluster], sync: Synchronous
) -> None:
    kafka = own_kafka()
    here = connector(
        conninfo=sync.here.conninfo,
        kafka_server=kafka,
        prepared={"synchronous": True},
        kafka={"call_timeout": 5.0},
        init=False,
    )
    here.init()
    sync.here = here
    here.start()
    sync.appoint()
    sync.coordinator("before", insert(1))
    kafka.kill()
    pids: list[int] = []
    prepare = sync.in_background("never", insert(2), pids=pids)
    sync.waits(prepare, "never")

    # The coordinator's own deadline has come: it ends its session, and takes the transaction back.
    here.ask(f"SELECT pg_terminate_backend({pids[0]})")
    with pytest.raises(psycopg.OperationalError):
        prepare.result(20)
    here.sql("ROLLBACK PREPARED 'never'")
    kafka.start()
    here.sql("COMMIT PREPARED 'before'")
    topics = here.check()
    assert {s.value["after"]["id"] for s in topics.rows} == {0, 1}


def test_the_connector_is_killed_before_it_has_acknowledged(sync: Synchronous) -> None:
    here = sync.here
    dying = here.start("after_open")
    sync.appoint()
    prepare = sync.in_background("g", insert(1))
    assert dying.ended() == -9
    sync.waits(prepare, "g")
    here.start()
    prepare.result(30)
    assert sync.rows_there("g")
    here.sql("COMMIT PREPARED 'g'")
    here.check()


@pytest.mark.parametrize(
    ("catalog", "outcome"),
    [("pg_publication_rel", "ROLLBACK"), pytest.param("pg_class", "COMMIT", marks=pytest.mark.slow)],
)
def test_a_prepared_transaction_that_holds_a_catalog(sync: Synchronous, catalog: str, outcome: str) -> None:
    """The connector cannot begin before it ends, and its PREPARE does not return before the
    connector has begun.
    """
    here = sync.here
    here.configure({"source": {"dsn": make_conninfo(here.conninfo, connect_timeout=2)}})
    here.start().kill9()
    sync.appoint()
    pids: list[int] = []
    with psycopg.connect(here.conninfo, autocommit=True) as open_already, ending(sync, open_already, "shuts", pids):
        lock = f"LOCK TABLE pg_catalog.{catalog} IN ACCESS EXCLUSIVE MODE"
        prepare = sync.in_background("shuts", lock, insert(1), pids=pids)
        sync.waits(prepare, "shuts")
        run = here.start(ready=False)
        wait_until(lambda: f"process {pids[0]}" in status(here), 90, "status names who prepares")
        assert f"AccessExclusiveLock on table {catalog}" in status(here)

        # The coordinator's own deadline has come. What it prepared keeps the lock.
        sync.elsewhere(f"SELECT pg_terminate_backend({pids[0]})")
        with pytest.raises(psycopg.OperationalError):
            prepare.result(20)
        wait_until(lambda: "prepared transaction 'shuts'" in status(here), 90, "status names what is prepared")

        # Ending it waits for the connector too, and keeps the lock meanwhile: one does not ask to
        # wait, or cancels the wait.
        if outcome == "ROLLBACK":
            open_already.execute("SET synchronous_commit = local")
            open_already.execute("ROLLBACK PREPARED 'shuts'")
        else:
            open_already.execute("SET synchronous_commit = remote_write")
            committing = sync.threads.submit(open_already.execute, "COMMIT PREPARED 'shuts'")
            sync.waits(committing, "COMMIT PREPARED")
            assert sync.elsewhere(f"SELECT pg_cancel_backend({open_already.info.backend_pid})")
            committing.result(20)
    run.wait_for("recovered:")
    topics = here.check()
    assert {s.value["after"]["id"] for s in topics.rows} == ({0, 1} if outcome == "COMMIT" else {0})
    assert "shuts" not in status(here)


@contextmanager
def ending(sync: Synchronous, session: psycopg.Connection[Any], gid: str, pids: list[int]) -> Iterator[None]:
    """Whatever comes: a transaction that keeps everybody out of its database does not outlive the
    test.
    """
    try:
        yield
    finally:
        for pid in pids:
            sync.elsewhere(f"SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE pid = {pid}")
        session.execute("SET synchronous_commit = local")
        with suppress(psycopg.errors.UndefinedObject):
            session.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def status(here: Installation) -> str:
    """Whatever it answers, as a person sees it."""
    said = here.twofold("status")
    return said.stdout + said.stderr


@pytest.mark.parametrize("pool", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_twenty_side_by_side(sync: Synchronous, pool: int) -> None:
    """Also more than can be open at once; and what it costs them."""
    here = sync.here
    here.configure({"prepared": {"pool": pool}})
    here.carry()

    def client(number: int) -> list[float]:
        took = []
        for n in range(3):
            gid = f"c{number} {n}"
            took.append(sync.coordinator(gid, insert(1000 * number + n)))
            here.sql(f"COMMIT PREPARED '{gid}'")
        return took

    def say(how: str, took: list[float]) -> None:
        middle, most = quantiles(took, n=20)[9], quantiles(took, n=20)[18]
        words = f"median {middle * 1000:.0f} ms, 95 % {most * 1000:.0f} ms, longest {max(took) * 1000:.0f} ms"
        print(f"PREPARE, {how}, pool {pool}: {words}")

    say("asynchronous, one client", client(1))
    with ThreadPoolExecutor(20) as clients:
        say("asynchronous, 20 clients", [*chain(*clients.map(client, range(101, 121)))])
    sync.appoint()
    say("synchronous, one client", client(2))
    with ThreadPoolExecutor(20) as clients:
        say("synchronous, 20 clients", [*chain(*clients.map(client, range(201, 221)))])
    here.check()
