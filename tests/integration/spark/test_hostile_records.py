"""Bytes that nobody should have written, for the jobs' readers of Kafka's records.

Each is a record, or is named. None ends Spark.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice

from pyspark.sql import DataFrame, SparkSession

from fixtures.spark import Lake
from fuzz.hostile_records import IDS, corrupted, hostile, varint
from helpers.spark.writer import table
from twofold_avro.records import Commit
from twofold_avro.schemas import fixed
from twofold_spark.errors import Refused
from twofold_spark.sources import commit_topic, decoding, kafka_reader
from twofold_spark.sources.decoding import select_unreadable
from twofold_spark.sources.registry import Registry, Subject

COUNT = 2_000
ENDLESS = [varint(2 * 1_500_000_000), varint(2 << 40), varint(2 * (2**31 - 1)), varint((1 << 63) - 1)]
"""Lengths that no record has. Java has arrays of the first, and no room for one."""


def frame(spark: SparkSession, values: Iterable[bytes]) -> DataFrame:
    rows = [(0, offset, None, bytearray(value)) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, "partition int, offset bigint, key binary, value binary")


def test_any_bytes_are_a_commit_record_or_named(spark: SparkSession) -> None:
    commit = Commit(5, "batch", 100, 5, 0, 0).to_bytes(IDS[Commit])
    endless = [commit[:-3] + count for count in ENDLESS]
    values = [commit, *endless, *islice(hostile(random.Random(1)), COUNT)]
    subject = Subject("bank.commits-value", ((IDS[Commit], fixed("commit")),))
    read, named = [], 0
    for row in commit_topic._decode_rows(frame(spark, values), subject):
        try:
            commit_topic.require_decoded(row, "bank.commits")
            read.append(commit_topic.to_commit_record(row))
        except Refused as error:
            named += f"bank.commits [0] at offset {row['offset']}" in error.what
    assert read[0].offset == 0
    assert len(read) + named == len(values)
    assert named > COUNT / 2
    assert not {1, 2, 3, 4} & {record.offset for record in read}


def test_any_bytes_are_a_row_or_unreadable(lake: Lake) -> None:
    lake.writer.table(table("t", {"id": "int8", "v": "text", "s": "text"}), partitions=1)
    topic = lake.writer.topics["t"].name
    with lake.writer.commit() as tx:
        tx.upsert("t", {"id": 1, "v": "good", "s": "more"})
    subject = Registry(lake.writer.registry).find_subject(f"{topic}-value")
    assert subject is not None
    lake.writer.visible()
    good = bytes(kafka_reader.read_from(lake.spark, lake.kafka, topic, 0).collect()[0]["value"])
    rng = random.Random(2)
    values = [good, *(good[:at] + count for at in range(5, len(good)) for count in ENDLESS)]
    values += [corrupted(good, rng) for _ in range(COUNT)]
    records = frame(lake.spark, values)
    readable = records.where(decoding.decode_envelope(records["value"], None, subject)["op"].isNotNull()).count()
    assert 0 < readable < COUNT
    assert select_unreadable(records, subject, topic).count() == len(values) - readable
