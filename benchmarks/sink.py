"""What the sink costs: rows a CPU second through its producer and through librdkafka alone, and the
latency of a small transaction.

    .venv/bin/python benchmarks/sink.py BOOTSTRAP [ROWS]

Prints one line a measurement and, last, all of them as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable

from confluent_kafka import Producer

from twofold.kafka.client import KafkaSettings
from twofold.kafka.names import Names
from twofold.kafka.open_check import OpenCheck
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold.kafka.row_batch import RowBatch
from twofold.kafka.schema_registry import SchemaIds
from twofold.kafka.topic_rules import RequiredTopic, TopicPolicy
from twofold.kafka.topics import Topics
from twofold.kafka.watch import Watch
from twofold_avro.records import Commit, Progress

PARTITIONS = 6
TURN = 10_000
SMALL = 1000


def rows(topic: str, count: int) -> RowBatch:
    batch = RowBatch()
    lists = batch.lists(topic, PARTITIONS)
    for n in range(count):
        lists[n % PARTITIONS].append({"key": b"%08d" % n, "value": b"v" * 200})
    return batch


def cpu_of(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def progress(sequence: int) -> Progress:
    return Progress(sequence, sequence, "7400000000000000001", 1, "db", "slot", 8, 0)


class Bench:
    def __init__(self, bootstrap: str) -> None:
        self.settings = KafkaSettings({"bootstrap.servers": bootstrap})
        self.names = Names(f"bench{uuid.uuid4().hex[:8]}", "bench")
        self.table = f"{self.names.prefix}.public.a"
        self.watch = Watch()
        names = self.names
        Topics(self.settings, TopicPolicy(1, 1)).ensure(
            [
                RequiredTopic(names.commits, "commits"),
                RequiredTopic(names.progress, "progress"),
                RequiredTopic(names.prepared, "prepared"),
                RequiredTopic(self.table, "table", PARTITIONS),
            ]
        )
        self.sequence = 0

    def publisher(self, ids: int = 2) -> Publisher:
        """With so many main producers as take turns."""
        mains = [TransactionalProducer(f"{self.names.main_ids[0]}.{n}", self.settings, self.watch) for n in range(ids)]
        for main in mains:
            main.init()
        return Publisher(self.names, SchemaIds(1, 2, 3, 4), mains, [], OpenCheck(self.settings, self.watch))

    def commit(self, publisher: Publisher, batch: RowBatch) -> None:
        self.sequence += 1
        publisher.produce(batch)
        publisher.commit_main(
            TransactionRecords(Commit(self.sequence, "batch", self.sequence, 0, 1, 0), progress(self.sequence))
        )

    def ours(self, count: int) -> float:
        publisher = self.publisher()
        batch = rows(self.table, TURN)

        def work() -> None:
            for _ in range(count // TURN):
                self.commit(publisher, batch)

        return count / cpu_of(work)

    def raw(self, count: int) -> float:
        """The same rows and transactions with librdkafka's producer alone, and no records but the
        rows.
        """
        producer = Producer(self.settings.producer(f"{self.names.prefix}.raw"))
        producer.init_transactions(30)
        batch = rows(self.table, TURN)

        def work() -> None:
            for _ in range(count // TURN):
                producer.begin_transaction()
                for topic, partition, records in batch.partitions():
                    producer.produce_batch(topic, records, partition=partition)
                producer.commit_transaction(30)

        return count / cpu_of(work)

    def small(self, ids: int) -> tuple[float, float]:
        """begin + 1 row + commit record + progress + commit, back to back, with this many main
        producers: p50 and p99 in ms.
        """
        publisher, batch, times = self.publisher(ids), rows(self.table, 1), []
        for _ in range(SMALL):
            begun = time.perf_counter()
            self.commit(publisher, batch)
            times.append((time.perf_counter() - begun) * 1000)
        times.sort()
        return times[SMALL // 2], times[SMALL * 99 // 100]


def main(bootstrap: str, count: int = 500_000) -> None:
    bench = Bench(bootstrap)
    result = {"rows_per_cpu_s": bench.ours(count), "rows_per_cpu_s_raw": bench.raw(count)}
    for ids in (1, 2, 3):
        result[f"small_ms_p50_{ids}_ids"], result[f"small_ms_p99_{ids}_ids"] = bench.small(ids)
    result = {name: round(value, 2) for name, value in result.items()}
    for name, value in result.items():
        print(f"{name:>24} {value:>12,}")
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
