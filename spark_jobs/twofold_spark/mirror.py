"""The mirror: current-state tables, whole transactions, one consistent cut after another.

The stream is `<prefix>.commits`, read_committed. Of each micro-batch: the commit records in order of their dense
sequence numbers, in bites of a bounded number of rows; of each bite every table's ranges are read, counted, folded and
merged, several tables at once; then its cut is published. What was applied is known from the tables and the cuts alone,
so a retried batch, a killed driver and a lost checkpoint all end in the same tables.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from twofold_spark import decode, kafka, quarantine
from twofold_spark.commits import Commit, Range, bites, by_topic, next_commits
from twofold_spark.errors import MissingGround, Refused
from twofold_spark.fold import Folded, fold, fold_multiset
from twofold_spark.kafka import Kafka
from twofold_spark.registry import Registry, Subject
from twofold_spark.sinks import Cut, Sink, Table

_COMMITS_AT_ONCE = 20_000
"""Commit records of one micro-batch, some hundred bytes each in the driver; bites bound the rows."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One bite, for the terminal and for metrics."""

    cut: Cut
    offset: int
    """Of its last commit record, in the commits topic."""
    transactions: int
    rows: int
    tables: int
    seconds: float
    lag_seconds: float
    """From the source's commit to now; meaningful where both clocks agree."""

    def __str__(self) -> str:
        return (
            f"mirror: {self.rows} rows of {self.transactions} transactions in {self.tables} tables, "
            f"{self.seconds:.2f} s, lag {self.lag_seconds:.1f} s, cut {self.cut.sequence}"
        )


class Mirror:
    """What the stream of commit records is given to, batch by batch."""

    def __init__(
        self,
        where: Kafka,
        registry: Registry,
        prefix: str,
        make_sink: Callable[[SparkSession], Sink],
        *,
        bite_rows: int = 500_000,
        tables_at_once: int = 3,
        unreadable: quarantine.Choice = "stop",
        maintain_every: int = 1000,
        keep_cuts: dt.timedelta = dt.timedelta(days=1),
        report: Callable[[Applied], None] = lambda _: None,
    ) -> None:
        self._where = where
        self._registry = registry
        self._prefix = prefix
        self._make_sink = make_sink
        self._bite_rows = bite_rows
        self._pool = ThreadPoolExecutor(tables_at_once, thread_name_prefix="merge")
        self._unreadable = unreadable
        self._maintain_every = maintain_every
        self._keep_cuts = keep_cuts
        self._report = report
        self._published = 0
        self._sink: Sink | None = None
        self._cut = Cut(0, 0, 0, whole=True, versions={}, backfilling=())
        self._ahead: dict[Table, int] = {}

    def __call__(self, batch: DataFrame, _batch_id: int) -> None:
        # foreachBatch runs in a session of its own, the same one for the life of the query.
        spark = batch.sparkSession
        if self._sink is None:
            self._sink = self._make_sink(spark)
            self._cut = self._sink.last_cut() or self._cut
        commits = next_commits(self._commits(batch), after=self._cut.sequence)
        for bite in bites(commits, rows=self._bite_rows):
            self._apply(spark, self._sink, bite)
            self._published += 1
            if self._published % self._maintain_every == 0:
                # Between two batches: beside a merge it would conflict with it.
                self._sink.maintain(self._cut.versions, self._keep_cuts)

    def stream(self, spark: SparkSession) -> DataFrame:
        """The stream that this mirror follows."""
        return kafka.stream(spark, self._where, max_offsets=_COMMITS_AT_ONCE, subscribe=f"{self._prefix}.commits")

    def _commits(self, batch: DataFrame) -> list[Commit]:
        subject = self._registry.subject(f"{self._prefix}.commits-value")
        if subject is None:
            if batch.isEmpty():
                return []
            raise MissingGround(
                f"the registry has no subject {self._prefix}.commits-value: is it the connector's registry?"
            )
        rows = _decoded(batch, subject)
        if any(row["sequence"] is None for row in rows):
            rows = _decoded(batch, self._registry.refreshed(subject.name) or subject)
        return [_commit(row) for row in rows]

    def _apply(self, spark: SparkSession, sink: Sink, bite: list[Commit]) -> None:
        began = time.monotonic()
        last = bite[-1]
        topics = by_topic(bite)
        topics.pop(f"{self._prefix}.messages", None)
        ranges = {self._table(topic): stretches for topic, stretches in topics.items()}
        since = {table: sink.applied(table) for table in ranges}
        due = {t: [r for c in bite if c.sequence > since[t] for r in c.ranges if r.topic == t.topic] for t in ranges}
        work = [self._pool.submit(self._merge, spark, sink, t, rs, last.sequence) for t, rs in due.items() if rs]
        failures = [error for job in work if (error := job.exception()) is not None]
        if failures:
            raise failures[0]
        self._publish(sink, bite, since)
        self._report(
            Applied(
                cut=self._cut,
                offset=last.offset,
                transactions=sum(c.transactions for c in bite),
                rows=sum(c.rows for c in bite),
                tables=len(ranges),
                seconds=time.monotonic() - began,
                lag_seconds=max(0.0, time.time() - last.committed_us / 1e6),
            )
        )

    def _publish(self, sink: Sink, bite: list[Commit], since: dict[Table, int]) -> None:
        last = bite[-1]
        self._ahead |= {table: sequence for table, sequence in since.items() if sequence > last.sequence}
        self._ahead = {table: sequence for table, sequence in self._ahead.items() if sequence > last.sequence}
        versions = {str(table): version for table in since if (version := sink.version(table)) is not None}
        self._cut = Cut(
            sequence=last.sequence,
            applied_lsn=last.applied_lsn,
            committed_us=last.committed_us,
            whole=not self._ahead,
            versions={**self._cut.versions, **versions},
            backfilling=last.backfilling,
        )
        sink.publish(self._cut)

    def _merge(self, spark: SparkSession, sink: Sink, table: Table, ranges: list[Range], sequence: int) -> None:
        folded = self._folded(spark, sink, table, ranges)
        try:
            _check_counts(table, ranges, folded.counts)
            sink.merge(table, folded.rows, replace=folded.truncated, sequence=sequence)
        finally:
            folded.release()

    def _folded(self, spark: SparkSession, sink: Sink, table: Table, ranges: list[Range]) -> Folded:
        raw = kafka.ranges(spark, self._where, ranges)
        folded = self._fold(raw, sink, table, refresh=False)
        if folded.unreadable:
            # A schema that is newer than what is known is the usual reason: ask, and look again.
            folded.release()
            folded = self._fold(raw, sink, table, refresh=True)
        if folded.unreadable:
            sink.quarantine(quarantine.unreadable(raw, self._subject(table.topic, refresh=False), table.topic))
        if folded.unreadable and self._unreadable == "stop":
            folded.release()
            raise Refused(
                f"{folded.unreadable} records of {table.topic} cannot be decoded; the quarantine table has them",
                at_stake="their changes",
                repair=f"find who else writes to the topic, then `twofold backfill start {table}`; or go on without "
                "them by --unreadable skip",
            )
        sink.prepare(table, folded.columns)
        return folded

    def _fold(self, raw: DataFrame, sink: Sink, table: Table, *, refresh: bool) -> Folded:
        subject = self._subject(table.topic, refresh=refresh)
        keys = self._registry.subject(f"{table.topic}-key")
        if keys is None:
            return fold_multiset(raw, subject)
        return fold(raw, subject, keys, table.key, lambda: sink.current(table))

    def _subject(self, topic: str, *, refresh: bool) -> Subject:
        name = f"{topic}-value"
        subject = self._registry.refreshed(name) if refresh else self._registry.subject(name)
        if subject is None:
            raise MissingGround(f"the registry has no subject {name}: is it the connector's registry?")
        return subject

    def _table(self, topic: str) -> Table:
        schema, _, name = topic.removeprefix(f"{self._prefix}.").partition(".")
        keys = self._registry.subject(f"{topic}-key")
        key = decode.merge_key(keys.latest, self._subject(topic, refresh=False).latest) if keys else ()
        return Table(topic, schema, name, key)


