"""Lost connections: every question says so in the same way, wherever the loss meets it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fixtures.connector import wait_until
from twofold.errors import Unreachable
from twofold.source.connection import PlainConnection, connect
from twofold.stack import PostgresServer

pytestmark = pytest.mark.core

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"


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
