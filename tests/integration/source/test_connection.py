"""Lost connections: every question says so in the same way, wherever the loss meets it. And the
settings of a session, whatever others are set for the server, the database or the process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from fixtures.connector import wait_until
from twofold.errors import Unreachable
from twofold.source.connection import SENT_BY_LIBPQ, PlainConnection, connect
from twofold.source.readiness import unreached_settings
from twofold.stack import PostgresServer

pytestmark = pytest.mark.core

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
SET_BY_OTHERS = {
    "default_transaction_isolation": ("serializable", "read committed"),
    "quote_all_identifiers": ("on", "off"),
    "array_nulls": ("off", "on"),
}
"""A setting of the database, and that of the connector's sessions there."""
SHOWN = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name"


def terminated(dsn: str, connection: PlainConnection) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 20000)", (connection.info.backend_pid,))


def test_an_ended_session_is_a_server_that_went_away(postgres: PostgresServer) -> None:
    with connect(postgres.dsn()) as connection:
        terminated(postgres.dsn(), connection)
        with pytest.raises(Unreachable, match=r"PostgreSQL at .* went away: "):
            connection.execute("SELECT 1")
        with pytest.raises(Unreachable):
            connection.rollback()


def test_a_session_ended_in_mid_question(postgres: PostgresServer) -> None:
    with connect(postgres.dsn()) as connection, ThreadPoolExecutor(1) as pool, psycopg.connect(postgres.dsn(), autocommit=True) as other:  # fmt: skip
        asked = pool.submit(connection.execute, "SELECT pg_sleep(60)")
        wait_until(lambda: other.execute(WAITING).fetchone() == (1,))
        terminated(postgres.dsn(), connection)
        with pytest.raises(Unreachable, match="terminating connection"):
            asked.result(20)


def test_a_server_that_is_killed(own_postgres: Callable[..., PostgresServer]) -> None:
    server = own_postgres()
    with connect(server.dsn()) as connection:
        server.kill()
        with pytest.raises(Unreachable, match="went away"):
            connection.execute("SELECT 1")


def test_other_errors_are_what_they_were(postgres: PostgresServer) -> None:
    with connect(postgres.dsn()) as connection:
        connection.execute("SET statement_timeout = 50")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(10)")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_no_session_has_a_time_limit_for_its_transactions(own_postgres: Callable[..., PostgresServer]) -> None:
    """Else a long transaction, a load's chunk or the wait for a slot would end again and again."""
    server = own_postgres(version="17", settings={"transaction_timeout": "1s"})
    for replication in (False, True):
        with connect(server.dsn(), replication=replication) as connection:
            slept = connection.execute("SELECT current_setting('transaction_timeout') FROM pg_sleep(1.5)")
            assert slept.fetchone() == ("0",)


def test_no_variable_that_libpq_sends_reaches_a_session(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of a range or of a time with a zone would be another one, and a key that has it."""
    for variable, value in zip(SENT_BY_LIBPQ, ("German", "America/New_York", "off"), strict=True):
        monkeypatch.setenv(variable, value)
    with psycopg.connect(postgres.dsn()) as other:
        shown = other.execute("SELECT current_setting('datestyle'), current_setting('timezone')").fetchone()
        assert shown == ("German, DMY", "America/New_York"), "libpq sends them"
    with connect(postgres.dsn()) as connection:
        assert unreached_settings(connection) == ()
        assert connection.execute("SELECT current_setting('geqo')").fetchone() == ("on",)
        written = connection.execute("SELECT tstzrange('2026-01-02 00:00+00', NULL)::text").fetchone()
        assert written == ('["2026-01-02 00:00:00+00",)',)


def test_no_setting_of_the_database_reaches_a_session(database: str) -> None:
    names = list(SET_BY_OTHERS)
    theirs, ours = ({name: values[n] for name, values in SET_BY_OTHERS.items()} for n in (0, 1))
    with psycopg.connect(database, autocommit=True) as session:
        place = sql.Identifier(session.info.dbname)
        for name, value in theirs.items():
            change = sql.SQL("ALTER DATABASE {} SET {} = {}")
            session.execute(change.format(place, sql.Identifier(name), sql.Literal(value)))
    with psycopg.connect(database) as other:
        assert dict(other.execute(SHOWN, (names,)).fetchall()) == theirs
    for replication in (False, True):
        with connect(database, replication=replication) as connection:
            assert dict(connection.execute(SHOWN, (names,)).fetchall()) == ours
            assert unreached_settings(connection) == ()
