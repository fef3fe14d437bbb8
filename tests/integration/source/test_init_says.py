"""What a person reads whom `twofold init` meets on bad ground: what is wrong and what mends it; nothing has been made then. And what it reads where the ground is good enough."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fix_connector import Installation, Maker, wait_until
from fix_stack import VERSION
from integration.source.stream import Writer, streaming
from twofold.stack import PostgresServer

TABLE = "CREATE TABLE public.account (id int PRIMARY KEY)"
ON_18 = pytest.mark.parametrize("postgres", ["18"], indirect=True)
PUBLISHED = {"tables": ["public.account"], "backfill": False}


@pytest.fixture
def here(connector: Maker, database: str) -> Installation:
    """Not initialised yet."""
    made = connector(conninfo=database, init=False, source=PUBLISHED)
    made.sql(TABLE)
    return made


def refused(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr.startswith("twofold: ")
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def slots(conninfo: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo) as connection:
        return connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()


def test_a_server_that_was_never_made_for_it(connector: Maker, own_postgres: Callable[..., PostgresServer]) -> None:
    """Each remedy that is named is applied, and then it works."""
    settings = {"wal_level": "replica", "max_prepared_transactions": "0", "max_replication_slots": "1", "fsync": "off"}
    server = own_postgres(settings=settings)
    here = connector(conninfo=server.dsn(), init=False, source=PUBLISHED)
    here.sql(TABLE, "SELECT pg_create_physical_replication_slot('anothers')")
    lacks = (
        "wal_level is replica; remedy: ALTER SYSTEM SET wal_level = logical, and restart PostgreSQL",
        "all 1 replication slots are taken; remedy: drop one that nobody needs, see pg_replication_slots, or raise max_replication_slots",
    )
    refused(here.init(), 3, *lacks)
    assert here.ask("SELECT count(*) FROM pg_publication") == 0
    assert here.prefix not in "".join(here.reader.topics(here.prefix))

    here.sql("SELECT pg_drop_replication_slot('anothers')")
    server.stop()
    mended = PostgresServer(
        server.folder, version=VERSION, port=server.port, settings={**settings, "wal_level": "logical"}
    )
    mended.start()
    try:
        done = here.init()
    finally:
        mended.stop()
    assert done.returncode == 0, done.stderr
    assert (
        "note: max_prepared_transactions is 0: PREPARE TRANSACTION is refused; remedy: ALTER SYSTEM SET max_prepared_transactions = 100"
        in done.stdout
    )
    assert "ready: the stream starts at" in done.stdout


def test_a_role_without_the_right(here: Installation, connector: Maker, database: str) -> None:
    here.sql(f"CREATE ROLE {here.prefix} LOGIN")
    try:
        humble = psycopg.conninfo.make_conninfo(database, user=here.prefix)
        refused(
            connector(conninfo=humble, init=False, source=PUBLISHED).init(), 3, f"ALTER ROLE {here.prefix} REPLICATION"
        )
        here.sql(f"ALTER ROLE {here.prefix} REPLICATION")
        refused(
            connector(conninfo=humble, init=False, source=PUBLISHED).init(),
            3,
            "permission denied",
            "remedy: the role needs CREATE on the database and must own the tables",
        )
    finally:
        here.sql(f"DROP ROLE {here.prefix}")


@ON_18
def test_a_slot_in_use_a_publication_that_went_and_a_slot_of_another_kind(here: Installation, database: str) -> None:
    assert here.init().returncode == 0
    with streaming(database, here.prefix) as stream:
        pid = stream.session.backend_pid
        done = here.init()
        assert done.returncode == 0
        assert f"slot {here.prefix} is in use by process {pid} from 127.0.0.1 ({here.prefix})" in done.stdout
        assert f"SELECT pg_terminate_backend({pid})" in done.stdout
    wait_until(lambda: here.slot("active") is False)
    assert f"initialised already: slot {here.prefix}" in here.init().stdout

    here.configure({"source": {"two_phase": False}})
    refused(here.init(), 3, "was made with two_phase on, the configuration says otherwise", "twofold reset")
    here.configure({"source": {"two_phase": True}})

    here.sql(f"DROP PUBLICATION {here.prefix}")
    refused(here.init(), 5, "a publication of this slot is gone", "at stake: ", "repair:   `twofold reset`")


@ON_18
def test_a_publication_of_ones_own_must_be_there_before_the_slot(here: Installation, database: str) -> None:
    """Made after it, the server could not decode what lies between."""
    here.configure({"source": {"tables": [], "publication": "Mine"}})
    refused(here.init(), 3, "publication 'Mine' does not exist in this database", 'CREATE PUBLICATION "Mine" FOR TABLE')
    assert (here.prefix,) not in slots(database)
    here.sql('CREATE PUBLICATION "Mine" FOR TABLE account')
    assert here.init().returncode == 0


@pytest.mark.parametrize("version", ["15", "18"])
def test_an_invalidated_slot(connector: Maker, own_postgres: Callable[..., PostgresServer], version: str) -> None:
    server = own_postgres(version=version, settings={"max_slot_wal_keep_size": "1MB", "fsync": "off"})
    here = connector(conninfo=server.dsn(), init=False, source=PUBLISHED)
    here.sql(TABLE)
    assert here.init().returncode == 0
    for _ in range(4):
        here.sql("SELECT pg_logical_emit_message(false, 'p', repeat('x', 100000)), pg_switch_wal()")
    here.sql("CHECKPOINT")
    assert here.slot("wal_status") == "lost"
    why = " (wal_removed)" if version == "18" else ""
    refused(
        here.init(),
        5,
        f"PostgreSQL has invalidated slot '{here.prefix}'{why}: the WAL that it needs is gone",
        "repair:   `twofold reset`, then `twofold init`",
        "raise max_slot_wal_keep_size",
    )


@ON_18
def test_a_transaction_that_it_waits_for(here: Installation, connections: Callable[[], Writer]) -> None:
    here.configure({"source": {"slot_wait": 1.0}})
    here.prepare("in the way", "INSERT INTO account VALUES (1)")
    done = here.init()
    name = psycopg.conninfo.conninfo_to_dict(here.conninfo)["dbname"]
    waits = f"waits for prepared transaction 'in the way' (database {name}, owner postgres, "
    refused(done, 4, waits, "remedy: end them (COMMIT PREPARED or ROLLBACK PREPARED)")
    assert f"slot {here.prefix} waits for: prepared transaction 'in the way'" in done.stdout
    here.sql("COMMIT PREPARED 'in the way'")
    assert here.init().returncode == 0


def test_an_old_minor_version(connector: Maker, old_postgres: PostgresServer) -> None:
    here = connector(conninfo=old_postgres.dsn(), init=False, source=PUBLISHED)
    here.sql(TABLE)
    try:
        done = here.init()
        assert done.returncode == 0, done.stderr
        assert "has known bugs in two-phase decoding" in done.stdout
        assert "remedy: upgrade to 15.19 or later" in done.stdout
    finally:
        here.ask(f"SELECT pg_drop_replication_slot('{here.prefix}')")
        here.sql(f"DROP PUBLICATION {here.prefix}", "DROP TABLE account")


def test_nobody_listens(connector: Maker) -> None:
    here = connector(conninfo="host=127.0.0.1 port=1 dbname=d user=u", init=False, source=PUBLISHED)
    refused(here.init(), 4, "PostgreSQL at 127.0.0.1:1/d does not answer")
