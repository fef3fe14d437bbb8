"""Flink CDC: one job on a cluster of Flink carries all tables, into PostgreSQL through Flink's JDBC
connector, or into Iceberg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psycopg
from bench.connect import locked
from psycopg.conninfo import conninfo_to_dict

from compare import bank, lake
from compare.bank import COLUMNS, DATABASES, TABLES
from compare.faults import Part
from compare.ground import Ground, PostgresCopy, Service
from compare.lake import LakeCopy
from compare.looks import Copy
from compare.postgres import publish
from helpers.flink.gateway import FlinkGateway
from helpers.flink.home import FlinkHome
from twofold.stack import server_files
from twofold.stack.process import LOOPBACK, choose_port
from twofold_spark.sources.postgres_connection import build_jdbc_url

_FLINK: Final = "https://nightlies.apache.org/flink/flink-docs-release-1.20/docs"
_CDC: Final = "https://nightlies.apache.org/flink/flink-cdc-docs-release-3.5/docs/connectors/flink-sources"
DOCUMENTATION: Final = (
    ("execution.checkpointing.mode = EXACTLY_ONCE", f"{_FLINK}/dev/datastream/fault-tolerance/checkpointing/"),
    ("execution.checkpointing.interval = 3 s", f"{_CDC}/tutorials/build-real-time-data-lake-tutorial/"),
    ("restart-strategy.type = exponential-delay", f"{_FLINK}/ops/state/task_failure_recovery/"),
    ("high-availability.type = zookeeper", f"{_FLINK}/deployment/ha/zookeeper_ha/"),
    (
        "decoding.plugin.name = pgoutput, scan.incremental.snapshot.enabled, a slot for each table, changelog-mode = all with REPLICA IDENTITY FULL",
        f"{_CDC}/postgres-cdc/",
    ),
    ("EXECUTE STATEMENT SET: one job, so one checkpoint of all tables", f"{_FLINK}/dev/table/sql/insert/"),
)
_TASK_MEMORY: Final = {
    # Flink's scripts work these out from the size of the process; its programs want them all.
    "taskmanager.cpu.cores": "2",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.task.heap.size": "896m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.managed.size": "64m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "192m",
    "taskmanager.memory.jvm-overhead.max": "192m",
}


class FlinkCluster:
    """A job manager, a task manager, and ZooKeeper, in which the job manager finds its job again.

    ZooKeeper is the one that Flink ships.
    """

    def __init__(self, folder: Path, jars: Sequence[Path]) -> None:
        self._folder = folder
        self._jars = jars
        self._zookeeper_port = choose_port(None, "ZooKeeper")
        self._rest_port = choose_port(None, "Flink")
        home = FlinkHome(folder / "home", jars, self._settings())
        home.prepare()
        zookeeper = "--zkConfigFile", str(self._write_zookeeper()), "--peerId", "1"
        configured = "--configDir", str(home.folder)
        mains = {
            "zookeeper": ("org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer", zookeeper, "128m"),
            "jobmanager": (
                "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
                configured,
                "512m",
            ),
            "taskmanager": ("org.apache.flink.runtime.taskexecutor.TaskManagerRunner", configured, "1g"),
        }
        self.parts = {
            name: Service(
                name, home.command(main, *words, jvm=[f"-Xmx{heap}"]), folder / f"{name}.log", home.environment
            )
            for name, (main, words, heap) in mains.items()
        }

    def start(self) -> None:
        for service in self.parts.values():
            service.start()

    def run(self, statements: Sequence[str]) -> None:
        """Run them in one session. A job that they start stays."""
        gateway = FlinkGateway(self._folder / "gateway", self._jars, {**self._settings(), "execution.target": "remote"})
        try:
            gateway.start()
            for statement in statements:
                gateway.run(statement)
        finally:
            gateway.stop()

    def tend(self) -> None:
        for service in self.parts.values():
            service.tend()

    def stop(self) -> None:
        for service in reversed(self.parts.values()):
            service.stop()

    def _settings(self) -> Mapping[str, str]:
        return {
            "jobmanager.rpc.address": LOOPBACK,
            "jobmanager.bind-host": LOOPBACK,
            "taskmanager.host": LOOPBACK,
            "taskmanager.bind-host": LOOPBACK,
            "rest.address": LOOPBACK,
            "rest.port": str(self._rest_port),
            **_TASK_MEMORY,
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": f"{LOOPBACK}:{self._zookeeper_port}",
            "high-availability.storageDir": (self._folder / "jobs").as_uri(),
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            "execution.checkpointing.interval": "3 s",
            "execution.checkpointing.dir": (self._folder / "checkpoints").as_uri(),
            "restart-strategy.type": "exponential-delay",
        }

    def _write_zookeeper(self) -> Path:
        """As in Flink's own `conf/zoo.cfg`, on loopback."""
        settings = {
            "tickTime": "2000",
            "dataDir": str(self._folder / "zookeeper"),
            "clientPort": str(self._zookeeper_port),
            "clientPortAddress": LOOPBACK,
            "admin.enableServer": "false",
        }
        file = self._folder / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return file


