"""The servers that tests use. Each is found in this order, and the tests are the same for all three:

1. an endpoint in the environment: TWOFOLD_TEST_POSTGRES (a libpq conninfo), TWOFOLD_TEST_KAFKA (bootstrap servers), TWOFOLD_TEST_REGISTRY (a URL);
2. a container, if a Docker engine answers;
3. the local stack.

One server of each kind serves the whole session and starts when the first test asks for it. TWOFOLD_TEST_POSTGRES_VERSION (15 to 18) chooses PostgreSQL's
version. A test that kills or reconfigures a server takes its own: `own_postgres`, `own_kafka`, `own_registry`; these are always local ones.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
from psycopg import conninfo, sql

import fix_containers
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer, temporary_folder

VERSION = os.environ.get("TWOFOLD_TEST_POSTGRES_VERSION") or None
_counter = itertools.count(1)


class Postgres(Protocol):
    @property
    def version(self) -> int: ...
    def dsn(self, dbname: str = "postgres") -> str: ...


class Kafka(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Registry(Protocol):
    @property
    def url(self) -> str: ...


@dataclass(frozen=True)
class GivenPostgres:
    base: str
    version: int

    def dsn(self, dbname: str = "postgres") -> str:
        return conninfo.make_conninfo(self.base, dbname=dbname)


@dataclass(frozen=True)
class GivenKafka:
    bootstrap: str


@dataclass(frozen=True)
class GivenRegistry:
    url: str


@pytest.fixture(scope="session")
def stack_folder() -> Iterator[Path]:
    """Data and logs of the session's own servers; kept where a test failed to start one."""
    folder = temporary_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def docker() -> bool:
    """Whether a Docker engine answers."""
    return fix_containers.engine_answers()


@pytest.fixture(scope="session")
def postgres(stack_folder: Path, request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """`.dsn(dbname="postgres")` and `.version`."""
    with ExitStack() as ending:
        if given := os.environ.get("TWOFOLD_TEST_POSTGRES"):
            yield _given_postgres(given)
        elif request.getfixturevalue("docker"):
            yield _given_postgres(ending.enter_context(fix_containers.postgres(VERSION)))
        else:
            server = PostgresServer(stack_folder / "postgres", version=VERSION)
            ending.callback(server.stop)
            server.start()
            yield server


def _given_postgres(base: str) -> GivenPostgres:
    with psycopg.connect(base) as connection:
        return GivenPostgres(base, connection.info.server_version // 10_000)


@pytest.fixture(scope="session")
def kafka(stack_folder: Path, request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """`.bootstrap`."""
    with ExitStack() as ending:
        if given := os.environ.get("TWOFOLD_TEST_KAFKA"):
            yield GivenKafka(given)
        elif request.getfixturevalue("docker"):
            yield GivenKafka(ending.enter_context(fix_containers.kafka()))
        else:
            cluster = KafkaCluster(stack_folder / "kafka")
            ending.callback(cluster.stop)
            cluster.start()
            # Clients that tests have let go end before it does; else they cry for a broker below pytest's closing line.
            ending.callback(gc.collect)
            yield cluster


@pytest.fixture(scope="session")
def registry(stack_folder: Path, request: pytest.FixtureRequest) -> Iterator[Registry]:
    """`.url`, for a client of Confluent's registry."""
    with ExitStack() as ending:
        if given := os.environ.get("TWOFOLD_TEST_REGISTRY"):
            yield GivenRegistry(given)
        elif request.getfixturevalue("docker"):
            yield GivenRegistry(ending.enter_context(fix_containers.registry()))
        else:
            server = RegistryServer(stack_folder / "registry")
            ending.callback(server.stop)
            server.start()
            yield server


@pytest.fixture
def prefix() -> str:
    """A topic prefix, slot and publication name that no other test has, on a server that many test runs may share."""
    return fresh_prefix()


def fresh_prefix() -> str:
    return f"t{next(_counter)}_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def database(postgres: Postgres, prefix: str) -> Iterator[str]:
    """The conninfo of a fresh database. At the end its prepared transactions and slots go, then the database."""
    with fresh_database(postgres, f"db_{prefix}") as made:
        yield made


@contextmanager
def fresh_database(postgres: Postgres, name: str) -> Iterator[str]:
    """The same for tests that share one."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield postgres.dsn(name)
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        for (gid,) in connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchall():
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        slots = connection.execute("SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", [name])
        for slot, active_pid in slots.fetchall():
            if active_pid is not None:
                connection.execute("SELECT pg_terminate_backend(%s, 10000)", [active_pid])
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A fresh folder that a PostgreSQL of another user can reach, which pytest's tmp_path is not."""
    folder = temporary_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_postgres(open_folder: Path) -> Iterator[Callable[..., PostgresServer]]:
    """Makes a started PostgresServer that is the test's own: `own_postgres(settings={...})`."""
    with ExitStack() as ending:

        def make(**options: object) -> PostgresServer:
            chosen = {"version": VERSION, **options}
            server = PostgresServer(open_folder / f"postgres{next(_counter)}", **chosen)  # type: ignore[arg-type]
            ending.callback(server.stop)
            server.start()
            return server

        yield make


@pytest.fixture
def own_kafka(open_folder: Path) -> Iterator[Callable[..., KafkaCluster]]:
    """Makes a started KafkaCluster that is the test's own: `own_kafka(brokers=3)`."""
    with ExitStack() as ending:

        def make(**options: object) -> KafkaCluster:
            cluster = KafkaCluster(open_folder / f"kafka{next(_counter)}", **options)  # type: ignore[arg-type]
            ending.callback(cluster.stop)
            cluster.start()
            return cluster

        yield make


@pytest.fixture
def own_registry(open_folder: Path) -> Iterator[Callable[[], RegistryServer]]:
    """Makes a started RegistryServer that is the test's own."""
    with ExitStack() as ending:

        def make() -> RegistryServer:
            server = RegistryServer(open_folder / f"registry{next(_counter)}")
            ending.callback(server.stop)
            server.start()
            return server

        yield make
