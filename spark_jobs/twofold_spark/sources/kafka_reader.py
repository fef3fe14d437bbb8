"""How the jobs read Kafka's records.

Commit records and the changelog's rows are read read_committed. The offset ranges of a commit
record are read exactly, in one of two ways.

- Decided ranges (`are_decided`) are read read_committed. Records of an aborted transaction,
  which no commit record may name, are then missing from the count.
- Above an open transaction of its partition a range is read read_uncommitted. With read_committed
  the read would wait (and fail in Spark): one prepared transaction in doubt would delay every other
  table.

The second way is safe. A range is known from a commit record that a read_committed reader has seen,
so its Kafka transaction is committed. Between `first` and `last` of a range there are only that
transaction's records and markers, and no consumer receives markers. Offsets between two ranges are
filtered out. The number of rows of every partition is checked in both ways.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.sources.commit_records import OffsetRange, join_ranges
from twofold_spark.sources.kafka_client import ASKED_AGAIN_S, TOPIC_WITHIN_S, UNKNOWN_TOPIC, Kafka, KafkaAdmin

T = TypeVar("T")
MARKERS_WITHIN_S = 5.0
"""How long to wait for a transaction's markers.

The broker writes them some milliseconds after it answers the commit.
"""
_POLL_S = 0.01
_ANSWER_WITHIN_MS = 5000

_BLOCK_BITS = 10
_RECORDS_PER_TASK = 100_000
_SMALL_RECORDS_PER_TASK = 5_000
_FEW_OFFSETS, _FEW_PARTITIONS = 10_000, 8
_FEW_COMPARISONS = 200_000
"""Up to so many, each record is compared with each range: as long as a small job of Spark takes."""
PARTITION_BITS = 16
"""A topic's partition has so many; above them is the topic's number, where several are read."""
_LARGE_POLLS = {"kafka.max.poll.records": "10000"}
"""The size of a read from begin to end.

The client's default of 500 records a poll suits a consumer that waits for more.
"""


EARLIEST = -2
"""Spark's offset of the first record that Kafka still has."""


