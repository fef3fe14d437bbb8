"""The gate that all rows pass on their way to the main producer.

So it knows, in the order of the topics, what has been published of the tables in backfill. Only the
worker's thread runs it. Its memory (`chunk_rule.ChangeMemory`) is lost on kill -9 and with every
run; a barrier therefore precedes a session's first snapshot of a table. Durable state
(`load_progress.LoadProgress`) is in the table's pin, committed with the rows that it describes.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import fastavro

from twofold.backfill.chunk import KEY_HEAD, Chunk, ChunkResult, LoadCommand
from twofold.backfill.chunk_rule import ChangeMemory, DroppedRows, Snapshot
from twofold.backfill.load_progress import LoadProgress
from twofold.sink.batch import VOID, Record, RowBatch
from twofold.sink.publisher import Publisher
from twofold.spool import Spool, SpooledRows
from twofold.thread_owner import ThreadOwner
from twofold_avro import wire
from twofold_avro.records import Commit, Pin, Prepared, Progress, without_logical_types
from twofold_avro.transcode import PackedRecords

_UNPACKED_MAX = 2_000
"""With fewer, librdkafka's batches would be smaller; more would not stay in the processor's caches.
"""

PinState = Literal["ready", "waiting", "running", "paused"]


@dataclass(slots=True)
class _Load:
    """The gate's knowledge of a table in backfill."""

    state: PinState
    progress: LoadProgress
    keyless: bool
    memory: ChangeMemory = field(default_factory=ChangeMemory)
    held: SpooledRows | None = None
    """Of a table without a message key, the rows of all published transactions: they follow its
    one chunk."""
    lost: bool = False
    """An earlier session held such rows: only a snapshot still has them."""
    published_at: float | None = None
    """The time of this session's last chunk, by the monotonic clock."""

    def seconds(self, chunk: Chunk) -> float:
        """Return the time that this chunk added after the one before."""
        before, self.published_at = self.published_at or chunk.begun, time.monotonic()
        return self.published_at - before


class Published(NamedTuple):
    """A Kafka transaction that has committed: its commit record with its ranges, and the pins that
    it wrote.
    """

    commit: Commit | None
    pins: Mapping[str, Pin]


class Envelopes(Protocol):
    """Reads the fields of rows that the gate needs."""

    def read(self, value: bytes) -> tuple[int, str, bool]:
        """Return the row's transaction, its op, and whether an unchanged value was left out."""
        ...


