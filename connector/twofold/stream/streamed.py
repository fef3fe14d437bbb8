"""Transactions in progress: PostgreSQL streams their first part before they end.

Rows are encoded as they come, except for the values that the end of the transaction decides: its
time, its position, its gid, and each change's place among those that were not rolled back. The rows
wait in the spool, each with its subtransaction. A rollback to a savepoint removes its
subtransactions' rows. The end fills in the missing values and gives all rows as one transaction,
chunk by chunk.

A Relation message is valid for its transaction alone until that commits. Nothing is registered
before the end, so a shape of a savepoint that was rolled back is never registered.

On kill -9, and when the connection is lost, everything is sent again from the first row, because no
position behind the end was reported.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from functools import partial
from typing import Any

from twofold.descriptions.ddl_message import PREFIX
from twofold.errors import RunEnded
from twofold.kafka.row_batch import Record, RowBatch
from twofold.outbox.event_topics import size_of
from twofold.outbox.outbox import OutboxEvent, OutboxTable
from twofold.source import messages as m
from twofold.source.decoder import row_place
from twofold.source.session import Keepalive, Received
from twofold.spool import Spool
from twofold.stream import skipping
from twofold.stream.source_transaction import CHUNK_BYTES, SourceTransaction
from twofold.tables.table_version import DescribedVersion, TableVersion, TransactionInfo
from twofold.tables.tables import Tables
from twofold_avro.errors import MalformedRow
from twofold_avro.transcode import Packer, TransactionHeader
from twofold_common.positions import Lsn

REST_BYTES = 1 << 16
"""The most bytes that a transaction keeps outside the spool while others have their turn."""

_MESSAGE = -1
_EVENT = -2


class StreamedTransaction(SourceTransaction):
    """One transaction in progress, with its rows by subtransaction."""

    def __init__(self, xid: int, tables: Tables, packer: Packer, spool: Spool) -> None:
        super().__init__(TransactionInfo(xid, 0, None, None), RowBatch(), tables, spool)
        self.header = TransactionHeader.later()
        self._packer = packer
        self._runs: list[list[Any]] = []
        self._chunk: list[Record] = []
        self._chunk_bytes = 0
        self._numbers: dict[TableVersion, int] = {}
        self._made: dict[int, _Made] = {}
        self._gone: set[int] = set()
        self._run: tuple[int, int] | None = None
        self.relations: dict[int, DescribedVersion] = {}
        self._has_messages = False

    def relation(self, message: m.Relation) -> None:
        self.relations |= self.all_tables.descriptions(message, self.ddl)
        self._run = None

    def append_rows(self, received: Received, at: int, ts_ms: int) -> int:
        """Encode this row of a block, and the following rows of the same table and subtransaction.

        Return the index of the next message.
        """
        item = received[at]
        assert not isinstance(item, Keepalive), "a row"
        if item[0] <= self.all_tables.skips.last:
            self._require_unnamed(received[at:])
        subxid, oid = row_place(item[1])
        if self._run != (subxid, oid):
            table = self._table(oid)
            if table.outbox is not None:
                self._keep_event(subxid, table, table.outbox, item[1])
                return at + 1
            self._begin_run(subxid, oid, table)
            if not table.committed:
                self._note_unregistered(table, *item, 5)
        before, room = len(self._chunk), CHUNK_BYTES - self._chunk_bytes
        try:
            behind, taken = self._table_now.plan.append_run(
                received, at, 5, self.header, ts_ms, self._chunk_lists, room
            )
        except MalformedRow as error:
            raise skipping.refuse_malformed(error, self._table_now, received, at, 5) from error
        added = len(self._chunk) - before
        self._current[2] += added
        self._made_now.count(added, changes=behind - at)
        self._took(taken)
        return behind

    def _require_unnamed(self, received: Received) -> None:
        """Have the rows read again without streaming if a person's command may name one of them.

        The end of a row's transaction decides what the row's record is.
        """
        if any(not isinstance(each, Keepalive) and each[0] in self.all_tables.skips.positions for each in received):
            raise StreamUnclear("a row that a person has skipped was streamed; it is read again without streaming")

    def append_truncate(self, message: m.Truncate, wal_start: int, ts_ms: int) -> None:
        assert message.xid is not None
        for oid in message.relations:
            table = self._table(oid)
            if table.outbox is not None:
                self._made.setdefault(message.xid, _Made()).touch(table)
                continue
            self._begin_run(message.xid, oid, table)
            one: list[Record] = []
            table.plan.truncate(wal_start, self.header, ts_ms, [one] * table.partitions)
            self._chunk.append(one[0])
            self._current[2] += 1
            self._made_now.count(1 if table.keyless else table.partitions)
        self._run = None

    def append_message(self, message: m.LogicalMessage, wal_start: int, ts_ms: int) -> None:
        """Keep a message. PostgreSQL does not say which subtransaction made it."""
        assert message.xid is not None
        if message.prefix == PREFIX:
            if changed := self.all_tables.ddl.read(message.content):
                self.ddl[changed.oid] = changed.behind(self.ddl)
                self._has_messages = True
            return
        if not self.all_tables.messages.published:
            return
        self.event_topics[self.all_tables.messages.prepare(message)] = None
        self._run = None
        self._runs.append([message.xid, _MESSAGE, 0, message.lsn, wal_start, ts_ms, message.prefix, message.content])
        self._made.setdefault(message.xid, _Made()).count(1)
        self._has_messages = True
        self._took(len(message.content))

    def take_back(self, subxid: int) -> None:
        """Remove a rolled back subtransaction's rows; those within it have their own messages."""
        if self._has_messages:
            raise StreamUnclear(
                "a streamed transaction has logical messages and a savepoint that was rolled back: PostgreSQL does not say which messages belong to it; it is read again without"
                " streaming (source.streaming), which does"
            )
        self._gone.add(subxid)
        self._made.pop(subxid, None)
        self._run = None

    @property
    def has_rows_left(self) -> bool:
        return bool(self._made)

    def rest(self) -> None:
        """Spool the rows if they are many, because another transaction's rows follow."""
        if self._chunk_bytes > REST_BYTES:
            self.spill()

    def end(self, info: TransactionInfo, prepare: m.StreamPrepare | None = None) -> None:
        """Note the values that all rows share; rows that were rolled back do not count."""
        self.info, self.prepare = info, prepare
        self.rows = sum(made.changes for made in self._made.values())
        self.records = sum(made.records for made in self._made.values())
        self.tables = {table: None for made in self._made.values() for table in made.tables}
        self.complete()

    def spill(self) -> None:
        runs = list(self._packed())
        self._chunk.clear()  # a large value's record goes before the next copy
        self._runs, self._chunk_bytes, self._run = [], 0, None
        if runs:
            self._append_spooled(marshal.dumps(runs))

    def batches(self) -> Iterator[RowBatch]:
        header = self.info.header()
        # With `map` nobody has the chunk any more while its rows are handed over.
        yield from map(partial(self._batch, header), self._spooled_chunks())

    def _table(self, oid: int) -> TableVersion:
        described = self.relations.get(oid)
        return described.table if described else self.all_tables.of_relation(oid, provisional=True)

    def _keep_event(self, subxid: int, table: TableVersion, outbox: OutboxTable, payload: bytes) -> None:
        """Keep the event that an outbox's row is, if the row is an insert."""
        made = self._made.setdefault(subxid, _Made())
        made.touch(table)
        if (event := self.all_tables.events.row_event(outbox, payload, in_stream=True)) is None:
            return
        self.event_topics[event.topic] = None
        self._run = None
        self._runs.append([subxid, _EVENT, 0, *event])
        made.count(1)
        self._took(size_of(event))

    def _begin_run(self, subxid: int, oid: int, table: TableVersion) -> None:
        self._made_now = self._made.setdefault(subxid, _Made())
        self._made_now.touch(table)
        self._current = [subxid, self._numbers.setdefault(table, len(self._numbers)), 0]
        self._runs.append(self._current)
        self._chunk_lists = [self._chunk] * table.partitions
        self._table_now = table
        self._run = subxid, oid

    def _took(self, size: int) -> None:
        self.spooled_bytes += size
        self._chunk_bytes += size
        if self._chunk_bytes > CHUNK_BYTES:
            self.spill()

    def _packed(self) -> Iterator[tuple[object, ...]]:
        """Yield the rows of each subtransaction in the order of coming, with their records."""
        at = 0
        for subxid, number, count, *place in self._runs:
            behind = at + count
            yield subxid, number, self._packer.pack(self._chunk, at, behind), *place
            at = behind

    def _batch(self, header: TransactionHeader, chunk: bytes) -> RowBatch:
        runs: list[tuple[Any, ...]] = marshal.loads(chunk)  # noqa: S302  (written by this process into a file without a name)
        batch, tables = RowBatch(), list(self._numbers)
        for subxid, number, packed, *place in runs:
            if number == _MESSAGE:
                lsn, wal_start, ts_ms, prefix, content = place
                message = m.LogicalMessage(True, Lsn(lsn), prefix, content, subxid)
                self.all_tables.messages.append(message, wal_start, self.info, header, ts_ms, batch)
            elif number == _EVENT:
                if subxid not in self._gone:
                    self.all_tables.events.append(OutboxEvent(*place), batch)
            elif subxid not in self._gone and not (table := tables[number]).void:
                header.finish(packed, table.shape.oid, table.registered_ids, table.lists(batch))
        batch.bytes = len(chunk)
        return batch


