"""The mirror: current-state tables, whole transactions, one consistent cut after another.

The stream is `<prefix>.commits`, read_committed. The commit records of a micro-batch come in the
order of their dense sequence numbers. They are divided into batches with a bounded number of rows
and ranges. For each batch the ranges of every table are read, counted, folded and merged, several
tables at once. Then the batch's cut is published.

The tables and the cuts alone say what was applied. So a retried batch, a killed driver and a lost
checkpoint all end in the same tables.
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import takewhile
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from twofold_spark.errors import Refused, TableRefused
from twofold_spark.mirror.batching import (
    AppliedBatch,
    BatchSizer,
    MaintenanceQueue,
    MaintenanceSchedule,
    split_into_batches,
)
from twofold_spark.mirror.next_cut import NextCut
from twofold_spark.mirror.start_check import choose_catch_up, find_records
from twofold_spark.mirror.table_merge import MergeOutcome, TableMerger
from twofold_spark.session import fork_session
from twofold_spark.sinks.cuts import CUTS, Cut
from twofold_spark.sinks.interface import MirrorTable, Sink
from twofold_spark.sinks.place import Place
from twofold_spark.sources.commit_records import (
    CommitRecord,
    gap_refusal,
    is_other,
    recreated_refusal,
    select_since_reload,
)
from twofold_spark.sources.commit_topic import CommitTopic
from twofold_spark.sources.decoding import UnreadableChoice
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.kafka_reader import EARLIEST
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.topic_names import is_table_topic
from twofold_spark.streaming import EndRequested, print_progress

RANGES_PER_BATCH = 200_000
"""Ranges of a batch's commit records together, two hundred bytes each in the driver.

