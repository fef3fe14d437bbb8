"""PostgreSQL 15, 16, 17 and 18 for this folder.

`postgres` runs a test on 15 and 18, and with `-m slow` on 16 and 17; a test that must always run on
each says so with `@on_each_version`. `old_postgres` is this machine's 15.18 or older 15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from integration.source.stream import Writer, make_slot
from twofold.stack import PostgresServer

VERSIONS = ("15", pytest.param("16", marks=pytest.mark.slow), pytest.param("17", marks=pytest.mark.slow), "18")


@pytest.fixture(params=VERSIONS)
def postgres(request: pytest.FixtureRequest, server_of: Callable[[str | None], PostgresServer]) -> PostgresServer:
    return server_of(request.param)


@pytest.fixture
def old_postgres(server_of: Callable[[str | None], PostgresServer]) -> PostgresServer:
    """A server that still has the oddities which 15.19 repaired."""
    server = server_of(None)
    with psycopg.connect(server.dsn()) as connection:
        if not 150000 <= connection.info.server_version < 150019:
            pytest.skip(f"this machine's PostgreSQL is {connection.info.server_version}, not 15.18 or an older 15")
    return server


@pytest.fixture
def connections(database: str) -> Iterator[Callable[[], Writer]]:
    """Opens connections that end with the test."""
    with ExitStack() as ending:
        yield lambda: ending.enter_context(closing(psycopg.connect(database, autocommit=True)))


@pytest.fixture
def writer(database: str, prefix: str, connections: Callable[[], Writer]) -> Writer:
    """A table, a slot named as the prefix, and a connection to write with."""
    connection = connections()
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    make_slot(database, prefix)
    return connection