class Gate:
    """The gate of one run."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        pins: Mapping[str, Pin],
        envelopes: Envelopes,
        spool: Spool,
    ) -> None:
        self._publisher = publisher
        self._pins = dict(pins)
        self._in_backfill: Mapping[str, bool] = {}
        """The topics of tables in backfill, and whether each lacks a message key.

        Each job brings it along; a table is in it before its first row.
        """
        self._loads: dict[str, _Load] = {}
        self._unwritten: set[str] = set()
        self._envelopes = envelopes
        self._spool = spool
        self._owner = ThreadOwner("the gate")

    def produce(self, batch: RowBatch, in_backfill: Mapping[str, bool]) -> None:
        """Publish rows of committed transactions."""
        assert self._owner.check_first()
        self._in_backfill = in_backfill
        batch.take_topic(VOID)
        if self._in_backfill:
            self._note_changes(batch)
        self._publisher.produce(batch)

    def _pins_to_write(self, pins: Mapping[str, Pin]) -> dict[str, Pin]:
        """Return the pins that a commit writes, completed with the gate's knowledge."""
        assert self._owner.check_first()
        self._pins |= pins
        complete = {topic: self._complete_pin(topic, self._pins[topic]) for topic in self._unwritten | pins.keys()}
        self._pins |= complete
        self._unwritten.clear()
        return complete

    def _topics_in_backfill(self) -> tuple[str, ...]:
        """Return the topics that a commit record must list as being in backfill now."""
        return tuple(sorted(topic for topic in self._in_backfill if self._load(topic).state != "ready"))

    def commit(
        self,
        commit: Commit | None,
        progress: Progress,
        in_backfill: Mapping[str, bool],
        *,
        ledger: Mapping[str, Prepared | None] | None = None,
        pins: Mapping[str, Pin],
        answered: Iterable[bytes] = (),
    ) -> Published:
        """Commit the main producer's transaction; the pins hold each backfill's progress."""
        self._in_backfill = in_backfill
        if commit is not None:
            commit = replace(commit, backfilling=self._topics_in_backfill())
        written = self._pins_to_write(pins)
        done = self._publisher.commit_main(commit, progress, ledger=ledger, pins=written, answered=answered)
        return Published(done, written)

    def commit_prepared(
        self,
        slot: int,
        commit: Commit,
        progress: Progress,
        in_backfill: Mapping[str, bool],
        *,
        ledger: Mapping[str, Prepared],
        pins: Mapping[str, Pin],
    ) -> Published:
        """Commit the transaction of a producer of the pool.

        It has no rows of tables in backfill, because such prepared transactions are parked.
        """
        self._in_backfill = in_backfill
        commit = replace(commit, backfilling=self._topics_in_backfill())
        written = self._pins_to_write(pins)
        return Published(self._publisher.commit_prepared(slot, commit, progress, ledger=ledger, pins=written), written)

    def publish(
        self,
        due: Chunk | LoadCommand,
        commit: Commit,
        progress: Progress,
        pins: Mapping[str, Pin],
        in_backfill: Mapping[str, bool],
    ) -> Published:
        """Publish a chunk with its progress, or carry a command out, in a Kafka transaction of its
        own.
        """
        self._in_backfill = in_backfill
        load = self._load(due.topic)
        match due:
            case LoadCommand():
                self._carry_out(due, load)
            case Chunk(empties=True):
                self._empty(due, load)
            case _:
                self._publish_rows(due, load)
        self._unwritten.add(due.topic)
        published = self.commit(commit, progress, in_backfill, pins=pins, answered=due.answers)
        if isinstance(due, Chunk):
            due.drop()
        due.answer.set_result(ChunkResult(load.progress, load.state))
        return published

    def _carry_out(self, command: LoadCommand, load: _Load) -> None:
        """Carry out a person's command.

        The earlier memory no longer counts, because a barrier precedes the next snapshot.
        """
        load.memory, load.published_at = ChangeMemory(), None
        if command.reload:
            load.progress = LoadProgress(reload=True, held=load.progress.held)
        elif load.state == "ready" and command.name in {"pause", "resume"}:
            return  # the load had ended before the command came
        match command.name:
            case "pause":
                load.state = "paused"
            case "resume":
                load.state = "running"
            case "cancel" if not load.lost:
                load.state = "ready"
                self._release(load, None)

    def _empty(self, chunk: Chunk, load: _Load) -> None:
        """Begin a reload with its truncate. A barrier follows, so memory starts over."""
        load.memory, load.published_at = ChangeMemory(), None
        load.state, load.progress = "running", LoadProgress(held=load.held is not None)
        load.lost = False  # rows ahead of the truncate count no more
        if chunk.encoding is not None:
            batch = RowBatch()
            for mine, read in zip(batch.lists(chunk.topic, chunk.encoding.partitions), chunk.lists, strict=True):
                mine.extend(read)
            self._publisher.produce(batch)

    def _publish_rows(self, chunk: Chunk, load: _Load) -> None:
        drop = load.memory.judge(chunk.snapshot)
        load.memory.forget(chunk.snapshot)
        rows = 0
        if chunk.whole is not None:
            rows = self._publish_whole(chunk.topic, chunk.whole, chunk.snapshot, load)
        elif chunk.encoding is None:
            self._release(load, None)  # the table no longer exists: no snapshot has any held row
        elif not drop.everything:
            rows = self._publish_read(chunk.topic, chunk.lists, drop.keys)
        load.progress = _next_progress(load.progress, chunk, drop).counted(rows, chunk.size, load.seconds(chunk))
        load.state = "ready" if load.progress.complete else "running"

    def _publish_read(self, topic: str, lists: Sequence[Iterable[Record]], dropped: Set[bytes]) -> int:
        """Publish the rows of a snapshot, except dropped keys; return their number.

        They are unpacked a few at a time: those are then in the processor's caches.
        """
        published, batch = 0, RowBatch()
        for partition, read in enumerate(lists):
            records = iter(read)
            while unpacked := list(islice(records, _UNPACKED_MAX)):
                kept = [r for r in unpacked if _key(r) not in dropped] if dropped else unpacked
                batch.lists(topic, len(lists))[partition].extend(kept)
                if batch.records >= _UNPACKED_MAX:
                    published += batch.records
                    self._publisher.produce(batch)
                    batch = RowBatch()
        self._publisher.produce(batch)
        return published + batch.records

    def _publish_whole(self, topic: str, whole: SpooledRows, snapshot: Snapshot, load: _Load) -> int:
        """Publish all rows of the snapshot, then the changes that it did not see."""
        published = sum(self._publish_read(topic, [PackedRecords(piece)], frozenset()) for piece in whole.chunks())
        self._release(load, snapshot)
        return published

    def _release(self, load: _Load, snapshot: Snapshot | None) -> None:
        """Publish the held rows that the snapshot did not see; all of them without a snapshot."""
        if load.held is None:
            return
        for piece in load.held.chunks():
            rows = RowBatch()
            for topic, partition, records in RowBatch.from_bytes(piece).partitions():
                if partition:
                    continue  # a truncate, which is in the first partition too
                kept = rows.lists(topic, 1)[0]
                kept += [
                    r for r in records if snapshot is None or not snapshot.sees(self._envelopes.read(r["value"])[0])
                ]
            self._publisher.produce(rows)
        load.held.drop()
        load.held = None

    def forget(self, topic: str, snapshot: Snapshot, in_backfill: Mapping[str, bool]) -> None:
        """Forget changes that all later snapshots of this table's load see."""
        assert self._owner.check_first()
        self._in_backfill = in_backfill
        self._load(topic).memory.forget(snapshot)

    def _load(self, topic: str) -> _Load:
        load = self._loads.get(topic)
        if load is None:
            pin = self._pins.get(topic)
            state = pin.backfill if pin and pin.backfill != "ready" else "waiting"
            progress = LoadProgress.from_bytes(pin.bound if pin else None)
            keyless = self._in_backfill.get(topic, False)
            load = self._loads[topic] = _Load(state, progress, keyless=keyless, lost=progress.held)
        return load

    def _complete_pin(self, topic: str, pin: Pin) -> Pin:
        """Return the pin, completed with the gate's knowledge."""
        if topic not in self._in_backfill and topic not in self._loads:
            return pin
        load = self._load(topic)
        bound = None if load.state == "ready" else load.progress.to_bytes()
        return replace(pin, backfill=load.state, bound=bound)

    def _note_changes(self, batch: RowBatch) -> None:
        for topic in batch.topics:
            if topic not in self._in_backfill or (load := self._load(topic)).state == "ready":
                continue
            if load.keyless and (rows := batch.take_topic(topic)):
                load.held = load.held or self._spool.new()
                load.held.append(rows.to_bytes())
                if not load.progress.held:
                    load.progress = replace(load.progress, held=True)
                    self._unwritten.add(topic)
        for topic, _, records in batch.partitions():
            if topic in self._in_backfill and (load := self._load(topic)).state != "ready":
                self._note_changes_of(topic, load, records)
                if load.state == "paused":
                    load.memory = ChangeMemory()  # a barrier precedes the next snapshot

    def _note_changes_of(self, topic: str, load: _Load, records: Iterable[Record]) -> None:
        for record in records:
            if record["value"] is None:
                continue  # the tombstone behind a delete
            xid, op, partial = self._envelopes.read(record["value"])
            if op == "t":
                load.memory.truncated(xid)
                continue
            load.memory.changed(xid, _key(record), partial=partial)
            if partial and op == "c":
                # The row has changed its key. The missing value is under the old key, whose row may
                # never have been published.
                load.progress = replace(load.progress, again=load.progress.again | {_key(record)})
                self._unwritten.add(topic)


