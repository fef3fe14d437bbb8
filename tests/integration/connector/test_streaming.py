"""Transactions that PostgreSQL sends before they end: whole or not at all, without what was taken
back, as if they had come at their end.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_database, fresh_prefix
from helpers.connector.topics import UNCOMMITTED, gid_of
from helpers.source.streaming import SideBySide, force, streamed
from twofold.inspect.status_report import read_progress
from twofold.stack import PostgresServer

LINE = "(SELECT string_agg(md5(n::text || i::text), '') FROM generate_series(1, 300) n)"
"""Some 10 kB that do not get smaller."""


MODES = [
    *(("16", "parallel"), ("18", "off"), pytest.param("18", "on", marks=pytest.mark.core)),
    *(
        pytest.param(*mode, marks=pytest.mark.slow)
        for mode in (
            ("15", "off"),
            ("15", "on"),
            ("16", "off"),
            ("16", "on"),
            ("17", "off"),
            ("17", "on"),
            ("17", "parallel"),
            ("18", "parallel"),
        )
    ),
]


@pytest.mark.parametrize(("version", "streaming"), MODES)
def test_the_example_of_postgresqls_documentation(
    version: str, streaming: str, connector: Maker, server_of: Callable[[str | None], PostgresServer]
) -> None:
    """Insert, PREPARE TRANSACTION, COMMIT PREPARED; and again with ROLLBACK PREPARED: what readers
    of the topic see after each, as the documentation looks after each at the slot's changes.
    """
    with fresh_database(server_of(version), f"db_{fresh_prefix()}") as conninfo:
        here = connector(conninfo=conninfo)
        force(here, streaming)
        with here.carrying():
            the_example(here)
            topics = here.check()
        assert {s.value["after"]["id"] for s in topics.rows} == {0, *range(1, 11)}
        wait_until(lambda: (streamed(here) > 0) == (streaming != "off"), 90, "the statistics tell what was streamed")


def the_example(here: Installation) -> None:
    everybody, committed = here.tail("account", isolation=UNCOMMITTED), here.tail("account")
    with psycopg.connect(here.conninfo, autocommit=True) as session:
        session.execute("BEGIN")
        session.execute(f"INSERT INTO account SELECT i, 1, {LINE} FROM generate_series(1, 10) i")
        session.execute("PREPARE TRANSACTION 'test_prepared1'")
        assert everybody.wait_for(lambda s: gid_of(s) == "test_prepared1" and s.value["after"]["id"] == 10)
        committed.to_end()
        assert committed.seen == []

        session.execute("COMMIT PREPARED 'test_prepared1'")
        assert committed.wait_for(lambda s: s.value["after"]["id"] == 10)

        # You can also roll back a prepared transaction.
        session.execute("BEGIN")
        session.execute(f"INSERT INTO account SELECT i, 1, {LINE} FROM generate_series(11, 20) i")
        session.execute("PREPARE TRANSACTION 'test_prepared2'")
        assert everybody.wait_for(lambda s: gid_of(s) == "test_prepared2" and s.value["after"]["id"] == 20)

        session.execute("ROLLBACK PREPARED 'test_prepared2'")


@pytest.mark.parametrize("version", [pytest.param("15", marks=pytest.mark.slow), "18"])
def test_many_side_by_side_half_taken_back(
    version: str, connector: Maker, server_of: Callable[[str | None], PostgresServer]
) -> None:
    with fresh_database(server_of(version), f"db_{fresh_prefix()}") as conninfo:
        here = connector(conninfo=conninfo, spool={"memory": 20_000})
        force(here)
        transactions = SideBySide(here, count=60, seed=int(version))
        with here.carrying():
            for _ in range(2):
                transactions.begin()
                transactions.work(1200)
                transactions.end()
            here.check()
        wait_until(lambda: streamed(here) > 30, 90, "they were streamed")


def test_what_is_empty_for_the_publication_is_streamed_or_left_out(
    connector: Maker, server_of: Callable[[str | None], PostgresServer]
) -> None:
    """Its outcome comes where it is streamed, and not where it is sent behind its commit. That must
    not look like another server's WAL, when all is sent again behind a transaction in doubt.
    """
    with fresh_database(server_of("18"), f"db_{fresh_prefix()}") as conninfo:
        here = connector(conninfo=conninfo)
        here.sql("CREATE SCHEMA other", "CREATE TABLE other.unpublished (id int, line text)")
        here.prepare("in doubt", "INSERT INTO account VALUES (99, 1, 'p')")
        for number, streaming in enumerate(("on", "off", "on"), 1):
            force(here, streaming)
            with here.carrying():
                here.sql(f"INSERT INTO account VALUES ({number}, 1, 'x')")
                here.caught_up()
                here.sql(f"INSERT INTO other.unpublished SELECT i, {LINE} FROM generate_series(1, 20) i")
                _wait_for_progress(here)
        here.sql("COMMIT PREPARED 'in doubt'")
        with here.carrying():
            here.check()


def _wait_for_progress(here: Installation) -> None:
    """Until it has passed all that was written."""
    end = here.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")

    def has_passed() -> bool:
        progress = read_progress(here.config).progress
        return progress is not None and progress.applied_lsn >= end

    wait_until(has_passed, 90, "progress has passed it")


@pytest.mark.slow
def test_killed_while_transactions_are_in_progress(connector: Maker) -> None:
    here = connector(spool={"memory": 20_000})
    force(here)
    here.prepare("in doubt all the while", "INSERT INTO account SELECT i, 1, 'p' FROM generate_series(90001, 90300) i")
    transactions = SideBySide(here, count=10, seed=7)
    transactions.begin()
    for place in (
        "after_read:20",
        "after_decode:20",
        "after_staging",
        "after_produce:2",
        "before_commit",
        "after_open",
    ):
        dying = here.start(place)
        for _ in range(200):
            transactions.work(50)
            transactions.end()
            transactions.begin()
            # One round at a time: the backlog must not outgrow what the server streams in such
            # small parts.
            with suppress(subprocess.TimeoutExpired):
                dying.ended(0.2)
                break
        assert dying.ended() == -9
    transactions.end()
    here.start()
    here.sql("COMMIT PREPARED 'in doubt all the while'")
    here.check()


def test_a_rolled_back_savepoints_messages_are_not_published(connector: Maker) -> None:
    """PostgreSQL does not tell which savepoint a streamed message belongs to, so that transaction
    is read again in the other way.
    """
    here = connector()
    force(here)
    run = here.start()
    said = "WITH said AS (SELECT pg_logical_emit_message(true, 'p', '{0}')) INSERT INTO ledger (xid, tbl, op, after) SELECT pg_current_xact_id()::text::bigint, 'messages', 'm', '{{\"content\": \"{0}\"}}' FROM said"
    many = "INSERT INTO account SELECT i, 1, repeat('x', 100) FROM generate_series({}, {}) i"
    with psycopg.connect(here.conninfo) as writer:
        for statement in (
            many.format(1, 500),
            said.format("stays"),
            "SAVEPOINT a",
            many.format(501, 1000),
            said.format("goes"),
            "ROLLBACK TO a",
            many.format(1001, 1500),
        ):
            writer.execute(statement.encode())
    topics = here.check()
    assert [s.value["message"]["content"] for s in topics.rows if s.topic.endswith(".messages")] == [b"stays"]
    assert "read again without streaming" in run.said()


def test_a_definition_that_only_a_rolled_back_savepoint_had_is_never_registered(connector: Maker) -> None:
    here = connector()
    force(here)
    here.carry()
    many = "INSERT INTO account (id, version) SELECT i, 1 FROM generate_series({}, {}) i"
    with psycopg.connect(here.conninfo) as writer:
        for statement in (
            many.format(1, 2000),
            "SAVEPOINT a",
            "ALTER TABLE account ADD COLUMN gone int",
            many.format(2001, 4000),
            "ROLLBACK TO a",
            many.format(4001, 6000),
        ):
            writer.execute(statement.encode())
    here.sql(many.format(7000, 7000))
    topics = here.check()
    assert all("gone" not in s.value["after"] for s in topics.rows)
    with psycopg.connect(here.conninfo) as writer:
        writer.execute("ALTER TABLE account ADD COLUMN stays int DEFAULT 5")
        writer.execute(b"INSERT INTO account (id, version) SELECT i, 1 FROM generate_series(10000, 14000) i")
    here.sql(many.format(8000, 8000))
    topics = here.check()
    later = [s.value["after"] for s in topics.rows if s.value["after"]["id"] >= 8000]
    assert len(later) == 4002
    assert all(row["stays"] == 5 for row in later)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    if shutil.which("mount") is None:
        pytest.skip("this machine has no mount")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a tmpfs: {mounted.stderr!r}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("prepared", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_disk_is_full(prepared: bool, connector: Maker, small_disk: Path) -> None:
    here = connector(spool={"folder": str(small_disk), "memory": 0})
    force(here)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 1_900_000)
    run = here.start()
    insert = "INSERT INTO account SELECT i, 1, repeat('x', 100) FROM generate_series(1, 4000) i"
    if prepared:
        here.prepare("g", insert)
    else:
        here.sql(insert)
    run.wait_for("no room in the spool folder")
    assert here.read("account") == []
    filler.unlink()
    if prepared:
        here.sql("COMMIT PREPARED 'g'")
    here.check()
    assert not run.dead


def test_a_transaction_that_takes_longer_than_kafkas_timeout_is_given_more_time(connector: Maker) -> None:
    """The broker looks every ten seconds for transactions that are too old."""
    here = connector(kafka={"transaction_timeout": 2.0}, prepared={"hold": 1.0}, turn={"idle_progress": 60})
    here.start("after_flush=stop")
    here.sql("INSERT INTO account VALUES (1, 1, '')")
    (run,) = here.runs
    wait_until(lambda: run.asleep, what="the failpoint is reached")
    wait_until(lambda: aborted(here), 90, "the broker has aborted the transaction")
    run.signal(signal.SIGCONT)
    run.wait_for("longer than its timeout of 2 s")
    here.check()
    assert not run.dead


def aborted(here: Installation) -> bool:
    """A read_committed reader comes past what was produced."""
    tail = here.tail("account")
    tail.to_end()
    return any(tail.ends.values())
