"""The gate: all rows pass it on their way to the main producer, and so it knows what has been published of the tables in backfill, in the order of the topics. It runs on the worker's thread alone.

What it knows (`plan.Memory`) is lost on kill -9 and with every run; a session's first snapshot of a table therefore comes behind a barrier. What must not be lost (`place.Place`) is in the table's pin,
committed with the rows that it speaks of.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import fastavro

from twofold.backfill.chunk import KEY_HEAD, Chunk, ChunkResult
from twofold.backfill.chunk_rule import ChangeMemory, DroppedRows, Snapshot
from twofold.backfill.load_progress import LoadProgress
from twofold.sink.batch import VOID, Record, RowBatch
from twofold.sink.publisher import Publisher
from twofold.spool import Spool, SpooledRows
from twofold_avro import wire
from twofold_avro.records import Commit, Pin, Prepared, Progress, without_logical_types

PinState = Literal["ready", "waiting", "running", "paused"]


@dataclass(slots=True)
class _Load:
    """A table in backfill, as the gate knows it."""

    state: PinState
    place: LoadProgress
    keyless: bool
    memory: ChangeMemory = field(default_factory=ChangeMemory)
    held: SpooledRows | None = None
    """Of a table without a message key the rows of all transactions that were published: they come behind its one chunk."""
    published_at: float | None = None
    """The last chunk of this session, by the monotonic clock."""

    def seconds(self, chunk: Chunk) -> float:
        """What this chunk took beside the one before."""
        before, self.published_at = self.published_at or chunk.begun, time.monotonic()
        return self.published_at - before


class Published(NamedTuple):
    """A Kafka transaction that has committed: its commit record with its ranges, and the pins that it wrote."""

    commit: Commit | None
    pins: Mapping[str, Pin]


class Gate:
    """One a run."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        pins: Mapping[str, Pin],
        in_backfill: Mapping[str, bool],
        schema_of: Callable[[int], str],
        spool: Spool,
    ) -> None:
        """`in_backfill`: the topics of tables that are, and whether the table is without a message key; the thread that runs the turn adds one before its first row comes."""
        self._publisher = publisher
        self._pins = dict(pins)
        self._in_backfill = in_backfill
        self._loads: dict[str, _Load] = {}
        self._unwritten: set[str] = set()
        self._look = _Look(schema_of)
        self._spool = spool

    def produce(self, batch: RowBatch) -> None:
        """Rows of committed transactions."""
        batch.take(VOID)
        if self._in_backfill:
            self._note(batch)
        self._publisher.produce(batch)

    def _written(self, pins: Mapping[str, Pin]) -> dict[str, Pin]:
        """The pins that a commit carries, with what the gate knows of each."""
        self._pins |= pins
        written = {topic: self._pinned(topic, self._pins[topic]) for topic in self._unwritten | pins.keys()}
        self._pins |= written
        self._unwritten.clear()
        return written

    def _backfilling(self) -> tuple[str, ...]:
        """The topics that a commit record of this moment must name."""
        return tuple(sorted(topic for topic in tuple(self._in_backfill) if self._load(topic).state != "ready"))

    def commit(
        self,
        commit: Commit | None,
        progress: Progress,
        *,
        ledger: Mapping[str, Prepared | None] | None = None,
        pins: Mapping[str, Pin],
        answered: Iterable[str] = (),
    ) -> Published:
        """Commit what the main producer holds; the pins say how far each backfill is."""
        if commit is not None:
            commit = replace(commit, backfilling=self._backfilling())
        written = self._written(pins)
        done = self._publisher.commit_main(commit, progress, ledger=ledger, pins=written, answered=answered)
        return Published(done, written)

    def commit_prepared(
        self, slot: int, commit: Commit, progress: Progress, *, ledger: Mapping[str, Prepared], pins: Mapping[str, Pin]
    ) -> Published:
        """Commit what a producer of the pool holds: nothing of tables in backfill, since such prepared transactions are parked."""
        commit = replace(commit, backfilling=self._backfilling())
        written = self._written(pins)
        return Published(self._publisher.commit_prepared(slot, commit, progress, ledger=ledger, pins=written), written)

    def publish(self, chunk: Chunk, commit: Commit, progress: Progress, pins: Mapping[str, Pin]) -> Published:
        """What is to be said of a chunk, with its place, in a Kafka transaction of its own."""
        load = self._load(chunk.topic)
        if chunk.wish is not None:
            self._carry_out(chunk, load)
        else:
            self._publish_rows(chunk, load)
        self._unwritten.add(chunk.topic)
        published = self.commit(commit, progress, pins=pins, answered=() if chunk.wish is None else (chunk.topic,))
        chunk.drop()
        chunk.answer.set_result(ChunkResult(load.place, load.state))
        return published

    def _carry_out(self, chunk: Chunk, load: _Load) -> None:
        """What a person wishes. What was remembered before counts no more: there is a barrier before the next snapshot."""
        load.memory, load.published_at = ChangeMemory(), None
        if chunk.reload:
            load.place = LoadProgress(reload=True)
        elif load.state == "ready" and chunk.wish in {"pause", "resume"}:
            return  # it was through before the wish came
        match chunk.wish:
            case "start":
                load.state, load.place = "running", LoadProgress()
                if chunk.copying is not None:
                    batch = RowBatch()
                    kept = batch.lists(chunk.topic, chunk.copying.partitions)
                    for mine, read in zip(kept, chunk.lists, strict=True):
                        mine.extend(read)
                    self._publisher.produce(batch)
            case "pause":
                load.state = "paused"
            case "resume":
                load.state = "running"
            case "cancel":
                load.state = "ready"
                self._release(load, None)

    def _publish_rows(self, chunk: Chunk, load: _Load) -> None:
        drop = load.memory.judge(chunk.snapshot)
        load.memory.forget(chunk.snapshot)
        batch = RowBatch()
        if chunk.copying is not None and chunk.whole is None and not drop.everything:
            kept = batch.lists(chunk.topic, chunk.copying.partitions)
            for mine, read in zip(kept, chunk.lists, strict=True):
                mine.extend([r for r in read if _key(r) not in drop.keys] if drop.keys else read)
        if chunk.whole is not None:
            self._publish_whole(chunk.whole, chunk.snapshot, load)
        elif chunk.copying is None:
            self._release(load, None)  # the table is gone: no snapshot has any of them
        rows = chunk.rows if chunk.whole is not None else batch.records
        load.place = _next(load.place, chunk, drop).counted(rows, chunk.size, load.seconds(chunk))
        load.state = "ready" if load.place.complete else "running"
        self._publisher.produce(batch)

    def _publish_whole(self, whole: SpooledRows, snapshot: Snapshot, load: _Load) -> None:
        """All rows that the snapshot showed, then what it did not see."""
        for piece in whole.chunks():
            self._publisher.produce(RowBatch.from_bytes(piece))
        self._release(load, snapshot)

    def _release(self, load: _Load, snapshot: Snapshot | None) -> None:
        """Rows that were held: those that the snapshot did not see, or all."""
        if load.held is None:
            return
        for piece in load.held.chunks():
            rows = RowBatch()
            for topic, partition, records in RowBatch.from_bytes(piece).partitions():
                if partition:
                    continue  # a truncate, which the first partition has as well
                kept = rows.lists(topic, 1)[0]
                kept += [r for r in records if snapshot is None or not snapshot.sees(self._look.at(r["value"])[0])]
            self._publisher.produce(rows)
        load.held.drop()
        load.held = None

    def forget(self, topic: str, snapshot: Snapshot) -> None:
        """All snapshots of this table's load that are still to come see as much as this one."""
        self._load(topic).memory.forget(snapshot)

    def _load(self, topic: str) -> _Load:
        load = self._loads.get(topic)
        if load is None:
            pin = self._pins.get(topic)
            state = pin.backfill if pin and pin.backfill != "ready" else "waiting"
            place = LoadProgress.from_bytes(pin.bound if pin else None)
            load = self._loads[topic] = _Load(state, place, keyless=self._in_backfill.get(topic, False))
        return load

    def _pinned(self, topic: str, pin: Pin) -> Pin:
        """The pin with what the gate knows of it."""
        if topic not in self._in_backfill and topic not in self._loads:
            return pin
        load = self._load(topic)
        bound = None if load.state == "ready" else load.place.to_bytes()
        return replace(pin, backfill=load.state, bound=bound)

    def _note(self, batch: RowBatch) -> None:
        for topic in batch.topics:
            if topic not in self._in_backfill or (load := self._load(topic)).state == "ready":
                continue
            if load.keyless and (rows := batch.take(topic)):
                load.held = load.held or self._spool.new()
                load.held.append(rows.to_bytes())
        for topic, _, records in batch.partitions():
            if topic in self._in_backfill and (load := self._load(topic)).state != "ready":
                self._note_table(topic, load, records)
                if load.state == "paused":
                    load.memory = ChangeMemory()  # there is a barrier before the next snapshot

    def _note_table(self, topic: str, load: _Load, records: Iterable[Record]) -> None:
        for record in records:
            if record["value"] is None:
                continue  # the tombstone behind a delete
            xid, op, partial = self._look.at(record["value"])
            if op == "t":
                load.memory.truncated(xid)
                continue
            load.memory.changed(xid, _key(record), partial=partial)
            if partial and op == "c":
                # A row that has changed its key: its value lies under the old one, which may be a row that was never published.
                load.place = replace(load.place, again=load.place.again | {_key(record)})
                self._unwritten.add(topic)


