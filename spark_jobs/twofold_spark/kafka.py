"""How the jobs read Kafka: the streams read_committed, a commit record's ranges exactly.

The ranges are read under read_uncommitted, and that is safe: a range is known from a commit record that a
read_committed reader has seen, so its Kafka transaction is committed, and between `first` and `last` of a range there
are only that transaction's records and markers, which no consumer is ever handed. What lies between two ranges is
filtered out by offset, and the number of rows of every partition is checked. Under read_committed the same read would wait
for (and in Spark fail on) an open transaction further *below* in the partition that has nothing to do with the range:
one prepared transaction in doubt would hold up every other table's mirror.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.commits import Range, joined

_BLOCK_BITS = 10
_RECORDS_OF_A_TASK = 100_000
_AT_ONCE = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.wait.ms": "10",
}
"""A range is there and is read from its begin to its end: the client's 500 records a poll, and the half second in which the broker waits for more than there is, are for those who wait.
The client asks for what follows before Spark asks for the partition's end, on the same connection: each task took that half second."""


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where the brokers are, and what else their client must be told (`security.protocol` and the like)."""

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict)

    def options(self, isolation: str) -> dict[str, str]:
        given = {f"kafka.{key}": value for key, value in self.client.items()}
        return {**given, "kafka.bootstrap.servers": self.bootstrap, "kafka.isolation.level": isolation}


def admin(spark: SparkSession, kafka: Kafka) -> Any:
    """Kafka's own client for looking after a cluster, which Spark brings; `close()` it."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for name, value in {**kafka.client, "bootstrap.servers": kafka.bootstrap}.items():
        settings.put(name, value)
    return jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)


def beginnings(spark: SparkSession, kafka: Kafka, pattern: str) -> dict[str, dict[int, int]]:
    """Of every topic of such a name, the first offset that each partition still has."""
    jvm: Any = spark._jvm
    client = admin(spark, kafka)
    try:
        names, places = jvm.java.util.ArrayList(), jvm.java.util.HashMap()
        for name in client.listTopics().names().get():
            if re.fullmatch(pattern, name):
                names.add(name)
        topics = client.describeTopics(names).allTopicNames().get()
        for name in names:
            for of_topic in topics[name].partitions():
                place = jvm.org.apache.kafka.common.TopicPartition(name, of_topic.partition())
                places.put(place, jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest())
        offsets = client.listOffsets(places).all().get()
        found: dict[str, dict[int, int]] = {}
        for place in places:
            found.setdefault(place.topic(), {})[place.partition()] = offsets[place].offset()
        return found
    finally:
        client.close()


def stream(spark: SparkSession, kafka: Kafka, *, max_offsets: int, **options: str) -> DataFrame:
    """A stream of what the options subscribe to, from the beginning, read_committed. A topic that lost what was not read yet fails the query."""
    return (
        spark.readStream.format("kafka")
        .options(**kafka.options("read_committed"))
        .options(**options)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", max_offsets)
        .load()
    )


def rest(spark: SparkSession, kafka: Kafka, topic: str, first: int, **options: str) -> DataFrame:
    """What is committed now in a topic of one partition, from an offset on."""
    return (
        spark.read.format("kafka")
        .options(**kafka.options("read_committed"))
        .options(**options)
        .option("assign", json.dumps({topic: [0]}))
        .option("startingOffsets", json.dumps({topic: {"0": first}}))
        .load()
    )


def ranges(spark: SparkSession, kafka: Kafka, declared: Iterable[Range], *, over_markers: bool = False) -> DataFrame:
    """Exactly the records of the ranges of one topic: partition, offset, key, value. Quicker `over_markers`, and then as `joined` says."""
    stretches = joined(declared, over_markers=over_markers)
    topic = stretches[0].topic
    partitions = sorted({r.partition for r in stretches})
    first = {str(p): min(r.first for r in stretches if r.partition == p) for p in partitions}
    end = {str(p): max(r.last for r in stretches if r.partition == p) + 1 for p in partitions}
    rows = (
        spark.read.format("kafka")
        .options(**{**_AT_ONCE, **kafka.options("read_uncommitted")})
        .option("assign", json.dumps({topic: partitions}))
        .option("startingOffsets", json.dumps({topic: first}))
        .option("endingOffsets", json.dumps({topic: end}))
        # What is not there any more is missing in the counts, which say of which partition, and how many.
        .option("failOnDataLoss", "false")
        # As many tasks as keep the cores evenly busy, however many partitions the topic has.
        .option("maxRecordsPerPartition", _RECORDS_OF_A_TASK)
        .load()
        .select("partition", "offset", "key", "value")
    )
    if len(stretches) == len(partitions):
        return rows
    # By blocks of offsets: however many ranges there are, a record is compared with those of its block.
    blocks = [
        (r.partition, block, r.first, r.last)
        for r in stretches
        for block in range(r.first >> _BLOCK_BITS, (r.last >> _BLOCK_BITS) + 1)
    ]
    wanted = spark.createDataFrame(blocks, "in_partition int, block long, first long, last long")
    same_block = f.shiftright("offset", _BLOCK_BITS) == f.col("block")
    inside = f.col("offset").between(f.col("first"), f.col("last"))
    return rows.join(
        f.broadcast(wanted), (f.col("partition") == f.col("in_partition")) & same_block & inside, "left_semi"
    )
