"""How the jobs read Kafka: the commit records and the changelog's rows read_committed, a commit record's ranges exactly.

The ranges are read under read_committed where they are decided (`stable.StableOffsets`): records of an aborted transaction,
which a commit record must not name, are missing in the count then. Where another transaction is open further *below* in
the partition, read_committed would wait for it (and in Spark fail): one prepared transaction in doubt would hold up every
other table's mirror. There they are read under read_uncommitted: a range is known from a commit record that a
read_committed reader has seen, so its Kafka transaction is committed, and between `first` and `last` of a range there
are only that transaction's records and markers, which no consumer is ever handed. What lies between two ranges is
filtered out by offset, and the number of rows of every partition is checked either way.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import MissingGround
from twofold_spark.sources.commit_records import Range, joined
from twofold_spark.streaming import asked_to_end

ANSWER_WITHIN_S: Final = 15
_BLOCK_BITS = 10
_RECORDS_OF_A_TASK = 100_000
_FEW_OFFSETS, _FEW_PARTITIONS = 10_000, 8
_AT_ONCE = {"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": str(2 << 20)}
"""A range is there and is read from its begin to its end: the client's 500 records a poll are for those who wait."""
_NO_WAIT = {"kafka.fetch.max.wait.ms": "10"}
"""So is the half second in which the broker waits for more than there is. The client asks for what follows before Spark asks for the
partition's end, on the same connection: each task took that half second, and so did each batch of the stream."""


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where the brokers are, and what else their client must be told (`security.protocol` and the like)."""

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict)

    def options(self, isolation: str) -> dict[str, str]:
        given = {f"kafka.{key}": value for key, value in self.client.items()}
        return {**_NO_WAIT, **given, "kafka.bootstrap.servers": self.bootstrap, "kafka.isolation.level": isolation}


def admin(spark: SparkSession, kafka: Kafka) -> Any:
    """Kafka's own client for looking after a cluster, which Spark brings; `close()` it."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for name, value in {**kafka.client, "bootstrap.servers": kafka.bootstrap}.items():
        settings.put(name, value)
    return jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)


def check_answers(spark: SparkSession, kafka: Kafka) -> None:
    """Raise `MissingGround` unless a broker answers within `ANSWER_WITHIN_S`. The stream itself asks for three minutes, in silence."""
    # An exception in the midst of a call into the JVM would leave its answer to the next one, so a signal only says that it came.
    with asked_to_end() as asked:
        try:
            _ask(spark, kafka, asked)
        except Py4JJavaError as error:
            raise _does_not_answer(kafka, error) from error
    if asked.is_set():
        raise KeyboardInterrupt


def _ask(spark: SparkSession, kafka: Kafka, asked_to_end: threading.Event) -> None:
    jvm: Any = spark._jvm
    client = admin(spark, kafka)
    try:
        options = jvm.org.apache.kafka.clients.admin.DescribeClusterOptions()
        nodes = client.describeCluster(options.timeoutMs(ANSWER_WITHIN_S * 1000)).nodes()
        while not nodes.isDone() and not asked_to_end.wait(0.05):
            pass
        if not asked_to_end.is_set():
            nodes.get()
    finally:
        client.close(jvm.java.time.Duration.ofSeconds(0))


def _does_not_answer(kafka: Kafka, error: Py4JJavaError) -> MissingGround:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return MissingGround(
        f"no Kafka broker answers at {kafka.bootstrap} ({cause.getMessage()}): "
        "check --bootstrap, and the TLS and SASL settings of --kafka-file and --kafka"
    )


def stream(spark: SparkSession, kafka: Kafka, *, max_offsets: int, **subscription: str) -> DataFrame:
    """A stream from the beginning, read_committed. A topic that lost what was not read yet fails the query."""
    options = {"failOnDataLoss": "true", "maxOffsetsPerTrigger": str(max_offsets), **subscription}
    return _stream(spark, kafka, options)


def news(spark: SparkSession, kafka: Kafka, pattern: str) -> DataFrame:
    """A stream that has a batch whenever more is committed in topics of such names; what is in it is read otherwise."""
    return _stream(spark, kafka, {"failOnDataLoss": "false", "subscribePattern": pattern})


def _stream(spark: SparkSession, kafka: Kafka, options: Mapping[str, str]) -> DataFrame:
    committed = kafka.options("read_committed")
    reader = spark.readStream.format("kafka").options(**committed).options(**options)
    return reader.option("startingOffsets", "earliest").load()


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