def _key(record: Record) -> bytes:
    key: bytes = record["key"]
    return key[KEY_HEAD:]


def _next(place: LoadProgress, chunk: Chunk, drop: DroppedRows) -> LoadProgress:
    read = (_key(record) for records in chunk.lists for record in records)
    again = place.again - chunk.among | drop.unread(read, chunk.among)
    return replace(
        place,
        after=chunk.last or place.after,
        order=chunk.order or place.order,
        again=again,
        scanned=place.scanned or chunk.scanned,
    )


class _Look:
    """What the gate must know of a row, read from its envelope; nothing else of it is decoded."""

    def __init__(self, schema_of: Callable[[int], str]) -> None:
        self._schemas = cache(lambda schema_id: _partly(json.loads(schema_of(schema_id))))

    def at(self, value: bytes) -> tuple[int, str, bool]:
        """Its transaction, its op, and whether an unchanged value was left out."""
        schema_id, body = wire.unframe(value)
        found = fastavro.schemaless_reader(io.BytesIO(body), *self._schemas(schema_id))
        assert isinstance(found, dict)
        return found["source"]["txId"], found["op"], bool(found["unchanged"])


def _partly(envelope: Any) -> tuple[Any, Any]:
    """The schema, and one that reads of it only what is looked at."""
    whole = without_logical_types(envelope)
    fields = {field["name"]: field for field in whole["fields"]}
    source = fields["source"]["type"]
    some_source = {**source, "fields": [field for field in source["fields"] if field["name"] == "txId"]}
    some = [{"name": "source", "type": some_source}, fields["op"], fields["unchanged"]]
    return fastavro.parse_schema(whole), fastavro.parse_schema({**whole, "fields": some})
