"""One table's part of a batch: its ranges are read, counted, decoded, folded and given to the sink.

What fails here concerns one table (`TableRefused`). A record cannot be decoded, records are gone,
a column changed to a type that is not wider, or Spark cannot apply a row (`table_errors`). The
mirror decides whether other tables go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_avro.comments import read_comments
from twofold_common.positions import Lsn, format_lsn
from twofold_spark.errors import TableRefused
from twofold_spark.mirror.folded_rows import FoldedRows
from twofold_spark.mirror.folding import LastRecords, fold_keyed, fold_keyless
from twofold_spark.sinks.interface import MirrorTable, Sink, TableBatch
from twofold_spark.sinks.table_errors import refusing_errors
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.commit_records import OffsetRange
from twofold_spark.sources.decoding import UnreadableChoice, select_unreadable
from twofold_spark.sources.kafka_client import UNKNOWN_TOPIC, KafkaAdmin
from twofold_spark.sources.registry import Registry, Subject
from twofold_spark.sources.topic_names import parse_topic_name, reload_command

ReadCurrent = Callable[[StructType], DataFrame | None]
"""Reads the table as it is before the batch, with these columns."""


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """The result of merging a table's ranges, and the time that it took."""

    done: bool
    """False if the table waits for a truncate, and none came."""
    changes: int = 0
    """Without tombstones."""
    bytes: int = 0
    fold_s: float = 0.0
    merge_s: float = 0.0


class TableMerger:
    """Reads, folds and merges; several threads may use it, each for a table of its own."""

    def __init__(self, admin: KafkaAdmin, registry: Registry, prefix: str, unreadable: UnreadableChoice) -> None:
        self._admin = admin
        self._registry = registry
        self._prefix = prefix
        self._unreadable = unreadable
        self._quarantine_lock = threading.Lock()
        self._keys: dict[str, Subject | None] = {}
        """The key of each topic, as of its first batch or last reload; only a reload changes it."""
        self._last_records: dict[str, LastRecords] = {}
        """By topic, for its subject as of the last batch."""

    def describe_table(self, topic: str, *, reloaded: bool) -> MirrorTable:
        if reloaded or topic not in self._keys:
            self._registry.refresh_subject(f"{topic}-value")
            self._keys[topic] = self._registry.refresh_subject(f"{topic}-key")
        subject, keys = self._registry.find_subject(f"{topic}-value"), self._keys[topic]
        if subject is None:
            # The merge refuses the table; the next batch asks again.
            del self._keys[topic]
            return MirrorTable(topic, *parse_topic_name(topic, self._prefix, None), key=())
        key = decoding.merge_key_columns(keys.latest, subject.latest) if keys else ()
        return MirrorTable(topic, *parse_topic_name(topic, self._prefix, subject.latest), key)

    def has_topic(self, topic: str) -> bool:
        """Whether the connector has a table of this topic, by the registry."""
        return self._registry.find_subject(f"{topic}-value") is not None

    def merge(
        self,
        spark: SparkSession,
        sink: Sink,
        table: MirrorTable,
        ranges: list[OffsetRange],
        sequence: int,
        *,
        from_truncate: bool,
    ) -> MergeOutcome:
        """Bring the table to `sequence`.

        `from_truncate` says that it misses changes, and only a reload repairs it.
        """
        began = time.monotonic()

        def read_current(columns: StructType) -> DataFrame | None:
            # Change the columns first: they must not change between this read and the merge.
            sink.prepare(self.add_comment(table), columns)
            return sink.read_current(table)

        with refusing_errors(table), ExitStack() as caches:
            folded = self.fold(spark, sink, table, ranges, caches, None if from_truncate else read_current)
            if folded is None:
                return MergeOutcome(done=False)
            read = time.monotonic()
            sink.prepare(self.add_comment(table), folded.columns)
            batch = TableBatch(folded.rows, folded.keys, folded.truncated, folded.unchanged)
            sink.merge(table, batch, sequence=sequence)
            return MergeOutcome(
                done=True,
                changes=folded.changes,
                bytes=folded.bytes,
                fold_s=read - began,
                merge_s=time.monotonic() - read,
            )

    def fold(
        self,
        spark: SparkSession,
        sink: Sink,
        table: MirrorTable,
        ranges: list[OffsetRange],
        caches: ExitStack,
        read_current: ReadCurrent | None,
    ) -> FoldedRows | None:
        """Read the ranges, and fold their rows; without `read_current` only a reload repairs them.

        None: the rows wait for a truncate, and none came.
        """

        def read() -> tuple[DataFrame, FoldedRows]:
            caches.close()
            decided = kafka_reader.are_decided(self._admin, ranges)
            raw = kafka_reader.read_ranges(spark, self._admin.kafka, ranges, decided=decided, over_markers=True)
            folded = self._fold(raw, table, caches, read_current, refresh=False)
            if differing_counts(ranges, folded.counts):
                # An offset between two ranges was no marker, but a record of a transaction in doubt
                # or rolled back.
                caches.close()
                raw = kafka_reader.read_ranges(spark, self._admin.kafka, ranges, decided=decided)
                folded = self._fold(raw, table, caches, read_current, refresh=False)
            return raw, folded

        try:
            raw, folded = kafka_reader.wait_for_topic(read)
        except Exception as error:
            if UNKNOWN_TOPIC not in str(error):
                raise
            raise TableRefused(
                f"{table}: its topic {table.topic} does not exist any more",
                at_stake="the changes in the topic",
                repair=f"`{reload_command(table)}`; if the table is no longer published, --on-table-error go-on",
            ) from error
        if folded.unreadable:
            # Usually a schema is newer than the known ones: ask the registry, and decode every
            # record. A replica of the registry may lag behind the connector.
            caches.close()
            known = self._subject(table, refresh=True)
            self._registry.find_with_ids(known.name, decoding.find_unknown_ids(raw, known))
            folded = self._fold(raw, table, caches, read_current, refresh=True)
        if folded.unreadable:
            self._quarantine(raw, sink, table, folded.unreadable)
        _check_counts(table, ranges, folded.counts)
        if late := find_later_rows(ranges, folded.positions):
            raise _made_again(table, *late)
        if read_current is None and not folded.truncated:
            return None
        folded.check(table)
        return folded

    def find_subjects(self, table: MirrorTable) -> tuple[Subject, Subject] | None:
        """Return the subjects of the rows and of their keys, as far as they are known; None of a
        table without a key.
        """
        rows, keys = self._registry.find_subject(f"{table.topic}-value"), self._keys.get(table.topic)
        return (rows, keys) if rows is not None and keys is not None else None

    def _quarantine(self, raw: DataFrame, sink: Sink, table: MirrorTable, count: int) -> None:
        records = select_unreadable(raw, self._subject(table, refresh=False), table.topic)
        with self._quarantine_lock:  # the first record creates the table
            sink.quarantine(records)
        if self._unreadable == "stop":
            raise TableRefused(
                f"{count} records of {table.topic} cannot be decoded; the quarantine table has them",
                at_stake="their changes",
                repair=f"find who else writes to the topic, then `{reload_command(table)}`; or go on without "
                "these records with --unreadable skip",
            )

    def _fold(
        self, raw: DataFrame, table: MirrorTable, caches: ExitStack, read_current: ReadCurrent | None, *, refresh: bool
    ) -> FoldedRows:
        subject = self._subject(table, refresh=refresh)
        keys = self._keys[table.topic]
        if keys is None:
            return fold_keyless(raw, subject, caches)
        last = self._select_last(table, subject, decode_all=refresh)
        return fold_keyed(raw, last, keys, table.key, read_current or (lambda _: None), caches)

    def _select_last(self, table: MirrorTable, subject: Subject, *, decode_all: bool) -> LastRecords:
        if decode_all:
            return LastRecords(subject, decode_all=True)
        kept = self._last_records.get(table.topic)
        if kept is None or kept.subjects != (subject,):
            kept = self._last_records[table.topic] = LastRecords(subject, decode_all=False)
        return kept

    def add_comment(self, table: MirrorTable) -> MirrorTable:
        """Return the table with the comment of the subject's latest version."""
        return replace(table, comment=read_comments(self._subject(table, refresh=False).latest).table)

    def _subject(self, table: MirrorTable, *, refresh: bool) -> Subject:
        name = f"{table.topic}-value"
        subject = self._registry.refresh_subject(name) if refresh else self._registry.find_subject(name)
        if subject is None or table.topic not in self._keys:
            raise TableRefused(
                f"the registry has no subject {name}",
                at_stake="the table's changes, which cannot be read",
                repair="give --registry the connector's registry; if the subject was deleted, start the connector again, which "
                f"registers it; then `{reload_command(table)}`",
            )
        return subject