def whole(spark: SparkSession, kafka: Kafka, topic: str) -> DataFrame:
    """What is committed now in a topic, as far as it is kept: up to the first open transaction of each partition."""
    options = {"subscribe": topic, "failOnDataLoss": "false"}
    return _records(spark, kafka.options("read_committed"), options)


def committed(
    spark: SparkSession, kafka: Kafka, topic: str, first: Mapping[int, int], end: Mapping[int, int]
) -> DataFrame:
    """Every committed record of a topic from `first` to before `end`, of each partition; fails if Kafka lost some of it."""
    return _read(spark, kafka.options("read_committed"), topic, first, end, fail_on_data_loss=True)


def _read(
    spark: SparkSession,
    client: Mapping[str, str],
    topic: str,
    first: Mapping[int, int],
    end: Mapping[int, int],
    *,
    fail_on_data_loss: bool,
) -> DataFrame:
    options = {
        "assign": json.dumps({topic: sorted(first)}),
        "startingOffsets": json.dumps({topic: {str(p): offset for p, offset in first.items()}}),
        "endingOffsets": json.dumps({topic: {str(p): offset for p, offset in end.items()}}),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    return _records(spark, client, options)


def _records(spark: SparkSession, client: Mapping[str, str], options: Mapping[str, str]) -> DataFrame:
    # As many tasks as keep the cores evenly busy, however many partitions the topic has.
    tasks = {"maxRecordsPerPartition": str(_RECORDS_OF_A_TASK)}
    reader = spark.read.format("kafka").options(**{**_AT_ONCE, **client, **options, **tasks})
    return reader.load().select("partition", "offset", "key", "value")


def ranges(
    spark: SparkSession, kafka: Kafka, declared: Iterable[Range], *, decided: bool, over_markers: bool = False
) -> DataFrame:
    """Exactly the records of the ranges of one topic: partition, offset, key, value. Quicker `over_markers`, and then as `joined` says.

    `decided`: no transaction is open below their ends, so only what is committed is read.

    Few records of few partitions come in one piece: nothing that is done with them then needs a shuffle, and a small
    batch is one task in place of a dozen.
    """
    stretches = joined(declared, over_markers=over_markers)
    topic = stretches[0].topic
    partitions = sorted({r.partition for r in stretches})
    first = {p: min(r.first for r in stretches if r.partition == p) for p in partitions}
    end = {p: max(r.last for r in stretches if r.partition == p) + 1 for p in partitions}
    # What is not there any more is missing in the counts, which say of which partition, and how many.
    isolation = "read_committed" if decided else "read_uncommitted"
    rows = _read(spark, kafka.options(isolation), topic, first, end, fail_on_data_loss=False)
    if sum(end.values()) - sum(first.values()) <= _FEW_OFFSETS and len(partitions) <= _FEW_PARTITIONS:
        rows = rows.coalesce(1)
    if len(stretches) == len(partitions):
        return rows
    wanted = _by_blocks(spark, stretches)
    same_block = f.shiftright("offset", _BLOCK_BITS) == f.col("block")
    inside = f.col("offset").between(f.col("first"), f.col("last"))
    return rows.join(
        f.broadcast(wanted), (f.col("partition") == f.col("in_partition")) & same_block & inside, "left_semi"
    )


def _by_blocks(spark: SparkSession, stretches: Iterable[Range]) -> DataFrame:
    """Each range once for each block of offsets that it is in: however many there are, a record is compared with those of its block.

    Made by the JVM, of one text: of `createDataFrame`'s rows executors make Spark's by a Python of their own.
    """
    jvm: Any = spark._jvm
    texts = jvm.java.util.ArrayList()
    texts.add(json.dumps([(r.partition, r.first, r.last) for r in stretches]))
    given = DataFrame(
        spark._jsparkSession.createDataset(texts, jvm.org.apache.spark.sql.Encoders.STRING()).toDF(), spark
    )
    each = given.select(f.explode(f.from_json("value", "array<array<long>>")).alias("r"))
    first, last = f.col("r")[1], f.col("r")[2]
    block = f.explode(f.sequence(f.shiftright(first, _BLOCK_BITS), f.shiftright(last, _BLOCK_BITS)))
    return each.select(
        f.col("r")[0].alias("in_partition"), block.alias("block"), first.alias("first"), last.alias("last")
    )