class _Made:
    """Counts the rows of one subtransaction. There may be millions of these values."""

    __slots__ = ("changes", "records", "tables")

    def __init__(self) -> None:
        self.changes = 0
        self.records = 0
        self.tables: tuple[TableVersion, ...] = ()

    def touch(self, table: TableVersion) -> None:
        if table not in self.tables:
            self.tables += (table,)

    def count(self, records: int, changes: int = 1) -> None:
        self.changes += changes
        self.records += records


class Streams:
    """All transactions in progress, and the block that is being read."""

    def __init__(self, tables: Tables, spool: Spool) -> None:
        self._tables = tables
        self._spool = spool
        self._packer = Packer()
        self._streamed: dict[int, StreamedTransaction] = {}
        self.block: StreamedTransaction | None = None
        """The transaction whose rows come now."""

    def handle(self, message: m.Message, wal_start: int, ts_ms: int) -> bool:
        """Handle a message; return whether it belonged to a transaction in progress."""
        match message:
            case m.StreamStart(xid):
                if xid not in self._streamed:
                    self._streamed[xid] = StreamedTransaction(xid, self._tables, self._packer, self._spool)
                self.block = self._streamed[xid]
            case m.StreamStop() if self.block is not None:
                self.block.rest()
                self.block = None
            case m.StreamAbort(xid, subxid):
                self._abort(xid, subxid)
            case m.Relation() if self.block is not None:
                self.block.relation(message)
            case m.Truncate() if self.block is not None:
                self.block.append_truncate(message, wal_start, ts_ms)
            case m.LogicalMessage() if self.block is not None:
                self.block.append_message(message, wal_start, ts_ms)
            case _:
                return False
        return True

    def _abort(self, xid: int, subxid: int) -> None:
        """Roll back a savepoint, or the whole transaction."""
        if xid == subxid:
            self.ended(xid).drop()
        elif xid in self._streamed:
            self._streamed[xid].take_back(subxid)

    def has_rows(self, xid: int) -> bool:
        """Whether rows of the transaction were not rolled back, or messages that are published."""
        return xid in self._streamed and self._streamed[xid].has_rows_left

    def ended(self, xid: int) -> StreamedTransaction:
        """Remove a transaction that is no longer in progress."""
        streamed = self._streamed.pop(xid, None)
        if streamed is None:
            raise RunEnded(f"PostgreSQL ended transaction {xid} as a streamed one, and it was not")
        return streamed

    def committed(self, xid: int) -> StreamedTransaction:
        """Remove a committed transaction and adopt its relations, which are not sent again."""
        streamed = self.ended(xid)
        self._tables.adopt(streamed.relations)
        self._tables.ddl.note(streamed.ddl)
        return streamed


class StreamUnclear(RunEnded):
    """Streamed changes are ambiguous; unstreamed changes are not."""
