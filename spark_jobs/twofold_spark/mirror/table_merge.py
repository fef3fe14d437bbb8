"""One table's part of a bite: its ranges read, counted, decoded, folded and given to the sink.

What goes wrong here is one table's trouble (`TableRefused`): a record that cannot be decoded, records that are not there
any more, a change of its columns that no widening leads to. Whether the others go on is the mirror's to decide.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_spark.errors import TableRefused
from twofold_spark.mirror.keyed_folding import Folded, fold, fold_multiset
from twofold_spark.sinks import Sink, Table
from twofold_spark.sources import decoding, kafka_reader, unreadable_records
from twofold_spark.sources.commit_records import Range
from twofold_spark.sources.kafka_reader import Kafka
from twofold_spark.sources.registry import Registry, Subject
from twofold_spark.sources.stable_offsets import StableOffsets
from twofold_spark.sources.topic_names import names_of


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of a table's ranges, and what it took."""

    done: bool
    """False where only a truncate was waited for, and none came."""
    changes: int = 0
    """Tombstones are none."""
    bytes: int = 0
    fold_s: float = 0.0
    merge_s: float = 0.0


class Merger:
    """Reads, folds and merges; several tables at once may call it."""

    def __init__(self, where: Kafka, registry: Registry, prefix: str, unreadable: unreadable_records.Choice) -> None:
        self._where = where
        self._registry = registry
        self._prefix = prefix
        self._unreadable = unreadable
        self._stable = StableOffsets(where)
        self._quarantining = threading.Lock()
        self._keys: dict[str, Subject | None] = {}
        """Of each topic that was met, as it was then or at its last reload: a key does not change in between."""

    def table(self, topic: str, *, reloaded: bool) -> Table:
        """The table that a topic is of."""
        if reloaded or topic not in self._keys:
            self._registry.refreshed(f"{topic}-value")
            self._keys[topic] = self._registry.refreshed(f"{topic}-key")
        subject, keys = self._registry.subject(f"{topic}-value"), self._keys[topic]
        if subject is None:
            # Refused when it is merged, and asked for again.
            del self._keys[topic]
            return Table(topic, *names_of(topic, self._prefix, None), key=())
        key = decoding.merge_key(keys.latest, subject.latest) if keys else ()
        return Table(topic, *names_of(topic, self._prefix, subject.latest), key)

    def merge(
        self, spark: SparkSession, sink: Sink, table: Table, ranges: list[Range], sequence: int, *, from_truncate: bool
    ) -> Merged:
        """Brings the table to `sequence`; `from_truncate` if it has missed changes and can only begin anew."""
        began = time.monotonic()
        with ExitStack() as held:
            folded = self._folded(spark, sink, table, ranges, held, carries=not from_truncate)
            read = time.monotonic()
            _check_counts(table, ranges, folded.counts)
            if from_truncate and not folded.truncated:
                return Merged(done=False)
            folded.check(table)
            sink.prepare(table, folded.columns)
            sink.merge(table, folded.rows, replace=folded.truncated, unchanged=folded.unchanged, sequence=sequence)
            merge_s = time.monotonic() - read
            return Merged(done=True, changes=folded.changes, bytes=folded.bytes, fold_s=read - began, merge_s=merge_s)

    def close(self) -> None:
        """After the last merge."""
        self._stable.close()

    def _folded(
        self, spark: SparkSession, sink: Sink, table: Table, ranges: list[Range], held: ExitStack, *, carries: bool
    ) -> Folded:
        try:
            decided = self._stable.have_passed(spark, ranges)
            raw = kafka_reader.ranges(spark, self._where, ranges, decided=decided, over_markers=True)
            folded = self._fold(raw, sink, table, held, refresh=False, carries=carries)
            if _differing(ranges, folded.counts):
                # What was taken for a marker may be a record of a transaction that is in doubt, or was rolled back.
                held.close()
                raw = kafka_reader.ranges(spark, self._where, ranges, decided=decided)
                folded = self._fold(raw, sink, table, held, refresh=False, carries=carries)
        except Exception as error:
            if "UnknownTopicOrPartition" not in str(error):
                raise
            raise TableRefused(
                f"{table}: its topic {table.topic} is not there any more",
                at_stake="the changes that were in it",
                repair=f"`twofold backfill start {table}`; if the table is no longer published, --on-table-error go-on",
            ) from error
        if folded.unreadable:
            # A schema that is newer than what is known is the usual reason: ask, and look again, at every record.
            held.close()
            folded = self._fold(raw, sink, table, held, refresh=True, carries=carries)
        if folded.unreadable:
            records = unreadable_records.unreadable(raw, self._subject(table, refresh=False), table.topic)
            with self._quarantining:  # the first of them makes the table
                sink.quarantine(records)
        if folded.unreadable and self._unreadable == "stop":
            raise TableRefused(
                f"{folded.unreadable} records of {table.topic} cannot be decoded; the quarantine table has them",
                at_stake="their changes",
                repair=f"find who else writes to the topic, then `twofold backfill start {table}`; or go on without "
                "them by --unreadable skip",
            )
        return folded

    def _fold(
        self, raw: DataFrame, sink: Sink, table: Table, held: ExitStack, *, refresh: bool, carries: bool
    ) -> Folded:
        subject = self._subject(table, refresh=refresh)
        keys = self._keys[table.topic]
        if keys is None:
            return fold_multiset(raw, subject, held)

        def current(columns: StructType) -> DataFrame | None:
            # What is read of the table must not change its columns before it is merged.
            sink.prepare(table, columns)
            return sink.current(table)

        return fold(raw, subject, keys, table.key, current if carries else lambda _: None, held, every=refresh)

    def _subject(self, table: Table, *, refresh: bool) -> Subject:
        name = f"{table.topic}-value"
        subject = self._registry.refreshed(name) if refresh else self._registry.subject(name)
        if subject is None or table.topic not in self._keys:
            raise TableRefused(
                f"the registry has no subject {name}: is it the connector's registry?",
                at_stake="its changes, which cannot be read",
                repair=f"if it was deleted, start the connector again, which registers it; then `twofold backfill start {table}`",
            )
        return subject


def _check_counts(table: Table, ranges: Iterable[Range], counts: dict[int, int]) -> None:
    for partition, there, declared in _differing(ranges, counts):
        raise TableRefused(
            f"{table.topic}-{partition} holds {there} of the {declared} records that its commit records declare",
            at_stake="the missing changes: other readers of the topic do not have them either",
            repair=f"`twofold backfill start {table}`; look at the topic's retention and cleanup.policy, and where they do not say it, `twofold audit` does",
        )


def _differing(ranges: Iterable[Range], counts: dict[int, int]) -> list[tuple[int, int, int]]:
    """The partitions that do not hold what is declared of them, with both numbers."""
    declared: dict[int, int] = {}
    for stretch in ranges:
        declared[stretch.partition] = declared.get(stretch.partition, 0) + stretch.count
    return [(p, counts.get(p, 0), count) for p, count in sorted(declared.items()) if counts.get(p, 0) != count]
