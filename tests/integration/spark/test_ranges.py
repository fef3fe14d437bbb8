"""Exactly the records of the ranges are read, and not what lies between them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from helpers.spark.writer import Writer, table
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.commit_records import OffsetRange
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.kafka_reader import PARTITION_BITS, read_ranges

NAMES = ("accounts", "vault")
RECORDS = 2500
"""Of each partition: some blocks of offsets."""
RANGES = {
    ("accounts", 0): [(3, 3), (1000, 1100), (1150, 2499)],
    ("accounts", 1): [(0, 1)],
    ("vault", 1): [(7, 9), (2048, 2048)],
}


@pytest.mark.parametrize("comparisons", [10**9, 0], ids=["each with each", "joined"])
def test_records_between_ranges_are_not_read(
    spark: SparkSession, kafka: Any, registry: Any, prefix: str, monkeypatch: pytest.MonkeyPatch, comparisons: int
) -> None:
    monkeypatch.setattr(kafka_reader, "_FEW_COMPARISONS", comparisons)
    writer = Writer(kafka.bootstrap, registry.url, prefix)
    for name in NAMES:
        writer.table(table(name, {"id": "int8"}), partitions=2)
    with writer.commit() as tx:
        for number in range(RECORDS):
            for name in NAMES:
                for partition in (0, 1):
                    tx.raw(name, None, b"%d" % number, partition)
    writer.visible()
    topics = {name: writer.topics[name].name for name in NAMES}
    ranges = [
        OffsetRange(topics[name], partition, first, last, last - first + 1)
        for (name, partition), of_place in RANGES.items()
        for first, last in of_place
    ]
    read = read_ranges(spark, Kafka(writer.bootstrap), ranges, decided=True)
    is_joined = "BroadcastHashJoin" in read._jdf.queryExecution().executedPlan().toString()
    assert is_joined == (not comparisons)
    found = [(row["partition"], row["offset"], bytes(row["value"])) for row in read.collect()]
    assert sorted(found) == sorted(
        ((NAMES.index(name) << PARTITION_BITS) + partition, offset, b"%d" % offset)
        for (name, partition), of_place in RANGES.items()
        for first, last in of_place
        for offset in range(first, last + 1)
    )


def test_the_list_of_ranges_is_read_once(spark: SparkSession) -> None:
    """And not for each record: it is a literal when Spark plans."""
    rows = spark.range(10).selectExpr("CAST(id AS int) AS partition", "id AS offset")
    within = rows.where(kafka_reader._lie_within([(2, 0, 5), (7, 7, 7), (8, 9, 9)]))
    assert "from_json" not in within._jdf.queryExecution().optimizedPlan().toString()
    assert [row["offset"] for row in within.collect()] == [2, 7]
