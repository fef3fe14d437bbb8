"""Brings the tables of one source to a commit record, in one batch.

The commit records of a batch come in the order of their sequence numbers. The ranges of every table
are read, counted, folded and merged, several tables at once. The mirror publishes the batch's cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile

from pyspark.sql import SparkSession

from twofold_avro.names import topic_of
from twofold_spark.errors import Refused, TableRefused
from twofold_spark.mirror.batching import (
    AppliedBatch,
    BatchSizer,
    MirrorSettings,
    TableMaintenance,
)
from twofold_spark.mirror.next_cut import NextCut
from twofold_spark.mirror.shard_folding import DueShard
from twofold_spark.mirror.sharded_tables import ShardedTables
from twofold_spark.mirror.table_merge import MergeOutcome, TableMerger
from twofold_spark.session import fork_session
from twofold_spark.sinks.cuts import Cut
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
from twofold_spark.sources.kafka_client import KafkaAdmin
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.topic_names import is_table_topic, to_postgres_names
from twofold_spark.streaming import EndRequested


@dataclass(slots=True)
class Batch:
    """What the cut of a batch is made of, until it is published."""

    last: CommitRecord
    applied: dict[MirrorTable, int]
    stopped: set[str]
    rows: int = 0
    bytes: int = 0


class SourceMirror:
    """The tables of one source, in a session of their own: what a merge sets is a session's."""

    def __init__(
        self,
        spark: SparkSession,
        admin: KafkaAdmin,
        registry: Registry,
        prefix: str,
        place: Place,
        settings: MirrorSettings,
        ending: threading.Event,
        warn: Callable[[str], None],
        shared: ShardedTables,
    ) -> None:
        self._spark = spark
        self._prefix = prefix
        self._topic = CommitTopic(admin.kafka, registry, prefix)
        self._place = place
        self._settings = settings
        self._merger = TableMerger(admin, registry, prefix, settings.unreadable)
        self.sizer = BatchSizer(settings.batch_rows, settings.batch_bytes)
        self._pool = ThreadPoolExecutor(settings.tables_at_once, thread_name_prefix="merge")
        self.maintenance = TableMaintenance(settings)
        self._ending = ending
        self._warn = warn
        self._sink: Sink
        self._shared = shared
        self._next = NextCut(prefix, warn, shared.covers)
        self._batch: Batch | None = None
        """The last one."""

    @property
    def cut(self) -> Cut:
        """The last cut, which the mirror may not have published."""
        return self._next.cut

    def begin(self) -> None:
        """Take over what an earlier process published; the place is open."""
        self._spark = fork_session(self._spark)
        self._sink = self._place.make_sink(self._spark, self._prefix)
        self._next.start_from(self._sink, self._place.find_part(self._prefix))

    def stop_table(self, table: str) -> None:
        """Stop a sharded table that is gone. A source that joins again may have had rows in it."""
        topic = topic_of(self._prefix, *to_postgres_names(table))
        if table in self.cut.versions or (self.cut.sequence and self._merger.has_topic(topic)):
            self._next.warn_of_absence(table)
            self._next.stop_table(table)

    def describe_shards(self, versions: Mapping[str, str]) -> Cut:
        return self._next.describe_shards(versions, self._merger.has_topic)

    def apply_up_to(self, sequence: int, *, held: Iterable[CommitRecord] | None, behind: int) -> AppliedBatch:
        """Apply the commit records up to a sequence number as one batch.

        They are read behind an offset, unless they are held. The batch is not published.
        """
        if self._ending.is_set():
            raise EndRequested
        source = (record for record in held) if held is not None else self._topic.read_after(self._spark, behind)
        with closing(source) as records:
            batch = list(self._select_due(takewhile(lambda record: record.sequence <= sequence, records)))
        if not batch or len(batch) != sequence - batch[0].sequence + 1:
            # Retention has taken some since they were chosen.
            raise gap_refusal(self._next.cut.sequence, sequence + 1)
        self._handle_gap(batch[0])
        before = self._next.cut.sequence
        applied = self._apply(self._sink, batch)
        self.maintenance.note_batch(before, self._next.cut.sequence)
        return applied

    def leave_out(self, refused: TableRefused) -> None:
        """Make the next cut without a table that a step behind the batch refused.

        Raise the refusal if the job is to stop for it.
        """
        batch = self._batch
        table = next((each for each in batch.applied if str(each) == refused.table), None) if batch else None
        if batch is not None and table is not None:
            self._stop_or_raise(table, batch.last, refused)
        elif self._settings.on_table_error == "stop" or refused.table not in self._next.cut.versions:
            raise refused
        else:
            self._warn(self._describe_stop(refused.table, refused))
        if batch is not None:
            batch.stopped.add(refused.table)
            self._make_cut(batch)
        else:
            self._next.stop_table(refused.table)

    def note_shard(self, table: str, size: int, *, waits: bool) -> None:
        """Note that the batch's part of a sharded table was folded: its bytes, and whether the
        shard waits for a truncate that did not come.
        """
        assert self._batch is not None, "it has left the shard"
        self._batch.bytes += size
        self.sizer.record_batch(self._batch.rows, self._batch.bytes)
        if waits:
            self._batch.stopped.add(table)
            self._make_cut(self._batch)

    def maintain_if_due(self) -> None:
        """Maintain some of the changed tables, between two batches: beside a merge it would
        conflict.
        """
        due = [table for table in self.maintenance.due.take_share() if table in self._next.cut.versions]
        if due:
            self._sink.maintain(due, self._settings.keep_cuts)

    def close(self) -> None:
        self._pool.shutdown()

    def raise_or_begin(self, refused: Refused) -> None:
        """Raise a refusal, unless the user wants to begin with what there is."""
        if self._settings.on_table_error == "stop":
            raise refused
        self._warn(f"mirror: {refused}")

    def _select_due(self, records: Iterable[CommitRecord]) -> Iterator[CommitRecord]:
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
        if self._settings.on_table_error == "stop":
            raise gap
        self._warn(f"mirror: every table is stopped until it is reloaded: {gap}")
        self._next.stop_every_table(first.sequence - 1, first.stream_id)

    def _apply(self, sink: Sink, batch: list[CommitRecord]) -> AppliedBatch:
        began = time.monotonic()
        last = batch[-1]
        tables = self._describe_tables(batch)
        applied = {table: self._read_applied(sink, table) for table in tables}
        stopped = self._next.find_stopped(applied)
        rows = sum(record.rows for record in batch)
        sink.plan_batch([table for table in tables if not self._shared.covers(str(table))], rows)
        jobs = self._submit_merges(sink, batch, applied, stopped)
        wait(jobs.values())
        outcomes = {table: self._take_outcome(table, job, last) for table, job in jobs.items()}
        for table, outcome in outcomes.items():
            if not self._shared.covers(str(table)):
                self.maintenance.changed.add(str(table))
            (stopped.discard if outcome.done else stopped.add)(str(table))
        self._batch = Batch(last, applied, stopped, rows, sum(o.bytes for o in outcomes.values()))
        self._make_cut(self._batch)
        self.sizer.record_batch(rows, self._batch.bytes)
        return AppliedBatch(
            cut=self._next.cut,
            transactions=sum(r.transactions for r in batch),
            changes=sum(o.changes for o in outcomes.values()),
            tables=len(tables),
            seconds=time.monotonic() - began,
            lag_seconds=max(0.0, time.time() - last.committed_us / 1e6),
            stages={
                "fold": sum(o.fold_s for o in outcomes.values()),
                "merge": sum(o.merge_s for o in outcomes.values()),
            },
        )

    def _make_cut(self, batch: Batch) -> None:
        going_on = {table: number for table, number in batch.applied.items() if str(table) not in batch.stopped}
        self._next.advance(self._sink, batch.last, going_on, batch.stopped)

    def _describe_tables(self, batch: list[CommitRecord]) -> list[MirrorTable]:
        named = dict.fromkeys(each.topic for record in batch for each in record.ranges)
        topics = [topic for topic in named if is_table_topic(topic, self._prefix)]
        reloaded = {each.topic for record in batch if record.reload for each in record.ranges}
        described = (self._merger.describe_table(topic, reloaded=topic in reloaded) for topic in topics)
        return [replace(table, stream_id=batch[-1].stream_id) for table in described]

    def _submit_merges(
        self, sink: Sink, batch: list[CommitRecord], applied: dict[MirrorTable, int], stopped: set[str]
    ) -> dict[MirrorTable, Future[MergeOutcome]]:
        """Start the merge of every table that lacks some of the batch. Sharded ones wait for all
        members.
        """
        jobs = {}
        for table, sequence in applied.items():
            ranges, reloaded = select_since_reload((r for r in batch if r.sequence > sequence), table.topic)
            from_truncate = reloaded or str(table) in stopped
            if ranges and self._shared.covers(str(table)):
                self._shared.add(DueShard(self._prefix, table, ranges, self._merger, sink, from_truncate))
                stopped.discard(str(table))
            elif ranges:
                jobs[table] = self._pool.submit(
                    self._merger.merge,
                    self._spark,
                    sink,
                    table,
                    ranges,
                    batch[-1].sequence,
                    from_truncate=from_truncate,
                )
        return jobs

    def _read_applied(self, sink: Sink, table: MirrorTable) -> int:
        """Return the number up to which a table has this member's changes; 0 if it has none."""
        if not self._shared.covers(str(table)):
            return sink.read_applied(table)
        cut = self._next.cut
        is_known = str(table) in cut.versions or str(table) in cut.stopped
        return cut.sequence if self._shared.has(table) and is_known else 0

    def _take_outcome(self, table: MirrorTable, job: Future[MergeOutcome], last: CommitRecord) -> MergeOutcome:
        """Return a merge's outcome, or raise its error. What was done of other tables stays."""
        error = job.exception()
        if error is None:
            return job.result()
        if not isinstance(error, TableRefused):
            raise error
        self._stop_or_raise(table, last, error)
        return MergeOutcome(done=False)

    def _stop_or_raise(self, table: MirrorTable, last: CommitRecord, error: TableRefused) -> None:
        """Raise the refusal of one table, or say that it stops.

        It stops alone if the user wants that, or if a later reload repairs it.
        """
        if self._settings.on_table_error == "stop" and not self._has_later_reload(table, last):
            raise error
        self._warn(self._describe_stop(str(table), error))

    def _has_later_reload(self, table: MirrorTable, last: CommitRecord) -> bool:
        """Whether a reload of the table lies behind this batch.

        The next start may read a batch that ends before the reload as well.
        """
        later = self._topic.read_after(self._spark, last.offset)
        return any(record.reload and r.topic == table.topic for record in later for r in record.ranges)

    def _describe_stop(self, table: str, error: TableRefused) -> str:
        name = self._next.name_rows(table)
        return f"mirror: {name} is stopped until it is reloaded; the other tables go on: {error}"