def _decoded(batch: DataFrame, subject: Subject) -> list[Row]:
    records = batch.select(decode.record(f.col("value"), subject).alias("c"), "offset")
    return records.select("c.*", f.unix_micros("c.committed_at").alias("us"), "offset").drop("prepared").collect()


def _check_counts(table: Table, ranges: Iterable[Range], counts: dict[int, int]) -> None:
    declared: dict[int, int] = {}
    for stretch in ranges:
        declared[stretch.partition] = declared.get(stretch.partition, 0) + stretch.count
    for partition, count in sorted(declared.items()):
        if counts.get(partition, 0) != count:
            raise Refused(
                f"{table.topic}-{partition} holds {counts.get(partition, 0)} of the {count} records that its commit "
                "records declare",
                at_stake="the missing changes",
                repair=f"`twofold backfill start {table}`; look at the topic's retention and cleanup.policy",
            )


def _commit(row: Row) -> Commit:
    if row["sequence"] is None:
        raise Refused(
            f"the commit record at offset {row['offset']} cannot be decoded",
            at_stake="all that it declares",
            repair="look at the registry's subject and at who else writes to the commits topic",
        )
    ranges = tuple(Range(r["topic"], r["partition"], r["first"], r["last"], r["count"]) for r in row["ranges"])
    return Commit(
        offset=row["offset"],
        sequence=row["sequence"],
        applied_lsn=row["applied_lsn"],
        committed_us=row["us"],
        transactions=row["transactions"],
        rows=row["rows"],
        ranges=ranges,
        backfilling=tuple(row["backfilling"]),
    )
