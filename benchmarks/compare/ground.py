"""What every system is given: the source with the bank, an empty destination, and Kafka with a
registry if it asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

import psycopg

from compare import bank
from compare.bank import DATABASES
from compare.faults import Part
from compare.looks import Ask, Copy
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer
from twofold.stack.kafka import PRODUCTION_JVM
from twofold.stack.process import GuardedProcess, LocalServer

_RESTART_S: Final = 1.0
"""A service that ends at once is started again after so long."""
COPIES: Final = "copies"
"""The destination's database."""
VERSION: Final = "18"
"""Of PostgreSQL."""
_SOURCE: Final = {
    # The bank's large transactions are streamed to whoever asks for that.
    "logical_decoding_work_mem": "256kB",
    "max_wal_size": "4GB",
}
_DESTINATION: Final = {"max_logical_replication_workers": "16", "max_worker_processes": "32"}


class Ground:
    """The servers of one trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = PostgresServer(folder / "source", version=VERSION, settings=_SOURCE)
        self.destination = PostgresServer(folder / "destination", version=VERSION, settings=_DESTINATION)
        self.kafka = KafkaCluster(folder / "kafka", jvm=PRODUCTION_JVM)
        self.registry = RegistryServer(folder / "registry")

    @contextmanager
    def started(self, *, kafka: bool) -> Iterator[None]:
        servers: list[Part | KafkaCluster] = [self.source, self.destination]
        servers += [self.kafka, self.registry] if kafka else []
        with ExitStack() as ending:
            for server in servers:
                ending.callback(server.stop)
                server.start()
            for dsn, names in ((self.source.dsn(), DATABASES), (self.destination.dsn(), (COPIES,))):
                with psycopg.connect(dsn, autocommit=True) as session:
                    for name in names:
                        session.execute(f"CREATE DATABASE {name}".encode())
            for name in DATABASES:
                bank.create(self.dsns[name], name)
            yield

    @property
    def dsns(self) -> Mapping[str, str]:
        """Of the source's databases."""
        return {name: self.source.dsn(name) for name in DATABASES}

    @property
    def copies(self) -> str:
        return self.destination.dsn(COPIES)

    @property
    def broker(self) -> Broker:
        return Broker(self.kafka)


class Broker:
    """The one node of the cluster, as a part that fails."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self._kafka = kafka
        self.stop: Callable[[], None] = kafka.stop
        self.kill: Callable[[], None] = kafka.kill
        self.start: Callable[[], None] = kafka.start

    @property
    def pid(self) -> int:
        return self._kafka.nodes[0].pid


class Service(LocalServer):
    """A process of a system. `tend` starts it again, as a service manager does."""

    def __init__(self, name: str, command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self._started = 0.0
        self._command = command
        self._environment = environment

    def start(self) -> None:
        self._process = GuardedProcess(self.name, self._command, log=self.log, environment=self._environment)
        self._started = time.monotonic()

    def tend(self) -> None:
        ended = self._process is not None and not self._process.running()
        if ended and time.monotonic() > self._started + _RESTART_S:
            self.start()


class System(Protocol):
    """`start` returns when it carries rows, or will; `tend` does what its operator automates."""

    @property
    def name(self) -> str: ...
    @property
    def kafka(self) -> bool:
        """Whether it needs Kafka and a registry."""

    @property
    def documentation(self) -> tuple[tuple[str, str], ...]:
        """Settings that matter for correctness, and the pages that advise them."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Its own, beside the servers."""

    def start(self, ground: Ground) -> Copy: ...
    def tend(self) -> None: ...
    def stop(self) -> None: ...


class PostgresCopy:
    """The destination, read in REPEATABLE READ transactions."""

    away = (
        psycopg.OperationalError,
        psycopg.InterfaceError,
        psycopg.errors.UndefinedTable,
        psycopg.errors.InvalidSchemaName,
    )

    def __init__(self, dsn: str, schema: str = "{database}") -> None:
        self.names = {
            database: {table: f"{schema.format(database=database)}.{table}" for table in bank.TABLES}
            for database in DATABASES
        }
        self._dsn = dsn

    @contextmanager
    def snapshot(self) -> Iterator[Ask]:
        with psycopg.connect(self._dsn, connect_timeout=5) as session:
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield lambda query: session.execute(query.encode()).fetchall()
