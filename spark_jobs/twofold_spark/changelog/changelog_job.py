"""The changelog: every committed change in its order, appended to a table for each source table.

The stream is all tables' topics, read_committed; new topics join by their names. A micro-batch only
says that more is committed. Then each table is brought from its own end to what its topics have
committed, in turns of a bounded number of offsets. Each table says itself how far it is
(`table_position`), in the commit that holds the rows. So the checkpoint may be lost, and cannot be
ahead of a table, and a killed driver neither repeats nor misses a change.

A refusal of one table (`TableRefused`, see `table_append`) stops the job, or that table alone if
the user wants that. Its end stays where it is, and the next start tries again from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal, TypeVar

from pyspark.sql import SparkSession

from twofold_common.printable import counted
from twofold_spark.changelog.changelog_tables import MemberOffsets, MemberPartition, TableFinder, TableTopics
from twofold_spark.changelog.table_append import TableAppender
from twofold_spark.errors import TableRefused
from twofold_spark.session import CATALOG
from twofold_spark.signals import catch_end_signals
from twofold_spark.sinks.iceberg_tables import FORMAT_VERSION
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.decoding import UnreadableChoice
from twofold_spark.sources.kafka_client import ASKED_AGAIN_S, TOPIC_WITHIN_S, Kafka, KafkaAdmin, TopicState
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import StreamingJob, Trigger, print_progress

T = TypeVar("T")
_QUIET_S = 60
"""A table that nothing was appended to for so long records its position."""


@dataclass(frozen=True, slots=True)
class TurnReport:
    """One turn, for the terminal and for metrics."""

    records: int
    tables: int
    stopped: int
    """Tables that are left as they are until the next start."""
    behind: int
    """Offsets that were committed when the turn began and are not read yet."""
    seconds: float

    def __str__(self) -> str:
        return f"changelog: {counted(self.records, 'record')} of {counted(self.tables, 'table')}"


class Changelog:
    """All tables of a prefix, or of several that are a source group; the owner closes it."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: Kafka,
        registry: Registry,
        prefixes: Sequence[str],
        *,
        sharding: Sharding = NO_SHARDING,
        catalog: str = CATALOG,
        format_version: int = FORMAT_VERSION,
        batch_rows: int = 500_000,
        tables_at_once: int = 3,
        unreadable: UnreadableChoice = "stop",
        on_table_error: Literal["stop", "go-on"] = "stop",
        report: Callable[[TurnReport], None] = lambda _: None,
        warn: Callable[[str], None] = print_progress,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._tables = TableFinder(registry, prefixes, sharding, catalog)
        self._admin = KafkaAdmin(spark, kafka)
        self._appender = TableAppender(spark, kafka, registry, format_version, unreadable)
        self._batch_rows = batch_rows
        self._pool = ThreadPoolExecutor(tables_at_once, thread_name_prefix="append")
        self._on_table_error = on_table_error
        self._report = report
        self._warn = warn
        self._reached: dict[str, MemberOffsets] = {}
        """How far each table was when last read."""
        self._stopped: set[str] = set()
        self._unrecorded: dict[str, float] = {}
        """Tables that have not recorded their position, and since when."""
        self._turn = threading.Lock()
        """Whose thread has it may read and change what is said above."""

    def run(self, checkpoint: Path | str, trigger: Trigger, requested: threading.Event | None = None) -> None:
        """Run until a signal asks for the end; with `available-now`, until the present end.

        A signal sets `requested`.
        A table may be behind the checkpoint: it was rolled back, or its trouble is over. So the job
        first reads everything that is committed.
        """
        with catch_end_signals(requested) as end:
            self._catch_up(end)
            if not end.is_set():
                job = StreamingJob(
                    "changelog", lambda _batch, _number: self._catch_up(end), meanwhile=lambda _: self._record_between()
                )
                job.start(
                    kafka_reader.watch_topics(self._spark, self._kafka, subscribePattern=self._tables.pattern),
                    checkpoint,
                    trigger,
                )
                job.run(end)
            with self._turn:
                self._record_positions(self._unrecorded)

    def _catch_up(self, end: threading.Event) -> None:
        """Run turns until all is read that is committed now."""
        with self._turn:
            topics = self._admin.describe_topics(self._tables.pattern)
            while not end.is_set() and self.run_turn(topics):
                pass

    def close(self) -> None:
        self._pool.shutdown()
        self._admin.close()

    def run_turn(self, described: Mapping[str, TopicState] | None = None) -> bool:
        """Append once to every table that is behind the topics as they are now, or as described.

        Return whether there was such a table.
        """
        began = time.monotonic()
        topics = self._admin.describe_topics(self._tables.pattern) if described is None else described
        topics = self._stop_deleted(topics)
        tables = self._tables.group(topics)
        changed = [t for name, t in tables.items() if name not in self._stopped and self._differs(t)]
        first_offsets = self._list_first_offsets(changed)
        new = {t.name: (t, first_offsets[t.name]) for t in changed if t.name not in self._reached}
        self._reached |= self._run_each(self._appender.read_ends, new)
        due = [t for t in changed if t.name in self._reached and self._differs(t)]
        until = self._choose_ends(due)
        appends = {t.name: (t, first_offsets[t.name], until[t.name]) for t in due}
        results = self._run_each(self._appender.append, appends)
        self._reached |= {name: ends for name, (ends, _) in results.items()}
        changes = {name: count for name, (_, count) in results.items() if count}
        self._unrecorded |= dict.fromkeys(changes, time.monotonic())
        self._record_quiet()
        if due:
            self._report(
                TurnReport(
                    records=sum(changes.values()),
                    tables=len(changes),
                    stopped=len(self._stopped),
                    behind=sum(self._count_behind(tables[name]) for name in self._reached if name in tables),
                    seconds=time.monotonic() - began,
                )
            )
        return bool(due)

    def _list_first_offsets(self, tables: Sequence[TableTopics]) -> dict[str, dict[MemberPartition, int]]:
        topics = (topic for state in tables for topic in state.topics.values())
        offsets = self._admin.list_first_offsets((topic.name, n) for topic in topics for n in topic.ends)
        return {t.name: {p: offsets[t.topics[p.member].name, p.partition] for p in t.ends} for t in tables}

    def _differs(self, state: TableTopics) -> bool:
        """Whether a topic ends elsewhere than its table.

        It is ahead, or anywhere if it was recreated.
        """
        reached = self._reached.get(state.name, {})
        return any(end != reached.get(place, 0) for place, end in state.ends.items())

    def _count_behind(self, state: TableTopics) -> int:
        reached = self._reached[state.name]
        return sum(max(0, end - reached.get(place, 0)) for place, end in state.ends.items())

    def _choose_ends(self, due: Iterable[TableTopics]) -> dict[str, MemberOffsets]:
        """Choose how far this turn goes: each partition gets the same share of its backlog."""
        share = min(1.0, self._batch_rows / max(1, sum(self._count_behind(state) for state in due)))
        found: dict[str, MemberOffsets] = {}
        for state in due:
            first = {place: self._reached[state.name].get(place, 0) for place in state.ends}
            found[state.name] = {p: first[p] + ceil((end - first[p]) * share) for p, end in state.ends.items()}
        return found

    def _stop_deleted(self, topics: Mapping[str, TopicState]) -> Mapping[str, TopicState]:
        """Stop the tables whose topics are gone. Return the topics as they were told last."""
        gone, topics = self._find_deleted(topics)
        for name, topic in gone.items():
            self._stop(
                name,
                TableRefused(
                    f"the topic {topic} does not exist any more",
                    at_stake="what was in it and had not been appended",
                    repair="if the topic was deleted on purpose, start again: its table keeps what it has",
                ),
            )
        return topics

    def _find_deleted(self, topics: Mapping[str, TopicState]) -> tuple[dict[str, str], Mapping[str, TopicState]]:
        """Find the tables that were read and whose topic is gone, with the topic; and all topics.

        A broker that stood still knows a new topic later than the others, so Kafka is asked again
        for some seconds.
        """
        deadline = time.monotonic() + TOPIC_WITHIN_S
        while True:
            gone = {name: topic for name, topic in self._tables.list_gone(topics).items() if name in self._reached}
            if not gone or time.monotonic() >= deadline:
                return gone, topics
            time.sleep(ASKED_AGAIN_S)
            topics = self._admin.describe_topics(self._tables.pattern)

    def _run_each(self, work: Callable[..., T], arguments: Mapping[str, tuple[object, ...]]) -> dict[str, T]:
        """Run the work for each table in threads; return results of tables that go on."""
        jobs: dict[str, Future[T]] = {name: self._pool.submit(work, *each) for name, each in arguments.items()}
        wait(jobs.values())
        for name, job in jobs.items():
            error = job.exception()
            if isinstance(error, TableRefused):
                self._stop(name, error)
            elif error is not None:
                raise error
        return {name: job.result() for name, job in jobs.items() if name not in self._stopped}

    def _stop(self, table: str, error: TableRefused) -> None:
        if self._on_table_error == "stop":
            raise error
        self._stopped.add(table)
        self._reached.pop(table, None)
        self._warn(f"changelog: the table of {table} is stopped until the next start; the other tables go on: {error}")

    def _record_between(self) -> None:
        """Record between two micro-batches: there is none while no topic changes."""
        if self._turn.acquire(blocking=False):
            try:
                self._record_quiet()
            finally:
                self._turn.release()

    def _record_quiet(self) -> None:
        self._record_positions([n for n, since in self._unrecorded.items() if time.monotonic() - since > _QUIET_S])

    def _record_positions(self, tables: Iterable[str]) -> None:
        names = list(tables)
        self._run_each(self._appender.record_position, {name: (self._tables.find(name),) for name in names})
        for name in names:
            del self._unrecorded[name]