def wait_for_topic(read: Callable[[], T], *, within_s: float = TOPIC_WITHIN_S) -> T:
    """Read, and again for some seconds while the broker that Spark asks does not know a topic.

    A broker that stood still knows a new topic later than the others. Spark asks once.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return read()
        except Exception as error:
            if UNKNOWN_TOPIC not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(ASKED_AGAIN_S)


def watch_topics(spark: SparkSession, kafka: Kafka, **subscription: str) -> DataFrame:
    """Open a stream that has a batch whenever more is committed in the topics that Spark's option
    names.

    Its rows are not used: the jobs read them by their offsets.
    """
    options = {**kafka.options("read_committed"), "failOnDataLoss": "false", "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**options).options(**subscription).load()


def read_from(spark: SparkSession, kafka: Kafka, topic: str, first: int, **options: str) -> DataFrame:
    """Read what is committed now in a topic of one partition, from an offset on."""
    return (
        spark.read.format("kafka")
        .options(**kafka.options("read_committed"))
        .options(**options)
        .option("assign", json.dumps({topic: [0]}))
        .option("startingOffsets", json.dumps({topic: {"0": first}}))
        .load()
    )


def read_single_partitions(
    spark: SparkSession,
    kafka: Kafka,
    firsts: Mapping[str, int],
    ends: Mapping[str, int],
    *,
    per_task: int = _SMALL_RECORDS_PER_TASK,
) -> DataFrame:
    """Read what is committed in these offsets of topics of one partition: topic, offset, value.

    What retention has removed is missing. A task has a bounded number of records.
    """
    options = {
        **_offset_options({topic: {0: first} for topic, first in firsts.items()}, {t: {0: ends[t]} for t in firsts}),
        "failOnDataLoss": "false",
        "maxRecordsPerPartition": str(per_task),
    }
    is_small = sum(ends[topic] - max(first, 0) for topic, first in firsts.items()) <= _FEW_OFFSETS
    client = kafka.options("read_committed", kept="single" if is_small else "")
    return spark.read.format("kafka").options(**client).options(**options).load().select("topic", "offset", "value")


def read_whole_topic(spark: SparkSession, kafka: Kafka, topic: str) -> DataFrame:
    """Read what Kafka still has of a topic, up to the first open transaction of each partition."""
    options = {"subscribe": topic, "failOnDataLoss": "false"}
    return _load_records(spark, kafka.options("read_committed"), options)


def read_committed(
    spark: SparkSession, kafka: Kafka, topic: str, first: Mapping[int, int], end: Mapping[int, int]
) -> DataFrame:
    """Read every committed record of each partition from `first` to before `end`.

    The read fails if Kafka lost some of them.
    """
    options = {**_offset_options({topic: first}, {topic: end}), "failOnDataLoss": "true"}
    return _load_records(spark, kafka.options("read_committed"), options)


def _offset_options(firsts: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]) -> dict[str, str]:
    """Make the options that name offsets, by topic and partition."""
    return {
        "assign": json.dumps({topic: sorted(first) for topic, first in firsts.items()}),
        "startingOffsets": json.dumps({topic: dict(first) for topic, first in firsts.items()}),
        "endingOffsets": json.dumps({topic: dict(end) for topic, end in ends.items()}),
    }


def _load_records(
    spark: SparkSession, client: Mapping[str, str], options: Mapping[str, str], *, place: Column | str = "partition"
) -> DataFrame:
    # So many tasks that all cores stay busy, however many partitions the topic has.
    tasks = {"maxRecordsPerPartition": str(_RECORDS_PER_TASK)}
    reader = spark.read.format("kafka").options(**{**_LARGE_POLLS, **client, **options, **tasks})
    return reader.load().select(place, "offset", "key", "value")


def read_ranges(
    spark: SparkSession, kafka: Kafka, declared: Iterable[OffsetRange], *, decided: bool, over_markers: bool = False
) -> DataFrame:
    """Read exactly the records of the ranges: partition, offset, key, value.

    Where the ranges are of several topics, their partitions have the topics' numbers in them
    (`number_topics`).

    `decided`: no transaction is open below the ranges' ends, so the read is read_committed.
    `over_markers` is faster, under the condition that `join_ranges` names.

    A few records come as one task for eight partitions. Of so few partitions no later step needs a
    shuffle, and a small batch is one task instead of a dozen.
    """
    ranges = join_ranges(declared, over_markers=over_markers)
    firsts: dict[str, dict[int, int]] = defaultdict(dict)
    ends: dict[str, dict[int, int]] = defaultdict(dict)
    for each in ranges:  # in the order of their offsets
        firsts[each.topic].setdefault(each.partition, each.first)
        ends[each.topic][each.partition] = each.last + 1
    # Lost records are missing from the counts, which name the partition and the number.
    isolation = "read_committed" if decided else "read_uncommitted"
    options = {**_offset_options(firsts, ends), "failOnDataLoss": "false"}
    numbers = number_topics(firsts)
    places = [(topic, partition) for topic, of_topic in firsts.items() for partition in of_topic]
    offsets = sum(ends[topic][partition] - firsts[topic][partition] for topic, partition in places)
    is_small = offsets <= _FEW_OFFSETS
    client = kafka.options(isolation, kept="ranges" if is_small else "")
    rows = _load_records(spark, client, options, place=_number_partition(numbers))
    if is_small:
        rows = rows.coalesce(ceil(len(places) / _FEW_PARTITIONS))
    if len(ranges) == len(places):
        return rows
    numbered = [(numbers[r.topic] + r.partition, r.first, r.last) for r in ranges]
    if offsets * len(ranges) <= _FEW_COMPARISONS:
        return rows.where(_lie_within(numbered))
    wanted = _split_into_blocks(spark, numbered)
    same_block = f.shiftright("offset", _BLOCK_BITS) == f.col("block")
    inside = f.col("offset").between(f.col("first"), f.col("last"))
    return rows.join(
        f.broadcast(wanted), (f.col("partition") == f.col("in_partition")) & same_block & inside, "left_semi"
    )


def number_topics(topics: Iterable[str]) -> dict[str, int]:
    """Return what is added to the partitions of each topic."""
    return {topic: number << PARTITION_BITS for number, topic in enumerate(sorted({*topics}))}


def _number_partition(numbers: Mapping[str, int]) -> Column:
    if len(numbers) == 1:
        return f.col("partition")
    # One literal, which is no part of the code that Spark generates: else it would compile each
    # choice of topics. A topic's name needs no quotes.
    return f.expr(f"`partition` + from_json('{json.dumps(numbers)}', 'map<string, int>')[`topic`] AS `partition`")


def _lie_within(ranges: Iterable[tuple[int, int, int]]) -> Column:
    """Whether a record lies in one of the ranges (partition, first, last): each is compared.

    A join would be a job of Spark's before the read. The ranges are one literal, which Spark does
    not write into the code that it generates: that would be compiled for each batch.
    """
    listed = f"from_json('{json.dumps(list(ranges))}', 'array<array<bigint>>')"
    return f.expr(f"exists({listed}, r -> `partition` = r[0] AND `offset` BETWEEN r[1] AND r[2])")


def _split_into_blocks(spark: SparkSession, ranges: Iterable[tuple[int, int, int]]) -> DataFrame:
    """Repeat each range (partition, first, last) for each block of offsets that it touches.

    A record is then compared only with the ranges of its block, however many ranges there are. The
    JVM makes the rows from one text: with `createDataFrame` the executors would start Python.
    """
    jvm: Any = spark._jvm
    texts = jvm.java.util.ArrayList()
    texts.add(json.dumps(list(ranges)))
    given = DataFrame(
        spark._jsparkSession.createDataset(texts, jvm.org.apache.spark.sql.Encoders.STRING()).toDF(), spark
    )
    each = given.select(f.explode(f.from_json("value", "array<array<long>>")).alias("r"))
    first, last = f.col("r")[1], f.col("r")[2]
    block = f.explode(f.sequence(f.shiftright(first, _BLOCK_BITS), f.shiftright(last, _BLOCK_BITS)))
    return each.select(
        f.col("r")[0].alias("in_partition"), block.alias("block"), first.alias("first"), last.alias("last")
    )


def are_decided(admin: KafkaAdmin, ranges: Iterable[OffsetRange]) -> bool:
    """Whether no other transaction is open below one of the ranges.

    The last stable offset of a partition is where its oldest open transaction begins. A range that
    ends below it is decided: read_committed returns its committed records and no others. So a
    commit record that names rows of an aborted transaction shows in the count. A range above it
    only lies behind an open transaction. That is mostly a prepared one in doubt, may stay for long,
    and says nothing of the range.
    """
    lasts: dict[tuple[str, int], int] = {}
    firsts = set()
    for r in ranges:
        firsts.add((r.topic, r.partition, r.first))
        lasts[r.topic, r.partition] = max(r.last, lasts.get((r.topic, r.partition), -1))
    deadline = time.monotonic() + MARKERS_WITHIN_S
    while lasts:
        try:
            stable = admin.list_stable_offsets(lasts, within_ms=_ANSWER_WITHIN_MS)
        except Py4JJavaError:
            # Mostly the topic was deleted. The read that follows reports that, and every read is
            # counted.
            return False
        lasts = {place: last for place, last in lasts.items() if stable[place] <= last}
        own = all((*place, stable[place]) in firsts for place in lasts)
        if not own or (lasts and time.monotonic() > deadline):
            return False
        if lasts:
            time.sleep(_POLL_S)
    return True
