"""The mirror: current-state tables, whole transactions, one consistent cut after another.

The stream is `<prefix>.commits`, read_committed. Of each micro-batch: the commit records in order of their dense
sequence numbers, in bites of a bounded number of rows and ranges; of each bite every table's ranges are read, counted, folded and
merged, several tables at once; then its cut is published. What was applied is known from the tables and the cuts alone,
so a retried batch, a killed driver and a lost checkpoint all end in the same tables.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from twofold_avro.names import topic_of
from twofold_spark.errors import Refused, TableRefused
from twofold_spark.mirror.table_merge import Merged, Merger
from twofold_spark.sinks import EVERY, Cut, Sink, Table
from twofold_spark.sources import unreadable_records
from twofold_spark.sources.commit_records import Commit, Pace, Turns, bites, by_topic, from_last_reload, missing
from twofold_spark.sources.commit_topic import CommitTopic
from twofold_spark.sources.kafka_reader import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.topic_names import at_source
from twofold_spark.streaming import AskedToEnd, say

_RANGES_AT_ONCE = 200_000
"""Ranges that a bite's commit records have together, two hundred bytes each in the driver: 50 tables of six partitions have 300 in each record."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One bite, for the terminal and for metrics."""

    cut: Cut
    offset: int
    """Of its last commit record, in the commits topic."""
    transactions: int
    changes: int
    """That were merged: rows of Kafka without the tombstones, and without what the tables had already."""
    tables: int
    seconds: float
    lag_seconds: float
    """From the source's commit to now; meaningful where both clocks agree."""
    stages: Mapping[str, float]
    """Seconds of each: fold and merge of all tables together, though several run at once, and publish."""

    def __str__(self) -> str:
        return (
            f"mirror: {self.changes} changes of {self.transactions} transactions in {self.tables} tables, "
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
        bite_bytes: int = 512 << 20,
        unreadable: unreadable_records.Choice = "stop",
        on_table_error: Literal["stop", "go-on"] = "stop",
        maintain_every: int = 100,
        keep_cuts: dt.timedelta = dt.timedelta(hours=1),
        ending: threading.Event | None = None,
        report: Callable[[Applied], None] = lambda _: None,
        warn: Callable[[str], None] = say,
    ) -> None:
        self._prefix = prefix
        self._topic = CommitTopic(where, registry, prefix)
        self._make_sink = make_sink
        self._merger = Merger(where, registry, prefix, unreadable)
        self._pace = Pace(bite_rows, bite_bytes)
        self._pool = ThreadPoolExecutor(tables_at_once, thread_name_prefix="merge")
        self._on_table_error = on_table_error
        self._turns = Turns(maintain_every)
        self._keep_cuts = keep_cuts
        self._ending = ending or threading.Event()
        self._report = report
        self._warn = warn
        self._merged: set[str] = set()
        """Tables that have more files since they were looked after."""
        self._sink: Sink | None = None
        self._cut = Cut(0, 0, 0, whole=True, versions={}, backfilling=(), stopped=())
        self._ahead: dict[str, int] = {}
        """Tables that have more than the cut says, and up to where."""

    def __call__(self, batch: DataFrame, _batch_id: int) -> None:
        # foreachBatch runs in a session of its own, the same one for the life of the query.
        spark = batch.sparkSession
        if self._sink is None:
            self._sink = self._make_sink(spark)
            self._cut = self._sink.last_cut() or self._cut
            self._ahead = self._found_ahead(self._sink)
        for bite in bites(self._due(batch), rows=self._pace.rows, ranges=_RANGES_AT_ONCE):
            if self._ending.is_set():
                # A backlog's batch is up to 20,000 commit records. The cuts tell what of it is there when it comes again.
                raise AskedToEnd
            self._note_gap(bite[0])
            before = self._cut.sequence
            self._apply(spark, self._sink, bite)
            del bite  # before the next one is read
            if self._turns.is_due(before, self._cut.sequence):
                # Between two batches: beside a merge it would conflict with it.
                self._sink.maintain(self._merged & self._cut.versions.keys(), self._keep_cuts)
                self._merged.clear()

    def close(self) -> None:
        """After the last batch."""
        self._pool.shutdown()
        self._merger.close()
        if self._sink is not None:
            self._sink.close()

    def stream(self, spark: SparkSession) -> DataFrame:
        """The stream that this mirror follows."""
        return self._topic.stream(spark)

    def _due(self, batch: DataFrame) -> Iterator[Commit]:
        """What of a micro-batch was not applied before it came."""
        cut = self._cut
        for commit in self._topic.records(batch):
            if commit.sequence > cut.sequence:
                yield commit
            elif commit.sequence == cut.sequence:
                _check_topics_kept(cut, commit)

    def _found_ahead(self, sink: Sink) -> dict[str, int]:
        """What a process before this one knew when it published its last cut."""
        if self._cut.whole:
            return {}
        names = (name.partition(".") for name in self._cut.versions)
        tables = [Table("", schema, name, ()) for schema, _, name in names]
        return {str(table): sequence for table in tables if (sequence := sink.applied(table)) > self._cut.sequence}

    def _note_gap(self, first: Commit) -> None:
        """What a missing commit record has changed nobody knows: any table."""
        if first.sequence == self._cut.sequence + 1:
            return
        gap = missing(self._cut.sequence, first.sequence)
        if self._on_table_error == "stop":
            raise gap
        self._warn(f"mirror: every table is stopped until it is reloaded: {gap}")
        stopped = {EVERY, *self._cut.stopped, *self._cut.versions}
        self._cut = replace(self._cut, sequence=first.sequence - 1, versions={}, stopped=tuple(sorted(stopped)))
        self._ahead = {}

    def _apply(self, spark: SparkSession, sink: Sink, bite: list[Commit]) -> None:
        began = time.monotonic()
        last = bite[-1]
        topics = by_topic(bite)
        topics.pop(f"{self._prefix}.messages", None)
        reloaded = {stretch.topic for commit in bite if commit.reload for stretch in commit.ranges}
        ranges = {self._merger.table(t, reloaded=t in reloaded): stretches for t, stretches in topics.items()}
        since = {table: sink.applied(table) for table in ranges}
        stopped = self._stopped(since)
        work = {}
        for t in ranges:
            due, anew = from_last_reload((c for c in bite if c.sequence > since[t]), t.topic)
            waits = str(t) in stopped or (EVERY in stopped and not since[t])
            if due:
                work[t] = self._pool.submit(
                    self._merger.merge, spark, sink, t, due, last.sequence, from_truncate=waits or anew
                )
        wait(work.values())
        merged = {table: self._outcome(spark, table, job, last) for table, job in work.items()}
        for table, outcome in merged.items():
            self._merged.add(str(table))
            (stopped.discard if outcome.done else stopped.add)(str(table))
        published_from = time.monotonic()
        self._publish(sink, last, {t: n for t, n in since.items() if str(t) not in stopped}, stopped)
        ended = time.monotonic()
        self._pace.saw(sum(c.rows for c in bite), sum(m.bytes for m in merged.values()))
        self._report(
            Applied(
                cut=self._cut,
                offset=last.offset,
                transactions=sum(c.transactions for c in bite),
                changes=sum(m.changes for m in merged.values()),
                tables=len(ranges),
                seconds=ended - began,
                lag_seconds=max(0.0, time.time() - last.committed_us / 1e6),
                stages={
                    "fold": sum(m.fold_s for m in merged.values()),
                    "merge": sum(m.merge_s for m in merged.values()),
                    "publish": ended - published_from,
                },
            )
        )

    def _stopped(self, since: Mapping[Table, int]) -> set[str]:
        """Those that wait for a reload, before a bite in which these tables are."""
        stopped = set(self._cut.stopped)
        for table, sequence in since.items():
            if str(table) in stopped and sequence > self._cut.sequence:
                # Its reload was merged, and the process died before it could publish.
                stopped.discard(str(table))
            elif str(table) in self._cut.versions and not sequence:
                self._warn(
                    f"mirror: {table} is not there any more: it is stopped until `twofold backfill start {table}`"
                )
                stopped.add(str(table))
        return stopped

    def _outcome(self, spark: SparkSession, table: Table, job: Future[Merged], last: Commit) -> Merged:
        """A table's trouble is its own where the user wants that, or where it was reloaded since; what was done of the others stays either way."""
        error = job.exception()
        if error is None:
            return job.result()
        if not isinstance(error, TableRefused):
            raise error
        if self._on_table_error == "stop" and not self._is_reloaded_behind(spark, table, last):
            raise error
        self._warn(f"mirror: {table} is stopped until it is reloaded, the others go on: {error}")
        return Merged(done=False)

    def _is_reloaded_behind(self, spark: SparkSession, table: Table, last: Commit) -> bool:
        """Whether its repair has come: Spark asks for the batch that failed again, which ends before it."""
        behind = self._topic.behind(spark, last.offset)
        return any(c.reload and r.topic == table.topic for c in behind for r in c.ranges)

    def _publish(self, sink: Sink, last: Commit, since: dict[Table, int], stopped: set[str]) -> None:
        self._ahead |= {str(table): sequence for table, sequence in since.items()}
        self._ahead = {name: sequence for name, sequence in self._ahead.items() if sequence > last.sequence}
        versions = {str(table): version for table in since if (version := sink.version(table)) is not None}
        known = {name: version for name, version in self._cut.versions.items() if name not in stopped}
        versions = {**known, **versions}
        self._cut = Cut(
            sequence=last.sequence,
            applied_lsn=last.applied_lsn,
            committed_us=last.committed_us,
            whole=not self._ahead,
            versions=versions,
            backfilling=tuple(sorted(name for name in versions if self._topic_of(name) in last.backfilling)),
            stopped=tuple(sorted(stopped)),
        )
        sink.publish(self._cut)

    def _topic_of(self, table: str) -> str:
        return topic_of(self._prefix, *at_source(table))


def _check_topics_kept(cut: Cut, commit: Commit) -> None:
    """The record that the last cut was published for is what it was, if it comes again."""
    if (commit.applied_lsn, commit.committed_us) != (cut.applied_lsn, cut.committed_us):
        raise Refused(
            f"commit record {cut.sequence} is not the one that this mirror has applied: the prefix was started anew",
            at_stake="every change that the new topics have up to that number: they would be passed over",
            repair="a new warehouse (or catalog, or schema) and a new checkpoint for the new topics",
        )
