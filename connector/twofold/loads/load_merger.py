"""Merges the rows of loads with the rows of the stream.

All rows of the main producer pass the merger. An open prepared transaction has no rows of a table
in backfill, so its rows go to the publisher directly. The merger knows what has been published of
tables in backfill, in the order of each topic. Only the worker's thread uses the merger.
`lives.topic_life` decides; the merger executes, and keeps what comes at the rate of rows
(`watched_topic`). The table's pin has the durable state, committed with the rows that the state
describes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold.kafka.row_batch import SKIPPED, VOID, Record, RowBatch
from twofold.lives import topic_life
from twofold.lives.chunk_rule import Snapshot
from twofold.lives.exchanged import CommandExecuted, ExecuteCommand, WatchTopic
from twofold.lives.skipped_rows import NOTHING_MISSING, MissingRow, MissingRows
from twofold.lives.topic_life import TopicLife
from twofold.loads.chunk import Chunk, ChunkResult, ReloadTruncate
from twofold.loads.watched_topic import EnvelopeReader, WatchedTopic, key_of
from twofold.spool import Spool
from twofold.thread_owner import ThreadOwner
from twofold_avro.records import Commit, Pin, SkippedRow
from twofold_avro.transcode import PackedRecords
from twofold_common.positions import Lsn, format_lsn

_log = logging.getLogger(__name__)

_UNPACKED_MAX = 2_000
"""The number of records that are unpacked at a time. With fewer, librdkafka's batches would be
smaller; more would not stay in the processor's caches.
"""


class Published(NamedTuple):
    """A committed Kafka transaction: its commit record with ranges, and its pins."""

    commit: Commit | None
    pins: Mapping[str, Pin]


class LoadMerger:
    """Merges loads with the stream, during one run."""

    def __init__(
        self, publisher: Publisher, *, pins: Mapping[str, Pin], envelopes: EnvelopeReader, spool: Spool
    ) -> None:
        self._publisher = publisher
        self._pins = dict(pins)
        self._lives: dict[str, TopicLife] = {
            topic: topic_life.begin(pin.backfill, pin.bound, pin.command, keyless=pin.key_schema is None)
            for topic, pin in pins.items()
            if pin.backfill != "ready"
        }
        self._stale = {topic for topic, pin in pins.items() if pin.stale}
        self._watched = {topic: WatchedTopic() for topic in self._lives}
        """The topics of tables in backfill."""
        self._unwritten: set[str] = set()
        """Topics whose lives have changed since their pins were last written."""
        self._missing = {
            topic: MissingRows(frozenset(MissingRow(row.lsn, row.key) for row in pin.skipped))
            for topic, pin in pins.items()
            if pin.skipped
        }
        """The topics that lack a skipped row."""
        self.envelopes = envelopes
        self._spool = spool
        self._owner = ThreadOwner("the merger")

    # --- the stream's rows

    def watch(self, topic: str, watch: WatchTopic) -> None:
        """Remember the table's changes from here on; called before the table's first row."""
        assert self._owner.check_first()
        self._apply(topic, watch)
        self._watched.setdefault(topic, WatchedTopic())

    def produce(self, batch: RowBatch) -> None:
        """Publish rows of committed transactions."""
        assert self._owner.check_first()
        batch.take_topic(VOID)
        if skipped := batch.take_topic(SKIPPED):
            self._note_skipped(skipped)
        if self._missing:
            self._note_published(batch)
        if self._watched:
            self._note_changes(batch)
        self._publisher.produce(batch)

    def forget(self, topic: str, snapshot: Snapshot) -> None:
        """Forget changes that all later snapshots of this table's load see."""
        assert self._owner.check_first()
        if watched := self._watched.get(topic):
            watched.forget(snapshot)

    def commit(self, records: TransactionRecords) -> Published:
        """Commit the main producer's transaction."""
        complete = self._complete(records)
        return Published(self._publisher.commit_main(complete), complete.pins)

    def commit_prepared(self, slot: int, records: TransactionRecords) -> Published:
        """Commit the transaction of a producer of the pool.

        The transaction has no rows of tables in backfill, because such prepared transactions are
        parked.
        """
        complete = self._complete(records)
        return Published(self._publisher.commit_prepared(slot, complete), complete.pins)

    def _complete(self, records: TransactionRecords) -> TransactionRecords:
        """Return the records with the tables' states: the pins hold each backfill's progress, and
        the commit record agrees with the pins.
        """
        pins, commit = self._pins_to_write(records.pins), records.commit
        if commit is not None:
            skipped = tuple(row for topic in sorted(self._missing) for row in self._skipped_rows(topic))
            backfilling, stale = tuple(sorted(self._watched)), tuple(sorted(self._stale))
            commit = replace(commit, backfilling=backfilling, stale=stale, skipped=skipped)
        return replace(records, commit=commit, pins=pins)

    # --- a load's own Kafka transactions

    def publish_chunk(self, chunk: Chunk, records: TransactionRecords) -> Published:
        """Publish a chunk with the load's progress."""
        assert self._owner.check_first()
        watched = self._watched.setdefault(chunk.topic, WatchedTopic())
        changes = watched.memory.judge(chunk.snapshot)
        keys = (key_of(record) for rows in chunk.lists for record in rows)
        passed = topic_life.ChunkPassed(
            chunk.snapshot,
            "whole" if chunk.whole is not None else "gone" if chunk.encoding is None else "range",
            changes,
            chunk.last,
            chunk.order,
            chunk.among,
            changes.unread(keys, chunk.among),
            chunk.scanned,
        )
        rows = self._execute(chunk.topic, passed, chunk)
        seconds = watched.count_seconds(chunk.begun)
        self._execute(chunk.topic, topic_life.RowsCounted(rows, chunk.size, seconds))
        published = self.commit(records)
        chunk.drop()
        self._answer(chunk)
        return published

    def publish_truncate(self, truncate: ReloadTruncate, records: TransactionRecords) -> Published:
        """Empty the topic: a reload begins."""
        assert self._owner.check_first()
        self._pins |= records.pins
        self._execute(truncate.topic, topic_life.TruncateDue(truncate.command), truncate)
        published = self.commit(records)
        self._answer(truncate)
        return published

    def execute_command(
        self, topic: str, due: ExecuteCommand, records: TransactionRecords
    ) -> tuple[Published, CommandExecuted]:
        """Execute a person's command."""
        assert self._owner.check_first()
        self._pins |= records.pins
        self._execute(topic, due)
        published = self.commit(records)
        life = self._life(topic)
        return published, CommandExecuted(due.command.number, life.state, life.progress)

    def _answer(self, offered: Chunk | ReloadTruncate) -> None:
        life = self._life(offered.topic)
        offered.answer.set_result(ChunkResult(life.progress, life.state))

    # --- lives

    def _life(self, topic: str) -> TopicLife:
        life = self._lives.get(topic)
        if life is None:
            pin = self._pins.get(topic)
            life = TopicLife(pin.key_schema is None, executed=pin.command) if pin else TopicLife(keyless=False)
        return life

    def _apply(self, topic: str, event: topic_life.TopicEvent) -> tuple[topic_life.TopicAction, ...]:
        before = self._life(topic)
        life, actions = topic_life.step_topic(before, event)
        if life != before:
            self._lives[topic] = life
            self._unwritten.add(topic)
        return actions

    def _execute(self, topic: str, event: topic_life.TopicEvent, offered: Chunk | ReloadTruncate | None = None) -> int:
        """Apply the event and its actions; return how many rows of the snapshot were published."""
        published, actions = 0, self._apply(topic, event)
        watched = self._watched.setdefault(topic, WatchedTopic())
        for action in actions:
            match action:
                case topic_life.ForgetChanges(seen_by):
                    watched.forget(seen_by)
                case topic_life.PublishTruncate():
                    assert isinstance(offered, ReloadTruncate)
                    self._produce_truncate(offered)
                case topic_life.PublishRows(dropped):
                    assert offered is not None
                    published += self._produce_read(topic, offered.lists, dropped)
                case topic_life.PublishWhole():
                    assert isinstance(offered, Chunk)
                    assert offered.whole is not None
                    for piece in offered.whole.chunks():
                        published += self._produce_read(topic, [PackedRecords(piece)], frozenset())
                case topic_life.ReleaseDelayed(unseen_by):
                    for rows in watched.release(unseen_by, self.envelopes):
                        self._publisher.produce(rows)
        if not self._life(topic).in_backfill:
            del self._watched[topic]
        return published

    def _pins_to_write(self, pins: Mapping[str, Pin]) -> dict[str, Pin]:
        """Return the pins that a commit writes, completed with the state of their topics' lives."""
        assert self._owner.check_first()
        self._pins |= pins
        complete = {topic: self._complete_pin(topic, self._pins[topic]) for topic in self._unwritten | pins.keys()}
        self._pins |= complete
        for topic, pin in complete.items():
            (self._stale.add if pin.stale else self._stale.discard)(topic)
        self._unwritten.clear()
        return complete

    def _complete_pin(self, topic: str, pin: Pin) -> Pin:
        if pin.skipped != (skipped := self._skipped_rows(topic)):
            pin = replace(pin, skipped=skipped)
        life = self._lives.get(topic)
        if life is None:
            return pin
        bound = life.progress.to_bytes() if life.in_backfill else None
        return replace(pin, backfill=life.state, bound=bound, command=max(pin.command, life.executed))

    # --- skipped rows

    def _note_skipped(self, notes: RowBatch) -> None:
        """Note rows that people's commands named; this transaction removes the commands."""
        for _, _, records in notes.partitions():
            for note in records:
                topic, lsn = note["topic"], note["lsn"]
                _log.warning("%s: skipped row %s at %s", topic, note["row"], format_lsn(Lsn(lsn)))
                self._set_missing(topic, self._missing_of(topic).skip(MissingRow(lsn, note["key"])))
                self._publisher.remove_skip_command(topic, lsn, note["row"])

    def _note_published(self, batch: RowBatch) -> None:
        """Note published rows that repair what their topics lack."""
        for topic, _, records in batch.partitions():
            if (missing := self._missing.get(topic)) is None:
                continue
            keys = missing.keys
            for record in records:
                key = None if record["key"] is None else key_of(record)
                if record["value"] is None or not (key is None or key in keys):
                    continue
                lsn, op, partial = self.envelopes.read_place(record["value"])
                missing = missing.truncate(lsn) if op == "t" else missing.publish(lsn, key, partial=partial)
            self._set_missing(topic, missing)

    def _missing_of(self, topic: str) -> MissingRows:
        return self._missing.get(topic, NOTHING_MISSING)

    def _set_missing(self, topic: str, missing: MissingRows) -> None:
        if missing == self._missing_of(topic):
            return
        self._missing[topic] = missing
        if not missing.rows:
            del self._missing[topic]
        if topic in self._pins:
            self._unwritten.add(topic)

    def _skipped_rows(self, topic: str) -> tuple[SkippedRow, ...]:
        rows = sorted(self._missing_of(topic).rows, key=lambda row: (row.lsn, row.key or b""))
        return tuple(SkippedRow(topic, *row) for row in rows)

    # --- rows

    def _note_changes(self, batch: RowBatch) -> None:
        for topic in batch.topics:
            watched = self._watched.get(topic)
            if watched is None or not (life := self._lives[topic]).keyless:
                continue
            if rows := batch.take_topic(topic):
                watched.delay(rows, self._spool)
                if not life.has_delayed:
                    self._apply(topic, topic_life.RowsDelayed())
        for topic, _, records in batch.partitions():
            if (watched := self._watched.get(topic)) is None:
                continue
            if moved := watched.note(records, self.envelopes):
                self._apply(topic, topic_life.KeysMoved(moved))
            if self._lives[topic].state == "paused":
                watched.forget(None)  # a barrier precedes the next snapshot

    def _produce_truncate(self, truncate: ReloadTruncate) -> None:
        if truncate.encoding is None:
            return  # the table is gone, as its load will find
        self._set_missing(truncate.topic, NOTHING_MISSING)
        batch = RowBatch()
        for mine, read in zip(batch.lists(truncate.topic, truncate.encoding.partitions), truncate.lists, strict=True):
            mine.extend(read)
        self._publisher.produce(batch)

    def _produce_read(self, topic: str, lists: Sequence[Iterable[Record]], dropped: Set[bytes]) -> int:
        """Publish the rows of a snapshot, except dropped keys; return their number.

        The rows are unpacked a few at a time, so that they stay in the processor's caches.
        """
        published, batch = 0, RowBatch()
        for partition, read in enumerate(lists):
            records = iter(read)
            while unpacked := list(islice(records, _UNPACKED_MAX)):
                kept = [r for r in unpacked if key_of(r) not in dropped] if dropped else unpacked
                batch.lists(topic, len(lists))[partition].extend(kept)
                if batch.records >= _UNPACKED_MAX:
                    published += batch.records
                    self._publisher.produce(batch)
                    batch = RowBatch()
        self._publisher.produce(batch)
        return published + batch.records
