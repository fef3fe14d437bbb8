"""The changelog: every committed change in its order, appended to a table per source table.

The stream is all tables' topics, read_committed; new topics join by their names. A micro-batch only says that more is committed: each
table is then brought from its own end to what is committed in its topic by then, in stretches of a bounded number of offsets. How far a
table is it says itself (`position`), in the very commit that holds the rows. So the checkpoint can be lost, and cannot be ahead of a table,
and a killed driver neither repeats nor misses a change.

What goes wrong with one table (`TableRefused`, see `append`) stops the job, or that table alone if the user wants the others to go on: its
end stays where it is, and the next start tries again from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal, TypeVar

from pyspark.sql import SparkSession

from twofold_spark.changelog.table_append import Appender
from twofold_spark.errors import TableRefused
from twofold_spark.session import CATALOG
from twofold_spark.sources import kafka_reader, unreadable_records
from twofold_spark.sources.kafka_reader import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.table_topics import Offsets, Topic, Topics
from twofold_spark.sources.topic_names import topics_pattern
from twofold_spark.streaming import Job, Trigger, asked_to_end, say

T = TypeVar("T")
_REST_S = 60
"""A table that nothing was appended to for so long notes how far it is."""


@dataclass(frozen=True, slots=True)
class Appended:
    """One turn, for the terminal and for metrics."""

    records: int
    tables: int
    stopped: int
    """Tables that are left as they are until the next start."""
    behind: int
    """Offsets that were committed when the turn began and are not read yet."""
    seconds: float

    def __str__(self) -> str:
        return f"changelog: {self.records} records of {self.tables} tables"


class Changelog:
    """All tables of a prefix; `close()` it."""

    def __init__(
        self,
        spark: SparkSession,
        where: Kafka,
        registry: Registry,
        prefix: str,
        *,
        catalog: str = CATALOG,
        batch_rows: int = 500_000,
        tables_at_once: int = 3,
        unreadable: unreadable_records.Choice = "stop",
        on_table_error: Literal["stop", "go-on"] = "stop",
        report: Callable[[Appended], None] = lambda _: None,
        warn: Callable[[str], None] = say,
    ) -> None:
        self._spark = spark
        self._where = where
        self._pattern = topics_pattern(prefix)
        self._topics = Topics(spark, where, self._pattern)
        self._appender = Appender(spark, where, registry, prefix, catalog=catalog, unreadable=unreadable)
        self._batch_rows = batch_rows
        self._pool = ThreadPoolExecutor(tables_at_once, thread_name_prefix="append")
        self._on_table_error = on_table_error
        self._report = report
        self._warn = warn
        self._reached: dict[str, Offsets] = {}
        """How far the table of each topic was when it was last looked at."""
        self._stopped: set[str] = set()
        self._restless: dict[str, float] = {}
        """Topics whose tables have not noted how far they are, and since when they are there."""

    def run(self, checkpoint: Path | str, trigger: Trigger) -> None:
        """Until a signal asks for the end; with `available-now` to what is committed now.

        A table may be behind the checkpoint: it was taken back, or its trouble is over. So what is there is caught up with first.
        """
        with asked_to_end() as asked:
            self._catch_up(asked)
            if not asked.is_set():
                job = Job("changelog", lambda _batch, _number: self._catch_up(asked))
                job.start(kafka_reader.news(self._spark, self._where, self._pattern), checkpoint, trigger)
                job.run(asked)
            self._note(self._restless)

    def _catch_up(self, asked: threading.Event) -> None:
        """Turn after turn to what is committed now."""
        there = self._topics.now()
        while not asked.is_set() and self.turn(there):
            pass

    def close(self) -> None:
        """After the last turn."""
        self._pool.shutdown()
        self._topics.close()

    def turn(self, there: Mapping[str, Topic] | None = None) -> bool:
        """One stretch of every table that is behind the topics as they are now, or as they were; whether there was one."""
        began = time.monotonic()
        topics = self._topics.now() if there is None else there
        self._look_for_deleted(topics)
        changed = [t for name, t in topics.items() if name not in self._stopped and self._is_elsewhere(t)]
        beginnings = self._topics.beginnings(changed)
        new = {t.name: (t, beginnings[t.name]) for t in changed if t.name not in self._reached}
        self._reached |= self._each(self._appender.ends, new)
        due = [t for t in changed if t.name in self._reached and self._is_elsewhere(t)]
        until = self._until(due)
        done = self._each(self._appender.append, {t.name: (t, beginnings[t.name], until[t.name]) for t in due})
        self._reached |= {name: each.ends for name, each in done.items()}
        self._restless |= {name: time.monotonic() for name, each in done.items() if each.records}
        self._note([name for name, since in self._restless.items() if time.monotonic() - since > _REST_S])
        if due:
            self._report(
                Appended(
                    records=sum(each.records for each in done.values()),
                    tables=sum(1 for each in done.values() if each.records),
                    stopped=len(self._stopped),
                    behind=sum(self._behind(topics[name]) for name in self._reached if name in topics),
                    seconds=time.monotonic() - began,
                )
            )
        return bool(due)

    def _is_elsewhere(self, topic: Topic) -> bool:
        """Ahead of its table; or, if it is another topic than it was, anywhere."""
        reached = self._reached.get(topic.name, {})
        return any(end != reached.get(partition, 0) for partition, end in topic.ends.items())

    def _behind(self, topic: Topic) -> int:
        reached = self._reached[topic.name]
        return sum(max(0, end - reached.get(partition, 0)) for partition, end in topic.ends.items())

    def _until(self, due: Iterable[Topic]) -> dict[str, Offsets]:
        """Of each topic what is taken in this turn: of every partition the same share of what it has."""
        share = min(1.0, self._batch_rows / max(1, sum(self._behind(topic) for topic in due)))
        found: dict[str, Offsets] = {}
        for topic in due:
            first = {partition: self._reached[topic.name].get(partition, 0) for partition in topic.ends}
            found[topic.name] = {p: first[p] + ceil((end - first[p]) * share) for p, end in topic.ends.items()}
        return found

    def _look_for_deleted(self, topics: Mapping[str, Topic]) -> None:
        for name in self._reached.keys() - topics.keys():
            del self._reached[name]
            self._stop(
                name,
                TableRefused(
                    f"the topic {name} is not there any more",
                    at_stake="what was in it and had not been appended",
                    repair="if it was meant to go, start again: its table keeps what it has",
                ),
            )

    def _each(self, work: Callable[..., T], of: Mapping[str, tuple[object, ...]]) -> dict[str, T]:
        """What became of each topic's part, without those that were stopped by it."""
        jobs: dict[str, Future[T]] = {name: self._pool.submit(work, *arguments) for name, arguments in of.items()}
        wait(jobs.values())
        for name, job in jobs.items():
            error = job.exception()
            if isinstance(error, TableRefused):
                self._stop(name, error)
            elif error is not None:
                raise error
        return {name: job.result() for name, job in jobs.items() if name not in self._stopped}

    def _stop(self, topic: str, error: TableRefused) -> None:
        if self._on_table_error == "stop":
            raise error
        self._stopped.add(topic)
        self._reached.pop(topic, None)
        self._warn(f"changelog: the table of {topic} is left as it is until the next start, the others go on: {error}")

    def _note(self, topics: Iterable[str]) -> None:
        names = list(topics)
        self._each(self._appender.note, {name: (name,) for name in names})
        for name in names:
            del self._restless[name]
