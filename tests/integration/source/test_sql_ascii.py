"""A database that does not know what the bytes of its text mean."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import Postgres
from twofold.doctor import postgres as doctor
from twofold.errors import Refused, SetupError
from twofold.source import readiness

LATIN1_BYTE = "convert_from('\\xe9', 'SQL_ASCII')"


@pytest.fixture
def database(postgres: Postgres, prefix: str) -> Iterator[str]:
    name = f"ascii_{prefix}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    yield postgres.dsn(name)
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{name}'"
        )
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def here(connector: Maker, database: str) -> Installation:
    """Not initialised yet."""
    made = connector(conninfo=database, init=False, source={"tables": ["public.account", "public.t"]})
    made.sql("CREATE TABLE account (id int PRIMARY KEY, version int, note text)")
    made.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return made


def test_it_is_refused_before_anything_is_made(here: Installation) -> None:
    done = here.init()
    assert done.returncode == SetupError.exit_status
    assert "the database's encoding is SQL_ASCII" in done.stderr
    assert "createdb -T template0 -E UTF8 NEW; pg_dump -E LATIN1 OLD | psql -v ON_ERROR_STOP=1 NEW" in done.stderr
    assert here.slot("slot_name") is None
    [finding] = [f for f in doctor.examine(here.config) if f.what == "the database's encoding is SQL_ASCII"]
    assert "createdb" in str(finding)


@pytest.mark.parametrize("how", ["loaded", "streamed"])
def test_bytes_that_are_no_text(here: Installation, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that was initialised by a version which did not look: it goes on until such bytes
    come, and then it does not try for ever.
    """
    monkeypatch.setattr(readiness, "_server", lambda *_, **__: [])
    if how == "loaded":
        here.sql(f"INSERT INTO t VALUES (1, {LATIN1_BYTE})")
    here.initialise()
    if how == "streamed":
        with here.carrying():
            here.sql("INSERT INTO t VALUES (1, 'plain')")
            wait_until(lambda: [s.key for s in here.read("t")] == [{"id": 1}])
        here.sql(f"INSERT INTO t VALUES (2, {LATIN1_BYTE})")
    refusal = here.refusal()
    assert isinstance(refusal, Refused)
    assert "has text that PostgreSQL cannot convert to UTF-8: invalid byte sequence" in refusal.what
    assert "pg_dump -E LATIN1 OLD | psql -v ON_ERROR_STOP=1 NEW" in refusal.repair
    if how == "loaded":
        assert refusal.what.startswith("table public.t ")


def client_tools(version: int) -> bool:
    """Whether this machine's pg_dump reads a server of that version."""
    if not all(map(shutil.which, ("createdb", "pg_dump", "psql"))):
        return False
    said = subprocess.run(["pg_dump", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+", said)
    return found is not None and int(found[0]) >= version


def test_the_repair_word_by_word(
    here: Installation, connector: Maker, database: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a connector that has carried the database: what the refusal says is typed, then init and
    run.
    """
    if not client_tools(postgres.version):
        pytest.skip("no pg_dump for this server")
    with monkeypatch.context() as patched:
        patched.setattr(readiness, "_server", lambda *_, **__: [])
        here.sql(f"INSERT INTO t VALUES (1, {LATIN1_BYTE})")
        here.initialise()
    given = conninfo_to_dict(database)
    old, new = str(given["dbname"]), f"utf8_{here.prefix}"
    refusal = here.refusal()
    assert isinstance(refusal, Refused)
    commands = re.findall(r"createdb [^;]*; pg_dump[^(]*", refusal.repair)[0].replace("OLD", old).replace("NEW", new)
    variables = {f"PG{k.upper()}": str(v) for k, v in given.items() if k in {"host", "port", "user", "password"}}
    subprocess.run(["bash", "-ec", commands], env={**os.environ, **variables}, check=True, timeout=60)
    try:
        moved = make_conninfo(database, dbname=new)
        here.twofold("reset", "--yes", ok=True)  # before that, because the slot is the former database's
        here.configure({"source": {"dsn": moved}, "kafka": {"prefix": f"{here.prefix}_utf8"}})
        here.twofold("init", ok=True)
        there = connector(conninfo=moved, source={"tables": ["public.t"]}, init=False)
        assert there.init().returncode == 0
        with there.carrying():
            wait_until(lambda: [(s.key, s.value["after"]["v"]) for s in there.read("t")] == [({"id": 1}, "é")])
    finally:
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(
                f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{new}'"
            )
            connection.execute(f"DROP DATABASE {new} WITH (FORCE)")
