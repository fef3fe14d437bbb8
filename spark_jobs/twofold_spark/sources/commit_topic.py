"""`<prefix>.commits` as the mirror reads it: commit records in the order of their offsets.

Memory stays bounded, however many records there are. Python holds the records that the caller
keeps, and the JVM the pickled records of one task. The order of offsets is the order of sequence
numbers, because the connector commits one Kafka transaction after another.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from twofold_avro.names import TopicNames
from twofold_spark.errors import Refused, SetupError
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.commit_records import CommitRecord, OffsetRange, SkippedRow
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry, Subject

COMMITS_PER_TASK = 500
"""Commit records of one task.

Spark runs the tasks one by one as their records are needed, so the JVM holds one task's records.
"""


class CommitTopic:
    """The commits topic of one prefix, read_committed."""

    def __init__(self, kafka: Kafka, registry: Registry, prefix: str) -> None:
        self._kafka = kafka
        self._registry = registry
        self.name = TopicNames(prefix).commits

    def read_after(self, spark: SparkSession, offset: int) -> Generator[CommitRecord]:
        """Read the commit records that lie behind an offset now."""
        options = {"maxRecordsPerPartition": str(COMMITS_PER_TASK)}
        with closing(
            self._decode(kafka_reader.read_from(spark, self._kafka, self.name, offset + 1, **options))
        ) as rows:
            for row in rows:
                yield to_commit_record(row)

    def read_rows(self, spark: SparkSession, first: int, end: int) -> Generator[Row]:
        """Read what is committed between two offsets; retention may have removed some of it."""
        if first < end:
            firsts, ends = {self.name: first}, {self.name: end}
            yield from self._decode(
                kafka_reader.read_single_partitions(spark, self._kafka, firsts, ends, per_task=COMMITS_PER_TASK)
            )

    def _decode(self, records: DataFrame) -> Generator[Row]:
        subject = self._registry.find_subject(f"{self.name}-value")
        if subject is None:
            if records.isEmpty():
                return
            raise SetupError(f"the registry has no subject {self.name}-value: give --registry the connector's registry")
        for row in _decode_rows(records, subject):
            if row["sequence"] is None:  # from here on, by what the registry has now
                newer = self._registry.refresh_subject(subject.name) or subject
                for again in _decode_rows(records.where(f.col("offset") >= row["offset"]), newer):
                    require_decoded(again, self.name)
                    yield again
                return
            yield row


def _decode_rows(records: DataFrame, subject: Subject) -> Iterator[Row]:
    decoded = records.select(decoding.decode_record(f.col("value"), subject).alias("c"), "offset")
    rows = decoded.select("c.*", f.unix_micros("c.committed_at").alias("us"), "offset").drop("prepared")
    return rows.toLocalIterator()


def require_decoded(row: Row, topic: str) -> None:
    if row["sequence"] is None:
        raise Refused(
            f"the commit record in {topic} [0] at offset {row['offset']} cannot be read",
            at_stake="all changes that it declares",
            repair="check the registry's subject, and find who else writes to the commits topic",
        )


def to_commit_record(row: Row) -> CommitRecord:
    prepared = row["kind"] == "prepared"
    before = row["applied_lsn"] if prepared or row["kind"] == "batch" else None
    ranges = tuple(
        # Interned: one string for each topic, not one for each range.
        OffsetRange(sys.intern(r["topic"]), r["partition"], r["first"], r["last"], r["count"], prepared, before)
        for r in row["ranges"]
    )
    return CommitRecord(
        offset=row["offset"],
        sequence=row["sequence"],
        applied_lsn=row["applied_lsn"],
        committed_us=row["us"],
        transactions=row["transactions"],
        rows=row["rows"],
        ranges=ranges,
        backfilling=tuple(row["backfilling"]),
        stream_id=row["stream_id"],
        reload=row["kind"] == "reload",
        stale=tuple(row["stale"]),
        skipped=tuple(
            SkippedRow(each["topic"], each["lsn"], each["key"] and bytes(each["key"])) for each in row["skipped"]
        ),
    )
