"""Debezium on Kafka Connect, exactly once, and Debezium's JDBC sink."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Mapping
from typing import Final

import psycopg
from bench.connect import SOON_S, ConnectWorker, avro_converter, converter_settings, debezium_settings

from compare import bank
from compare.bank import DATABASES, TABLES
from compare.faults import Part
from compare.ground import Ground, PostgresCopy
from compare.looks import Copy
from compare.postgres import publish
from twofold_spark.sources.postgres_connection import build_jdbc_url

TOPICS: Final = tuple(f"{database}.{database}.{table}" for database in DATABASES for table in TABLES)
DOCUMENTATION: Final = (
    ("exactly.once.source.support, exactly.once.support", "https://debezium.io/documentation/reference/stable/configuration/eos.html"),
    ("plugin.name, slot.name, publication.name, snapshot.mode", "https://debezium.io/documentation/reference/stable/connectors/postgresql.html"),
    ("a failed connector and its failed tasks are restarted", "https://strimzi.io/docs/operators/latest/deploying#con-auto-restart-str"),
)  # fmt: skip
_MADE_S: Final = 60.0
_RESTART_S: Final = 2.0
"""A failed connector is restarted after so long."""


class Worker(ConnectWorker):
    """A worker whose operator starts it again, and restarts its connectors that failed."""

    def __init__(self, ground: Ground, plugins: tuple[str, ...]) -> None:
        # As `bench` runs it, with a heap for two databases that are small.
        super().__init__(
            ground.folder / "connect",
            ground.kafka.bootstrap,
            plugins=plugins,
            group="compare",
            jvm=("-Xmx1g", "-Duser.timezone=UTC"),
        )
        self._names: list[str] = []
        self._looked = 0.0

    def start(self) -> None:
        """The faults go on while it starts."""
        self.launch()

    def make(self, name: str, config: Mapping[str, str]) -> None:
        """A worker that is about to share out its tasks takes nothing; it answers 409 then."""
        deadline = time.monotonic() + _MADE_S
        while True:
            try:
                super().make(name, config)
            except urllib.error.HTTPError as error:
                if error.code != 409 or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                self._names.append(name)
                return

    def tend(self) -> None:
        if self._process is not None and not self._process.running():
            self.start()
        if time.monotonic() < self._looked + _RESTART_S:
            return
        self._looked = time.monotonic()
        for name in self._names:
            try:
                if self.failure(name, SOON_S) is not None:
                    self.restart(name)
            except OSError:
                # It is not up, or waits for Kafka; the next look comes soon.
                return


def start_sources(ground: Ground, worker: Worker, converter: Mapping[str, str]) -> None:
    """A connector for each database; the order within a table is that of its one partition."""
    for database, dsn in ground.dsns.items():
        publish(dsn, database)
        settings = debezium_settings(dsn, database, database, partitions=1)
        worker.make(database, {**settings, "snapshot.mode": "initial", **converter_settings(converter)})


class DebeziumJdbc:
    """Debezium's sink writes by key, so what it writes twice is there once."""

    name = "debezium-jdbc"
    kafka = True
    documentation = (
        *DOCUMENTATION,
        (
            "insert.mode, primary.key.mode, delete.enabled",
            "https://debezium.io/documentation/reference/stable/connectors/jdbc.html",
        ),
        (
            "isolation.level = read_committed of the sink's consumer",
            "https://kafka.apache.org/43/configuration/consumer-configs/",
        ),
    )

    def __init__(self) -> None:
        self._worker: Worker | None = None

    @property
    def parts(self) -> Mapping[str, Part]:
        return {"connect": self._worker} if self._worker else {}

    def start(self, ground: Ground) -> Copy:
        with psycopg.connect(ground.copies, autocommit=True) as copies:
            for database in DATABASES:
                bank.create_tables(copies, database)
        self._worker = Worker(ground, ("debezium", "jdbc"))
        self._worker.start()
        self._worker.await_answers()
        converter = avro_converter(ground.registry.port)
        start_sources(ground, self._worker, converter)
        self._worker.make("copies", {**_sink_settings(ground), **converter_settings(converter)})
        return PostgresCopy(ground.copies)

    def tend(self) -> None:
        if self._worker is not None:
            self._worker.tend()

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()


def _sink_settings(ground: Ground) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "topics": ",".join(TOPICS),
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.isolation.level": "read_committed",
        "connection.url": build_jdbc_url(ground.copies),
        "connection.username": "postgres",
        "connection.password": "none",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "none",
        "collection.name.format": "${source.schema}.${source.table}",
    }
