"""`<prefix>.commits` as the mirror reads it: commit records one after another, in the order of their offsets.

However many there are, and whatever they hold: Python holds those that the caller keeps, and the JVM the pickled records
of one task, which are few hundred. The order of offsets is that of the sequence numbers, because the connector commits
one Kafka transaction after another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import MissingGround, Refused
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.commit_records import Commit, Range
from twofold_spark.sources.kafka_reader import Kafka
from twofold_spark.sources.registry import Registry, Subject

_COMMITS_OF_A_BATCH = 20_000
COMMITS_OF_A_TASK = 500
"""Tasks are run one by one as their records are asked for, and a task's records are in the JVM at once. A small batch is one task."""


class CommitTopic:
    """The topic of one prefix, read_committed."""

    def __init__(self, where: Kafka, registry: Registry, prefix: str) -> None:
        self._where = where
        self._registry = registry
        self._topic = f"{prefix}.commits"

    def stream(self, spark: SparkSession) -> DataFrame:
        """From the beginning, in micro-batches."""
        return kafka_reader.stream(
            spark,
            self._where,
            max_offsets=_COMMITS_OF_A_BATCH,
            subscribe=self._topic,
            maxRecordsPerPartition=str(COMMITS_OF_A_TASK),
        )

    def behind(self, spark: SparkSession, offset: int) -> Iterator[Commit]:
        """What is committed now behind an offset."""
        return self.records(
            kafka_reader.rest(
                spark, self._where, self._topic, offset + 1, maxRecordsPerPartition=str(COMMITS_OF_A_TASK)
            )
        )

    def records(self, batch: DataFrame) -> Iterator[Commit]:
        """Those of a micro-batch."""
        subject = self._registry.subject(f"{self._topic}-value")
        if subject is None:
            if batch.isEmpty():
                return
            raise MissingGround(f"the registry has no subject {self._topic}-value: is it the connector's registry?")
        for row in _decoded(batch, subject):
            if row["sequence"] is None:
                newer = self._registry.refreshed(subject.name) or subject
                yield from map(_commit, _decoded(batch.where(f.col("offset") >= row["offset"]), newer))
                return
            yield _commit(row)


def _decoded(batch: DataFrame, subject: Subject) -> Iterator[Row]:
    records = batch.select(decoding.record(f.col("value"), subject).alias("c"), "offset")
    of_each = records.select("c.*", f.unix_micros("c.committed_at").alias("us"), "offset").drop("prepared")
    return of_each.toLocalIterator()


def _commit(row: Row) -> Commit:
    if row["sequence"] is None:
        raise Refused(
            f"the commit record at offset {row['offset']} cannot be decoded",
            at_stake="all that it declares",
            repair="look at the registry's subject and at who else writes to the commits topic",
        )
    prepared = row["kind"] == "prepared"
    ranges = tuple(
        # One string for each topic, not one for each range.
        Range(sys.intern(r["topic"]), r["partition"], r["first"], r["last"], r["count"], prepared)
        for r in row["ranges"]
    )
    return Commit(
        offset=row["offset"],
        sequence=row["sequence"],
        applied_lsn=row["applied_lsn"],
        committed_us=row["us"],
        transactions=row["transactions"],
        rows=row["rows"],
        ranges=ranges,
        backfilling=tuple(row["backfilling"]),
        reload=row["kind"] == "reload",
    )
