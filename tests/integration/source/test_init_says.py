"""What a person reads whom `twofold init` meets on bad ground: what is wrong and what repairs it;
nothing has been made then. And what it reads where the ground is good enough.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import VERSION
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
        "all 1 replication slots are in use; remedy: drop an unused slot (see pg_replication_slots), or ALTER SYSTEM SET max_replication_slots = 11, and restart PostgreSQL",
    )
    refused(here.init(), 3, *lacks)
    assert here.ask("SELECT count(*) FROM pg_publication") == 0
    assert here.prefix not in "".join(here.reader.topics(here.prefix))

    here.sql("SELECT pg_drop_replication_slot('anothers')")
    server.stop()
    repaired = PostgresServer(
        server.folder, version=VERSION, port=server.port, settings={**settings, "wal_level": "logical"}
    )
    repaired.start()
    try:
        done = here.init()
    finally:
        repaired.stop()
    assert done.returncode == 0, done.stderr
    assert (
        "note: max_prepared_transactions is 0: PREPARE TRANSACTION is refused; remedy: to use it, ALTER SYSTEM SET max_prepared_transactions = 100"
        in done.stdout
    )
    assert "ready: the stream starts at" in done.stdout


def test_a_role_without_the_right(here: Installation, connector: Maker, database: str) -> None:
    here.sql(f"CREATE ROLE {here.prefix} LOGIN")
    try:
        humble = psycopg.conninfo.make_conninfo(database, user=here.prefix)
        refused(
            connector(conninfo=humble, init=False, source=PUBLISHED).init(),
            3,
            f'ALTER ROLE "{here.prefix}" REPLICATION',
        )
        here.sql(f"ALTER ROLE {here.prefix} REPLICATION")
        refused(
            connector(conninfo=humble, init=False, source=PUBLISHED).init(),
            3,
            f"role {here.prefix} may not create a publication in database",
            f'remedy: GRANT CREATE ON DATABASE "{here.ask("SELECT current_database()")}" TO "{here.prefix}";',
            f'remedy: GRANT "postgres" TO "{here.prefix}"; or ALTER TABLE "public"."account" OWNER TO "{here.prefix}";',
        )
        assert here.prefix not in "".join(here.reader.topics(here.prefix)), "nothing was made"
        here.sql(
            f'GRANT CREATE ON DATABASE "{here.ask("SELECT current_database()")}" TO "{here.prefix}"',
            f'ALTER TABLE "public"."account" OWNER TO "{here.prefix}"',
        )
        assert connector(conninfo=humble, init=False, source=PUBLISHED).init().returncode == 0
    finally:
        here.sql(f"DROP OWNED BY {here.prefix} CASCADE", f"DROP ROLE {here.prefix}")


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (["public.acount"], ("source.tables names public.acount, but database", "has no such table")),
        (["public.Account"], ("has no such table; similar names: public.account",)),
        (["shop.*"], ("has no schema shop", 'CREATE SCHEMA "shop";')),
        (["public.seen"], ("public.seen, which is a view",)),
        (["public.fast"], ("which is an unlogged table", 'ALTER TABLE "public"."fast" SET LOGGED;')),
    ],
)
def test_tables_that_cannot_be_published_are_said_by_doctor_and_by_init(
    here: Installation, tables: list[str], words: tuple[str, ...]
) -> None:
    here.sql("CREATE VIEW public.seen AS SELECT 1 AS id", "CREATE UNLOGGED TABLE public.fast (id int PRIMARY KEY)")
    here.configure({"source": {"tables": tables}})
    examined = here.twofold("doctor")
    assert examined.returncode == 3
    for word in words:
        assert word in examined.stdout
    refused(here.init(), 3, *words)
    assert here.prefix not in "".join(here.reader.topics(here.prefix)), "nothing was made"


@pytest.mark.parametrize("named", [["public.*"], ["public.part"], ["*"]])
def test_what_a_publication_that_exists_does_not_have_is_said_by_doctor_and_by_init(
    here: Installation, named: list[str]
) -> None:
    """Whether the connector is initialised or not."""
    here.sql(
        "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE part (id int PRIMARY KEY)",
        "CREATE TABLE leaf PARTITION OF whole FOR VALUES IN (1)",
        f"CREATE PUBLICATION {here.prefix} FOR TABLE account, whole",
    )
    here.configure({"source": {"tables": [*named, "public.account", "public.leaf"]}})
    lacks = f"publication {here.prefix} exists, and twofold init leaves it as it is: it lacks public.part, which source.tables names"
    remedy = f'ALTER PUBLICATION "{here.prefix}" ADD TABLE "public"."part"; or correct source.tables'
    for _ in range(2):
        assert lacks in (examined := here.twofold("doctor").stdout)
        assert remedy in examined
        assert f"note: {lacks}; remedy: {remedy}" in here.twofold("init", ok=True).stdout
    here.sql(remedy.partition(";")[0])
    assert "it lacks" not in here.twofold("doctor").stdout
    assert "it lacks" not in here.twofold("init", ok=True).stdout


def test_a_database_that_is_read_only_by_default(here: Installation) -> None:
    name = here.ask("SELECT current_database()")
    here.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    here.twofold("init", ok=True)
    here.configure({"source": {"backfill": True}})
    with here.carrying():
        here.sql("SET default_transaction_read_only = off", "INSERT INTO account VALUES (1)")
        assert here.tail("account").wait_for(lambda s: s.value["after"]["id"] == 1)
    ended = here.twofold("reset", "--yes")
    assert ended.returncode == 0, ended.stderr


@ON_18
def test_a_slot_in_use_a_publication_that_went_and_a_slot_of_another_kind(
    here: Installation, database: str, registry: Any
) -> None:
    assert here.init().returncode == 0
    with streaming(database, here.prefix) as stream:
        pid = stream.session.backend_pid
        done = here.init()
        assert done.returncode == 0
        assert (
            f"slot {here.prefix} is in use by process {pid} from 127.0.0.1 ({here.prefix}), published up to"
            in done.stdout
        )
        wrong = {"kafka": {"prefix": f"{here.prefix}_2"}}, {"kafka": {"bootstrap": "127.0.0.1:9", "call_timeout": 2.0}}
        right = {"kafka": {"prefix": here.prefix, "bootstrap": here.reader.bootstrap, "call_timeout": 60.0}}
        here.configure(wrong[0])
        knows_nothing = f"in use by process {pid} from 127.0.0.1 ({here.prefix}), and the topics {here.prefix}_2.* at {here.reader.bootstrap} do not mention it"
        refused(here.init(), 5, knows_nothing, "correct kafka.bootstrap, kafka.prefix and name")
        here.configure(right)
        here.configure(wrong[1])
        refused(
            here.init(),
            4,
            "Kafka at 127.0.0.1:9 does not answer: Connect to ipv4#127.0.0.1:9 failed: Connection refused; remedy: start Kafka, or correct kafka.bootstrap",
        )
        here.configure(right)
        here.configure({"registry": {"url": "http://127.0.0.1:9", "timeout": 1.0}})
        refused(here.init(), 4, "the registry at http://127.0.0.1:9 does not answer")
        here.configure({"registry": {"url": registry.url, "timeout": 10.0}})
    wait_until(lambda: here.slot("active") is False)
    assert f"already initialised: slot {here.prefix}" in here.init().stdout

    here.configure({"source": {"two_phase": False}})
    refused(
        here.init(),
        3,
        "was created with two_phase on, which cannot be changed, but source.two_phase differs",
        "twofold reset",
    )
    here.configure({"source": {"two_phase": True}})

    here.sql(f"DROP PUBLICATION {here.prefix}")
    refused(
        here.init(),
        5,
        "a publication of this slot no longer exists",
        "at stake: ",
        "repair:   correct source.publication if it names the wrong one; otherwise start over: `twofold reset`",
    )


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
        "repair:   raise max_slot_wal_keep_size (or idle_replication_slot_timeout) to prevent a repetition, then start over: `twofold reset`, then `twofold init`",
        "raise max_slot_wal_keep_size",
    )


def test_other_commands_before_it(here: Installation) -> None:
    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = here.command(*arguments)
        return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)

    before = said("backfill", "status")
    assert before.stdout == f"connector {here.prefix} is not initialised: run twofold init\n", before.stderr
    asks = said("reset")
    assert asks.returncode == 2
    assert "nothing was removed: reset asks first, and there is no terminal; remedy: twofold reset --yes" in asks.stderr


@ON_18
def test_a_transaction_that_it_waits_for(here: Installation, connections: Callable[[], Writer]) -> None:
    here.configure({"source": {"slot_wait": 3.0}})
    here.prepare("in the way", "INSERT INTO account VALUES (1)")
    done = here.init()
    name = psycopg.conninfo.conninfo_to_dict(here.conninfo)["dbname"]
    waits = f"waits for prepared transaction 'in the way' (database {name}, owner postgres, "
    refused(done, 4, waits, "remedy: end these transactions (COMMIT PREPARED or ROLLBACK PREPARED)")
    assert f"slot {here.prefix} waits for: prepared transaction 'in the way'" in done.stdout
    assert "given up after 3 s (source.slot_wait)" in done.stdout
    assert done.stdout.count("waits for") == 1, "it is told once, and not at each look"
    here.sql("COMMIT PREPARED 'in the way'")
    assert here.init().returncode == 0


def test_an_old_minor_version(connector: Maker, old_postgres: PostgresServer) -> None:
    here = connector(conninfo=old_postgres.dsn(), init=False, source=PUBLISHED)
    here.sql(TABLE)
    try:
        done = here.twofold("init", ok=True)
        assert "has known bugs in two-phase decoding" in done.stdout
        assert "remedy: upgrade to 15.19 or later" in done.stdout
    finally:
        here.ask(f"SELECT pg_drop_replication_slot('{here.prefix}')")
        here.sql(f"DROP PUBLICATION {here.prefix}", "DROP TABLE account")


@pytest.mark.core
def test_nobody_listens(connector: Maker) -> None:
    here = connector(conninfo="host=127.0.0.1 port=1 dbname=d user=u", init=False, source=PUBLISHED)
    refused(here.init(), 4, "PostgreSQL at 127.0.0.1:1/d does not answer")
