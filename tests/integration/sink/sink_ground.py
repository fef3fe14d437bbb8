"""A connector's sink on real servers: names, settings, topics, and what readers of either isolation
see.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from helpers.reading import read_to_end
from twofold.errors import UncertainEnd
from twofold.kafka.client import KafkaSettings
from twofold.kafka.fencing import Fencing, fence
from twofold.kafka.names import Names
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import Publisher
from twofold.kafka.row_batch import RowBatch
from twofold.kafka.schema_registry import Registry, SchemaIds
from twofold.kafka.topic_rules import RequiredTopic, TopicPolicy
from twofold.kafka.topics import Topics
from twofold.kafka.watch import Watch
from twofold_avro.records import Commit, Progress
from twofold_common.positions import Lsn

PARTITIONS = 3


@dataclass
class Ground:
    """What one connector stands on. `take_over` is a (new) instance of it."""

    bootstrap: str
    names: Names
    registry: Registry
    ids: SchemaIds
    watch: Watch
    ending: ExitStack
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return f"{self.names.prefix}.public.a"

    @property
    def settings(self) -> KafkaSettings:
        return KafkaSettings(
            {"bootstrap.servers": self.bootstrap, **self.options.get("client", {})},
            transaction_timeout_ms=self.options.get("transaction_timeout_ms", 60_000),
            call_timeout_s=self.options.get("call_timeout_s", 30),
            retry_factor=self.options.get("retry_factor", 1),
        )

    def wanted(self) -> list[RequiredTopic]:
        names = self.names
        return [
            RequiredTopic(names.commits, "commits"),
            RequiredTopic(names.progress, "progress"),
            RequiredTopic(names.prepared, "prepared"),
            RequiredTopic(self.table, "table", PARTITIONS, table="public.a"),
        ]

    def topics(self) -> Topics:
        return Topics(self.settings, TopicPolicy(1, 1))

    def take_over(self, pool: int = 2, confirmed: Lsn | None = None) -> Fencing:
        """As the supervisor: on a busy machine an end may take so long that it is in doubt, and is
        recovered from.
        """
        while True:
            try:
                fencing = fence(
                    self.settings, self.names, self.registry, self.ids, pool=pool, watch=self.watch, confirmed=confirmed
                )
            except UncertainEnd:
                continue
            self.ending.callback(fencing.publisher.close)
            return fencing

    def bystander(self, topic: str = "") -> TransactionalProducer:
        """Another program's producer, with a transaction begun."""
        other = TransactionalProducer(f"{self.names.prefix}.other", self.settings, self.watch)
        self.ending.callback(other.destroy)
        other.init()
        other.begin()
        other.produce(topic or self.table, 0, [{"key": b"k", "value": b"bystander"}])
        other.flush()
        return other

    def rows(self, *values: str) -> RowBatch:
        """One record a value, partition by partition."""
        batch = RowBatch()
        lists = batch.lists(self.table, PARTITIONS)
        for n, value in enumerate(values):
            lists[n % PARTITIONS].append({"key": str(n).encode(), "value": value.encode()})
        return batch

    def rows_in(self, partition: int, *values: str) -> RowBatch:
        """One record a value, all in that partition."""
        batch = RowBatch()
        batch.lists(self.table, PARTITIONS)[partition].extend(
            {"key": str(n).encode(), "value": value.encode()} for n, value in enumerate(values)
        )
        return batch

    def open(self, publisher: Publisher, slot: int, *batches: RowBatch) -> None:
        """Open a prepared transaction, and wait until its rows are acknowledged."""
        publisher.open(slot, batches)
        eventually(lambda: publisher.has_opened(slot))

    def committed(self, topic: str = "") -> list[str]:
        return sorted(value for _, _, value in self.read(topic or self.table, "read_committed"))

    def uncommitted(self, topic: str = "") -> list[str]:
        return sorted(value for _, _, value in self.read(topic or self.table, "read_uncommitted"))

    def settle(self) -> None:
        """Wait until the markers of what was committed are written: no transaction is open."""
        eventually(lambda: self._ends("read_committed") == self._ends("read_uncommitted"))

    def _ends(self, isolation: str) -> list[int]:
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": self.names.prefix, "isolation.level": isolation}
        )
        try:
            return [consumer.get_watermark_offsets(TopicPartition(self.table, p), 10)[1] for p in range(PARTITIONS)]
        finally:
            consumer.close()

    def read(self, topic: str, isolation: str) -> list[tuple[int, int, str]]:
        """(partition, offset, value) of all that a reader of the isolation gets now."""
        return read(self.bootstrap, topic, isolation)


def read(bootstrap: str, topic: str, isolation: str) -> list[tuple[int, int, str]]:
    return [
        (message.partition() or 0, message.offset() or 0, (message.value() or b"").decode("latin1"))
        for message in read_to_end(bootstrap, [topic], isolation=isolation, patience_s=20)
    ]


def eventually(holds: Callable[[], Any], within_s: float = 60) -> None:
    """After an acknowledged commit the last stable offset may trail for a moment."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def commit(sequence: int, kind: Any = "batch") -> Commit:
    return Commit(sequence, kind, applied_lsn=sequence * 100, committed_at=0, transactions=1, rows=0)


def progress(sequence: int, pool: int = 2) -> Progress:
    return Progress(sequence * 100, sequence, "7400000000000000001", 1, "db", "slot", pool, 0)