50 tables of six partitions have 300 ranges in each commit record.
"""


class Mirror:
    """Handles the micro-batches of the stream of commit records."""

    def __init__(
        self,
        kafka: Kafka,
        registry: Registry,
        prefix: str,
        place: Place,
        *,
        batch_rows: int = 500_000,
        tables_at_once: int = 3,
        batch_bytes: int = 512 << 20,
        unreadable: UnreadableChoice = "stop",
        on_table_error: Literal["stop", "go-on"] = "stop",
        maintain_every: int = 100,
        maintain_at_once: bool = True,
        keep_cuts: dt.timedelta = dt.timedelta(hours=1),
        ending: threading.Event | None = None,
        report: Callable[[AppliedBatch], None] = lambda _: None,
        warn: Callable[[str], None] = print_progress,
    ) -> None:
        self._prefix = prefix
        self._topic = CommitTopic(kafka, registry, prefix)
        self._place = place
        self._merger = TableMerger(kafka, registry, prefix, unreadable)
        self._sizer = BatchSizer(batch_rows, batch_bytes)
        self._pool = ThreadPoolExecutor(tables_at_once, thread_name_prefix="merge")
        self._on_table_error = on_table_error
        self._schedule = MaintenanceSchedule(maintain_every)
        self._due_tables = MaintenanceQueue(at_once=maintain_at_once)
        self._keep_cuts = keep_cuts
        self._ending = ending or threading.Event()
        self._report = report
        self._warn = warn
        self._changed_tables: set[str] = set()
        """Tables that changed since they were last maintained, or became due."""
        self._sink: Sink | None = None
        self._next = NextCut(prefix, warn)

    def __call__(self, micro_batch: DataFrame, _batch_id: int) -> None:
        # foreachBatch runs in a session of its own, the same one for the life of the query.
        spark = micro_batch.sparkSession
        self.begin(spark)
        # Closed while Spark runs: records that are abandoned make Spark log pages of errors.
        with closing(self._topic.decode(micro_batch)) as records:
            self._apply_and_report(spark, records)

    def _apply_and_report(self, spark: SparkSession, records: Iterator[CommitRecord]) -> None:
        for applied in self._apply_all(spark, records, rows=self._sizer.next_rows, ranges=RANGES_PER_BATCH):
            self.report(applied)
            self.maintain_if_due()

    @property
    def next_rows(self) -> int:
        """About how many rows the next batch should have."""
        return self._sizer.next_rows()

    @property
    def cut(self) -> Cut:
        """The last cut, which a group's mirror may not have published."""
        return self._next.cut

    def begin(self, spark: SparkSession) -> None:
        """Take over what an earlier process published; once. A group's mirror opens the place."""
        if self._sink is None:
            if not self._place.of_group:
                self._place.open(spark, (self._prefix,))
            self._sink = self._place.make_sink(spark, self._prefix)
            self._next.start_from(self._sink, self._place.find_part(self._prefix))

    def catch_up(self, spark: SparkSession, cut: Cut | None, checkpoint: str) -> None:
        """Apply what the tables lack and the stream would not read, before the stream starts.

        `cut` is the last one that is published.
        """
        found = find_records(spark, self._topic, checkpoint)
        try:
            sequence = choose_catch_up(self._prefix, cut, found)
        except Refused as refused:
            if self._on_table_error == "stop" or found.next or found.last:
                raise
            self._warn(f"mirror: {refused}")
            return
        if not sequence:
            return
        self._warn(f"mirror: the tables are behind the checkpoint: reading up to commit record {sequence} again")
        own = fork_session(spark)
        self.begin(own)
        try:
            with closing(self._topic.read_after(own, EARLIEST - 1)) as records:
                due = takewhile(lambda record: record.sequence <= sequence, records)
                self._apply_and_report(own, due)
        finally:
            self._place.close()
            self._sink = None  # the stream has a session of its own

    def apply_up_to(
        self,
        spark: SparkSession,
        sequence: int,
        *,
        held: Iterable[CommitRecord] | None,
        behind: int,
    ) -> list[AppliedBatch]:
        """Apply the commit records up to a sequence number, in one batch of a group's mirror.

        They are read behind an offset, unless they are held. Return the batch, for `report`.
        """
        source = (record for record in held) if held is not None else self._topic.read_after(spark, behind)
        with closing(source) as records:
            due = takewhile(lambda record: record.sequence <= sequence, records)
            return list(self._apply_all(spark, due, rows=lambda: sys.maxsize, ranges=sys.maxsize))

    def report(self, applied: AppliedBatch) -> None:
        """Report a batch that is published."""
        self._report(applied)

    @property
    def is_maintenance_due(self) -> bool:
        return bool(self._due_tables)

    def maintain_if_due(self) -> None:
        """Maintain some of the changed tables, between two batches: beside a merge it would
        conflict.
        """
        if self._due_tables and self._sink is not None:
            share = self._due_tables.take_share()
            if CUTS in share:
                self._place.forget(self._keep_cuts)
                self._place.maintain(self._keep_cuts)
            if due := [table for table in share if table in self._next.cut.versions]:
                self._sink.maintain(due, self._keep_cuts)

    def _apply_all(
        self,
        spark: SparkSession,
        records: Iterator[CommitRecord],
        *,
        rows: Callable[[], int],
        ranges: int,
    ) -> Generator[AppliedBatch]:
        """Apply what was not applied before; yield each batch when its cut is published."""
        assert self._sink is not None, "begin comes first"
        with closing(self._select_due(records)) as due:
            for batch in split_into_batches(due, rows=rows, ranges=ranges):
                if self._ending.is_set():
                    # A micro-batch may hold 20,000 commit records. When it comes again, the cuts
                    # say what was applied.
                    raise EndRequested
                self._handle_gap(batch[0])
                before = self._next.cut.sequence
                applied = self._apply(spark, self._sink, batch)
                del batch  # before the next one is read
                if self._schedule.is_due(before, self._next.cut.sequence):
                    own = () if self._place.of_group else (CUTS,)
                    self._due_tables.add((*own, *sorted(self._changed_tables)))
                    self._changed_tables.clear()
                yield applied

    def close(self) -> None:
        """Release what the mirror holds, after the last batch."""
        self._pool.shutdown()
        self._merger.close()
        if not self._place.of_group:
            self._place.close()

    def open_stream(self, spark: SparkSession) -> DataFrame:
        """Open the stream that this mirror follows."""
        return self._topic.open_stream(spark)

    def _select_due(self, records: Iterator[CommitRecord]) -> Generator[CommitRecord]:
        """Yield the commit records that were not applied before."""
        applied = known = self._next.cut.identity
        for record in records:
            if is_other(record.identity, known):
                raise recreated_refusal(record.sequence, self._prefix)
            if record.sequence > applied.sequence:
                known = record.identity
                yield record

    def _handle_gap(self, first: CommitRecord) -> None:
        """Stop every table at a gap: a missing commit record may have changed any of them."""
        applied = self._next.cut.sequence
        if first.sequence == applied + 1:
            return
        gap = gap_refusal(applied, first.sequence)
        if self._on_table_error == "stop":
            raise gap
        self._warn(f"mirror: every table is stopped until it is reloaded: {gap}")
        self._next.stop_every_table(first.sequence - 1, first.stream_id)

    def _apply(self, spark: SparkSession, sink: Sink, batch: list[CommitRecord]) -> AppliedBatch:
        began = time.monotonic()
        last = batch[-1]
        tables = self._describe_tables(batch)
        applied = {table: sink.read_applied(table) for table in tables}
        stopped = self._next.find_stopped(applied)
        rows = sum(record.rows for record in batch)
        sink.plan_batch(tables, rows)
        jobs = self._submit_merges(spark, sink, batch, applied, stopped)
        wait(jobs.values())
        outcomes = {table: self._take_outcome(spark, table, job, last) for table, job in jobs.items()}
        for table, outcome in outcomes.items():
            self._changed_tables.add(str(table))
            (stopped.discard if outcome.done else stopped.add)(str(table))
        merged = time.monotonic()
        self._publish(spark, sink, last, applied, stopped)
        ended = time.monotonic()
        self._sizer.record_batch(rows, sum(o.bytes for o in outcomes.values()))
        return AppliedBatch(
            cut=self._next.cut,
            transactions=sum(r.transactions for r in batch),
            changes=sum(o.changes for o in outcomes.values()),
            tables=len(tables),
            seconds=ended - began,
            lag_seconds=max(0.0, time.time() - last.committed_us / 1e6),
            stages={
                "fold": sum(o.fold_s for o in outcomes.values()),
                "merge": sum(o.merge_s for o in outcomes.values()),
                "publish": ended - merged,
            },
        )

    def _publish(
        self, spark: SparkSession, sink: Sink, last: CommitRecord, applied: dict[MirrorTable, int], stopped: set[str]
    ) -> None:
        """Publish the batch's cut; without a table that only the step of all tables refuses.

        A group's mirror publishes the cuts of all members.
        """
        while True:
            going_on = {table: number for table, number in applied.items() if str(table) not in stopped}
            try:
                self._next.advance(sink, last, going_on, stopped)
                if not self._place.of_group:
                    self._place.publish_alone(self._prefix, self._next.cut)
            except TableRefused as refused:
                table = next((each for each in going_on if str(each) == refused.table), None)
                if table is None:
                    raise
                self._stop_or_raise(spark, table, last, refused)
                stopped.add(str(table))
            else:
                return

    def _describe_tables(self, batch: list[CommitRecord]) -> list[MirrorTable]:
        named = dict.fromkeys(each.topic for record in batch for each in record.ranges)
        topics = [topic for topic in named if is_table_topic(topic, self._prefix)]
        reloaded = {each.topic for record in batch if record.reload for each in record.ranges}
        return [self._merger.describe_table(topic, reloaded=topic in reloaded) for topic in topics]

    def _submit_merges(
        self,
        spark: SparkSession,
        sink: Sink,
        batch: list[CommitRecord],
        applied: dict[MirrorTable, int],
        stopped: set[str],
    ) -> dict[MirrorTable, Future[MergeOutcome]]:
        """Start the merge of every table that lacks some of the batch."""
        jobs = {}
        for table, sequence in applied.items():
            ranges, reloaded = select_since_reload((r for r in batch if r.sequence > sequence), table.topic)
            from_truncate = reloaded or self._next.waits_for_reload(table, sequence, stopped)
            if ranges:
                jobs[table] = self._pool.submit(
                    self._merger.merge, spark, sink, table, ranges, batch[-1].sequence, from_truncate=from_truncate
                )
        return jobs

    def _take_outcome(
        self, spark: SparkSession, table: MirrorTable, job: Future[MergeOutcome], last: CommitRecord
    ) -> MergeOutcome:
        """Return a merge's outcome, or raise its error. What was done of other tables stays."""
        error = job.exception()
        if error is None:
            return job.result()
        if not isinstance(error, TableRefused):
            raise error
        self._stop_or_raise(spark, table, last, error)
        return MergeOutcome(done=False)

    def _stop_or_raise(self, spark: SparkSession, table: MirrorTable, last: CommitRecord, error: TableRefused) -> None:
        """Raise the refusal of one table, or say that it stops.

        It stops alone if the user wants that, or if a later reload repairs it.
        """
        if self._on_table_error == "stop" and not self._has_later_reload(spark, table, last):
            raise error
        self._warn(f"mirror: {table} is stopped until it is reloaded; the other tables go on: {error}")

    def _has_later_reload(self, spark: SparkSession, table: MirrorTable, last: CommitRecord) -> bool:
        """Whether a reload of the table lies behind this batch.

        Spark repeats the batch that failed, which ends before the reload.
        """
        later = self._topic.read_after(spark, last.offset)
        return any(record.reload and r.topic == table.topic for record in later for r in record.ranges)
