"""`<prefix>.commits` as the mirror reads it: commit records in the order of their offsets.

Memory stays bounded, however many records there are. Python holds the records that the caller
keeps, and the JVM the pickled records of one task. The order of offsets is the order of sequence
numbers, because the connector commits one Kafka transaction after another.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from twofold_avro.names import TopicNames
from twofold_spark.errors import Refused, SetupError
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.commit_records import CommitRecord, OffsetRange
from twofold_spark.sources.kafka_client import Kafka, list_stable_offsets, open_admin, read_first_offset
from twofold_spark.sources.registry import Registry, Subject

_COMMITS_PER_MICRO_BATCH = 20_000
_TAIL = 64
"""The last commit record is first looked for this far before the end."""
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

    def open_stream(self, spark: SparkSession) -> DataFrame:
        """Open a stream from the beginning, in micro-batches."""
        return kafka_reader.open_stream(
            spark,
            self._kafka,
            max_offsets=_COMMITS_PER_MICRO_BATCH,
            subscribe=self.name,
            maxRecordsPerPartition=str(COMMITS_PER_TASK),
        )

    def read_after(self, spark: SparkSession, offset: int) -> Generator[CommitRecord]:
        """Read the commit records that lie behind an offset now."""
        options = {"maxRecordsPerPartition": str(COMMITS_PER_TASK)}
        return self.decode(kafka_reader.read_from(spark, self._kafka, self.name, offset + 1, **options))

    def read_last(self, spark: SparkSession, first: int, end: int) -> CommitRecord | None:
        """Read the last commit record between two offsets; aborted ones may lie behind it."""
        back = _TAIL
        while True:
            begin = max(first, end - back)
            with closing(self.read_after(spark, begin - 1)) as records:
                last = deque(records, maxlen=1)
            if last or begin == first:
                return last[0] if last else None
            back *= 16

    def find_bounds(self, spark: SparkSession) -> tuple[int, int]:
        """Return the first offset that Kafka still has, and where what is committed ends."""
        admin = open_admin(spark, self._kafka)
        try:
            ends = list_stable_offsets(spark, admin, [(self.name, 0)])
        finally:
            admin.close()
        return read_first_offset(spark, self._kafka, self.name), ends[self.name, 0]

    def decode(self, micro_batch: DataFrame) -> Generator[CommitRecord]:
        """Decode the commit records of a micro-batch."""
        subject = self._registry.find_subject(f"{self.name}-value")
        if subject is None:
            if micro_batch.isEmpty():
                return
            raise SetupError(f"the registry has no subject {self.name}-value: give --registry the connector's registry")
        for row in decoding.iterate_decoded(micro_batch, subject, self._registry, _decode_rows):
            yield to_commit_record(row, self.name)


def _decode_rows(micro_batch: DataFrame, subject: Subject) -> Iterator[Row]:
    decoded = micro_batch.select(decoding.decode_record(f.col("value"), subject).alias("c"), "offset")
    rows = decoded.select("c.*", f.unix_micros("c.committed_at").alias("us"), "offset").drop("prepared")
    return rows.toLocalIterator()


def to_commit_record(row: Row, topic: str) -> CommitRecord:
    """Make the commit record of a decoded row of the topic."""
    if row["sequence"] is None:
        raise Refused(
            f"the commit record in {topic} [0] at offset {row['offset']} cannot be read",
            at_stake="all changes that it declares",
            repair="check the registry's subject, and find who else writes to the commits topic",
        )
    prepared = row["kind"] == "prepared"
    ranges = tuple(
        # Interned: one string for each topic, not one for each range.
        OffsetRange(sys.intern(r["topic"]), r["partition"], r["first"], r["last"], r["count"], prepared)
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
    )
