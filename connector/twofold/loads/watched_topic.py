"""Keeps changed keys and delayed rows of a table in backfill for the merger, at the rate of rows.
Reads only the fields of an encoded row that the merger needs.

Mutable and fast, and the worker's alone. The content is lost with every run. A barrier makes up for
the changed keys, and the table's next snapshot has the delayed rows.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import fastavro

from twofold.kafka.row_batch import Record, RowBatch
from twofold.lives.chunk_rule import ChangeMemory, Snapshot
from twofold.loads.chunk import KEY_HEAD
from twofold.spool import Spool, SpooledRows
from twofold_avro import wire
from twofold_avro.records import without_logical_types


class WatchedTopic:
    """The topic of one table in backfill."""

    __slots__ = ("_delayed", "_published_at", "memory")

    def __init__(self) -> None:
        self.memory = ChangeMemory()
        self._delayed: SpooledRows | None = None
        """The published rows of a table without a message key; they follow its one chunk."""
        self._published_at: float | None = None
        """The time of the load's last chunk, by the monotonic clock."""

    def forget(self, seen_by: Snapshot | None) -> None:
        """Forget the changes that this snapshot sees.

        Without a snapshot forget all changes, because a barrier follows.
        """
        if seen_by is not None:
            self.memory.forget(seen_by)
        else:
            self.memory = ChangeMemory()
            self._published_at = None

    def note(self, records: Iterable[Record], envelopes: EnvelopeReader) -> frozenset[bytes]:
        """Remember the changes of published rows.

        Return the keys that rows have moved to without a value that only the table has: the table
        has it under the old key, whose row may never have been published.
        """
        moved: frozenset[bytes] = frozenset()
        memory = self.memory
        for record in records:
            if record["value"] is None:
                continue  # the tombstone behind a delete
            xid, op, partial = envelopes.read(record["value"])
            if op == "t":
                memory.truncated(xid)
                continue
            memory.changed(xid, key_of(record), partial=partial)
            if partial and op == "c":
                moved |= {key_of(record)}
        return moved

    def delay(self, rows: RowBatch, spool: Spool) -> None:
        """Delay the rows: their place is behind the chunk."""
        self._delayed = self._delayed or spool.new()
        self._delayed.append(rows.to_bytes())

    def release(self, unseen_by: Snapshot | None, envelopes: EnvelopeReader) -> Iterator[RowBatch]:
        """Yield the delayed rows that the snapshot did not see, and keep none.

        Without a snapshot yield all of them.
        """
        if self._delayed is None:
            return
        for piece in self._delayed.chunks():
            rows = RowBatch()
            for topic, partition, records in RowBatch.from_bytes(piece).partitions():
                if partition:
                    continue  # a truncate, which is in the first partition too
                kept = rows.lists(topic, 1)[0]
                kept += [r for r in records if unseen_by is None or not unseen_by.sees(envelopes.read(r["value"])[0])]
            yield rows
        self._delayed.drop()
        self._delayed = None

    def count_seconds(self, begun: float) -> float:
        """Return the time from the chunk before to this chunk."""
        before, self._published_at = self._published_at or begun, time.monotonic()
        return self._published_at - before


def key_of(record: Record) -> bytes:
    """Return the record's key without its schema's id."""
    key: bytes = record["key"]
    return key[KEY_HEAD:]


class EnvelopeReader:
    """Reads the fields of encoded rows that the merger needs, and nothing else."""

    def __init__(self, schema_of: Callable[[int], str]) -> None:
        self._schemas = cache(lambda schema_id: _partial_schemas(json.loads(schema_of(schema_id))))

    def read(self, value: bytes) -> tuple[int, str, bool]:
        """Return the row's transaction, its op, and whether an unchanged value was left out."""
        envelope = self._read(value)
        return envelope["source"]["txId"], envelope["op"], bool(envelope["unchanged"])

    def read_place(self, value: bytes) -> tuple[int, str, bool]:
        """Return the row's position, its op, and whether an unchanged value was left out."""
        envelope = self._read(value)
        return envelope["source"]["lsn"], envelope["op"], bool(envelope["unchanged"])

    def _read(self, value: bytes) -> dict[str, Any]:
        schema_id, body = wire.unframe(value)
        envelope = fastavro.schemaless_reader(io.BytesIO(body), *self._schemas(schema_id))
        assert isinstance(envelope, dict)
        return envelope


def _partial_schemas(envelope: Any) -> tuple[Any, Any]:
    """Return the writer's schema, and a reader's schema with only the needed fields."""
    whole = without_logical_types(envelope)
    fields = {field["name"]: field for field in whole["fields"]}
    source = fields["source"]["type"]
    partial_source = {**source, "fields": [field for field in source["fields"] if field["name"] in {"txId", "lsn"}]}
    needed = [{"name": "source", "type": partial_source}, fields["op"], fields["unchanged"]]
    return fastavro.parse_schema(whole), fastavro.parse_schema({**whole, "fields": needed})