class FlinkJdbc:
    """The sink writes by key, so what it writes twice is there once. In SQL it has no transactions
    of its own (XA is for programs in Java).
    """

    name = "flink-jdbc"
    kafka = False
    documentation: tuple[tuple[str, str], ...] = (
        *DOCUMENTATION,
        ("a PRIMARY KEY of the sink: upsert mode", f"{_FLINK}/connectors/table/jdbc/#key-handling"),
    )
    locks = "flink", "flink_jdbc"

    def __init__(self) -> None:
        self._cluster: FlinkCluster | None = None

    @property
    def parts(self) -> Mapping[str, Part]:
        return self._cluster.parts if self._cluster else {}

    def start(self, ground: Ground) -> Copy:
        for database, dsn in ground.dsns.items():
            publish(dsn, database)
            _keep_old_rows(dsn, database)
        jars = [jar for name in self.locks for jar in server_files.fetched(locked(name))]
        self._cluster = FlinkCluster(ground.folder / "flink", jars)
        self._cluster.start()
        copy = self._make_copy(ground)
        self._cluster.run([*declare_sources(ground.dsns), *self._declare_copies(ground), carry_all(self._copy_name)])
        return copy

    def tend(self) -> None:
        if self._cluster is not None:
            self._cluster.tend()

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()

    def _make_copy(self, ground: Ground) -> Copy:
        with psycopg.connect(ground.copies, autocommit=True) as copies:
            for database in DATABASES:
                bank.create_tables(copies, database)
        return PostgresCopy(ground.copies)

    def _declare_copies(self, ground: Ground) -> list[str]:
        place = {"connector": "jdbc", "url": build_jdbc_url(ground.copies)}
        return [
            declare(self._copy_name(database, table), table, {**place, "table-name": f"{database}.{table}"})
            for database in DATABASES
            for table in TABLES
        ]

    def _copy_name(self, database: str, table: str) -> str:
        return f"copy_{database}_{table}"


class FlinkIceberg(FlinkJdbc):
    """The sink commits each table at the end of a checkpoint. The catalog is in the destination."""

    name = "flink-iceberg"
    documentation = (
        *DOCUMENTATION,
        (
            "format-version = 2, a PRIMARY KEY; no write.upsert.enabled: each change has the row before it",
            "https://nightlies.apache.org/flink/flink-cdc-docs-release-3.5/docs/connectors/flink-sources/tutorials/build-real-time-data-lake-tutorial/",
        ),
    )
    locks = "flink", "flink_iceberg"

    def __init__(self) -> None:
        super().__init__()
        self._lake: LakeCopy | None = None

    def stop(self) -> None:
        super().stop()
        if self._lake is not None:
            self._lake.duckdb.close()

    def _make_copy(self, ground: Ground) -> Copy:
        self._lake = LakeCopy(ground.copies)
        return self._lake

    def _declare_copies(self, ground: Ground) -> list[str]:
        choice = lake.choose_catalog(ground)
        catalog = {
            "type": "iceberg",
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": choice.uri,
            "warehouse": str(ground.folder / "lake"),
            **choice.properties,
        }
        version = {"format-version": "2"}
        return [
            f"CREATE CATALOG {lake.CATALOG} WITH ({_options(catalog)})",
            *(f"CREATE DATABASE {lake.CATALOG}.{database}" for database in DATABASES),
            *(declare(self._copy_name(database, table), table, version) for database in DATABASES for table in TABLES),
        ]

    def _copy_name(self, database: str, table: str) -> str:
        return f"{lake.CATALOG}.{database}.{table}"


def declare_sources(dsns: Mapping[str, str]) -> list[str]:
    """A table of Flink CDC for each of the bank's, with a slot of its own."""
    found = []
    for database, dsn in dsns.items():
        source = conninfo_to_dict(dsn)
        place = {
            "connector": "postgres-cdc",
            "hostname": str(source["host"]),
            "port": str(source["port"]),
            "username": str(source["user"]),
            "password": "none",
            "database-name": str(source["dbname"]),
            "schema-name": database,
            "decoding.plugin.name": "pgoutput",
            "scan.incremental.snapshot.enabled": "true",
            "debezium.publication.name": database,
            "debezium.publication.autocreate.mode": "disabled",
        }
        for table in TABLES:
            own = {"table-name": table, "slot.name": f"{database}_{table}"}
            found.append(declare(_source_name(database, table), table, {**place, **own}))
    return found


def carry_all(copy_name: Callable[[str, str], str]) -> str:
    """One job that fills the copy of every table."""
    inserts = "".join(
        f"INSERT INTO {copy_name(database, table)} SELECT * FROM {_source_name(database, table)};\n"
        for database in DATABASES
        for table in TABLES
    )
    return f"EXECUTE STATEMENT SET BEGIN\n{inserts}END"


def declare(name: str, table: str, options: Mapping[str, str]) -> str:
    """CREATE TABLE in Flink's SQL for a table with the bank's columns."""
    columns = ", ".join(f"`{column}` BIGINT" for column in COLUMNS[table])
    return f"CREATE TABLE {name} ({columns}, PRIMARY KEY (`id`) NOT ENFORCED) WITH ({_options(options)})"


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


def _source_name(database: str, table: str) -> str:
    return f"source_{database}_{table}"


def _keep_old_rows(dsn: str, database: str) -> None:
    """A change carries the row that was there before."""
    with psycopg.connect(dsn, autocommit=True) as session:
        for table in TABLES:
            session.execute(f"ALTER TABLE {database}.{table} REPLICA IDENTITY FULL".encode())