def _key(record: Record) -> bytes:
    key: bytes = record["key"]
    return key[KEY_HEAD:]


def _next_progress(progress: LoadProgress, chunk: Chunk, drop: DroppedRows) -> LoadProgress:
    read = (_key(record) for records in chunk.lists for record in records)
    again = progress.again - chunk.among | drop.unread(read, chunk.among)
    return replace(
        progress,
        after=chunk.last or progress.after,
        order=chunk.order or progress.order,
        again=again,
        scanned=progress.scanned or chunk.scanned,
    )


class EnvelopeReader:
    """A reader of the envelope's few fields that the gate needs; it decodes nothing else."""

    def __init__(self, schema_of: Callable[[int], str]) -> None:
        self._schemas = cache(lambda schema_id: _partial_schemas(json.loads(schema_of(schema_id))))

    def read(self, value: bytes) -> tuple[int, str, bool]:
        """Return the row's transaction, its op, and whether an unchanged value was left out."""
        schema_id, body = wire.unframe(value)
        envelope = fastavro.schemaless_reader(io.BytesIO(body), *self._schemas(schema_id))
        assert isinstance(envelope, dict)
        return envelope["source"]["txId"], envelope["op"], bool(envelope["unchanged"])


def _partial_schemas(envelope: Any) -> tuple[Any, Any]:
    """Return the writer's schema, and a reader's schema with only the needed fields."""
    whole = without_logical_types(envelope)
    fields = {field["name"]: field for field in whole["fields"]}
    source = fields["source"]["type"]
    partial_source = {**source, "fields": [field for field in source["fields"] if field["name"] == "txId"]}
    needed = [{"name": "source", "type": partial_source}, fields["op"], fields["unchanged"]]
    return fastavro.parse_schema(whole), fastavro.parse_schema({**whole, "fields": needed})