def _check_counts(table: MirrorTable, ranges: Iterable[OffsetRange], counts: dict[int, int]) -> None:
    for partition, present, declared in differing_counts(ranges, counts):
        raise TableRefused(
            f"{table.topic}-{partition} holds {present} of the {declared} records that its commit records declare",
            at_stake="the missing changes: other readers of the topic lack them too",
            repair=f"`{reload_command(table)}`. Check the topic's retention and cleanup.policy; if they are not the cause, "
            "run `twofold audit`",
        )


def find_later_rows(ranges: Iterable[OffsetRange], positions: Mapping[int, int]) -> tuple[int, int, int] | None:
    """Find a partition whose rows do not lie before the position of the commit records that declare
    them; also return the rows' position and the commit records'.

    A topic that was deleted and made again has later rows at the offsets of the deleted ones.
    """
    befores: dict[int, int | None] = {}
    for each in ranges:
        known = befores.get(each.partition, 0)
        befores[each.partition] = None if known is None or each.before is None else max(known, each.before)
    for partition, at in sorted(positions.items()):
        before = befores.get(partition)
        if before is not None and at >= before:
            return partition, at, before
    return None


def _made_again(table: MirrorTable, partition: int, position: int, before: int) -> TableRefused:
    return TableRefused(
        f"{table.topic}-{partition} has rows of {format_lsn(Lsn(position))} where commit records declare rows before {format_lsn(Lsn(before))}: the topic was deleted and made again",
        at_stake="the changes that were in the former topic, and whole cuts: the table would be shown with later rows",
        repair=f"`{reload_command(table)}`, unless the reload that made the topic comes behind",
    )


def differing_counts(ranges: Iterable[OffsetRange], counts: dict[int, int]) -> list[tuple[int, int, int]]:
    """List the partitions that do not hold what is declared, with both numbers."""
    declared: dict[int, int] = {}
    for each in ranges:
        declared[each.partition] = declared.get(each.partition, 0) + each.count
    return [(p, counts.get(p, 0), count) for p, count in sorted(declared.items()) if counts.get(p, 0) != count]
