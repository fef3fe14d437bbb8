"""The servers of a benchmark, and what a read_committed consumer finds in them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.connect import ConnectWorker
from bench.meter import cpu_seconds
from twofold.stack import LocalStack, temporary_folder
from twofold.stack.kafka import PRODUCTION_JVM

PARTITIONS = 6
_IDLE_S, _SETTLES_S = 1.0, 120.0
_POSTGRES = {
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "autovacuum": "off",
}


class Ground:
    """PostgreSQL, Kafka and the registry; Kafka Connect when it is asked for."""

    def __init__(
        self,
        postgres: str | None = None,
        settings: Mapping[str, str] | None = None,
        kafka: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are PostgreSQL's, `kafka` the broker's."""
        self._folder = temporary_folder()
        self.stack = LocalStack(
            self._folder,
            postgres=postgres,
            postgres_settings={**_POSTGRES, **(settings or {})},
            kafka_settings=kafka,
            kafka_jvm=PRODUCTION_JVM,
        )
        self._connect: ConnectWorker | None = None

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def bootstrap(self) -> str:
        return self.stack.kafka.bootstrap

    @property
    def registry_port(self) -> int:
        return self.stack.registry.port

    @property
    def broker_pid(self) -> int:
        return self.stack.kafka.nodes[0].pid

    @property
    def connect(self) -> ConnectWorker:
        if self._connect is None:
            self._connect = ConnectWorker(self._folder / "connect", self.bootstrap)
            self._connect.start()
        return self._connect

    def database(self, name: str) -> str:
        """The conninfo of a fresh database."""
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.stack.postgres.dsn(name)

    def drop_database(self, name: str) -> None:
        """With its slots."""
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
            )
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def make_topics(self, topics: Iterable[str]) -> None:
        """As Twofold makes them, so that both write into the same kind."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(t, num_partitions=PARTITIONS) for t in topics]).values():
            future.result(30)

    def drop_topics(self, topics: Iterable[str]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for future in admin.delete_topics(list(topics)).values():
            try:
                future.result(30)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    def settle(self) -> None:
        """Wait until the broker is idle: topics that were dropped are deleted behind the answer."""

        def idle() -> bool:
            before = cpu_seconds(self.broker_pid)
            time.sleep(_IDLE_S)
            return cpu_seconds(self.broker_pid) - before < _IDLE_S / 10

        wait_until("the broker is idle", idle, _SETTLES_S)

    def kafka_bytes(self, topics: Iterable[str]) -> int:
        """What the topics' logs take on the broker's disk."""
        data = self.stack.kafka.nodes[0].folder / "data"
        return sum(log.stat().st_size for topic in topics for log in data.glob(f"{topic}-[0-9]*/*.log"))

    def __enter__(self) -> Self:
        self.stack.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._connect is not None:
            self._connect.stop()
        self.stack.stop()
        if kind is None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Committed:
    """A read_committed consumer without a group."""

    def __init__(self, bootstrap: str) -> None:
        self._settings: dict[str, str | bool | int] = {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            # It outlives the broker at the end of a benchmark and need not say so.
            "log_level": 0,
        }
        self.consumer = Consumer(self._settings)
        self._uncommitted: Consumer | None = None

    def partitions(self, topic: str) -> list[TopicPartition]:
        found = self.consumer.list_topics(topic, timeout=10).topics[topic]
        return [] if found.error is not None else [TopicPartition(topic, n, 0) for n in found.partitions]

    def has_any(self, topic: str) -> bool:
        """Whether something in it is visible: the last stable offset of a partition has moved."""
        for partition in self.partitions(topic):
            try:
                _low, high = self.consumer.get_watermark_offsets(partition, timeout=10)
            except KafkaException:
                # A topic that is being made has no leader yet; the caller asks again until its
                # deadline.
                return False
            if high > 0:
                return True
        return False

    def written(self, topic: str) -> int:
        """How many records there are, visible or not, markers among them."""
        if self._uncommitted is None:
            self._uncommitted = Consumer({**self._settings, "isolation.level": "read_uncommitted"})
        offsets = [self._uncommitted.get_watermark_offsets(p, timeout=10)[1] for p in self.partitions(topic)]
        return sum(offsets)

    def count(self, topics: Iterable[str], within_s: float = 300) -> int:
        """How many records are visible, from the first offset to the last stable one of every
        partition.
        """
        wanted = [partition for topic in topics for partition in self.partitions(topic)]
        self.consumer.assign(wanted)
        rows, open_partitions, deadline = 0, len(wanted), time.monotonic() + within_s
        while open_partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {rows} rows could be read within {within_s:.0f} s")
            for message in self.consumer.consume(10_000, 0.2):
                if (error := message.error()) is None:
                    rows += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions -= 1
                else:
                    raise KafkaException(error)
        self.consumer.unassign()
        return rows

    def close(self) -> None:
        self.consumer.close()
        if self._uncommitted is not None:
            self._uncommitted.close()


def wait_until(what: str, reached: Callable[[], bool], within_s: float, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + within_s
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}")
        time.sleep(pause_s)
