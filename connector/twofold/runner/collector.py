"""From messages to transactions: gathers the session's messages into whole source transactions with
encoded rows, and makes the bridge's events.

Rows are never decoded here. The relation's oid is read, and the raw message goes through the
relation's plan into a `RowBatch`. Rows of plain transactions go into the group's batch. Rows of
prepared transactions wait in the spool under their identity; rows of transactions in progress
(`streamed`) wait there for their end. A transaction that is already in Kafka is skipped by its
Begin alone.

On kill -9 all of it is lost and sent again: nothing here was reported to PostgreSQL as safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from twofold import gids
from twofold.bridge.events import (
    CommitPreparedRead,
    Event,
    MessageRead,
    Passed,
    PlainRead,
    PlainUnfinished,
    PrepareRead,
    RollbackPreparedRead,
)
from twofold.errors import RunEnded
from twofold.runner.streamed import CHUNK_BYTES, Streams
from twofold.runner.table_version import CHANGED_SHAPE, TableVersion, TransactionInfo
from twofold.runner.tables import Tables
from twofold.runner.waiting_rows import BatchRows, CollectedEvent, PreparedRows, Rows
from twofold.sink.batch import Record, RowBatch
from twofold.source import messages as m
from twofold.source.decoder import decode, row_relation
from twofold.source.session import Keepalive, Received
from twofold.spool import Spool
from twofold_avro.transcode import TransactionHeader
from twofold_common.positions import NO_LSN, Lsn, format_lsn

_ROWS = frozenset(b"IUD")
_GROUP_BYTES = 1 << 20
"""The size of a piece that goes to the group: each is one job of the worker."""
_TRUNCATE_BYTES = 512
"""The approximate size of one record."""


@dataclass(slots=True)
class _Current:
    """The transaction that is being read."""

    facts: TransactionInfo
    header: TransactionHeader
    batch: RowBatch
    skipped: bool = False
    waiting: BatchRows | None = None
    bytes_max: int = _GROUP_BYTES
    """A larger batch is handed over at once."""
    tables: dict[TableVersion, None] = field(default_factory=dict)
    has_messages: bool = False
    rows: int = 0
    handed_over: bool = False
    """Some of its rows have gone to the group."""


class Collector:
    """Collects for one run; used by the thread that reads."""

    def __init__(
        self,
        *,
        tables: Tables,
        spool: Spool,
        skips: Callable[[Lsn], bool],
        has: Callable[[Lsn], bool],
        parks: Callable[[str], bool],
        upto: Lsn | None = None,
    ) -> None:
        """`upto`: collecting ends before this commit, plain or prepared."""
        self._tables = tables
        self._spool = spool
        self._skips = skips
        self._has = has
        self._parks = parks
        self._upto = upto
        self.at = NO_LSN
        """The commit that is being read, if it is known."""
        self.reached = False
        """The next message is `upto`'s: nothing more is collected."""
        self._batch = RowBatch()
        self._run_transactions = 0
        self._run_rows = 0
        self._run_end = NO_LSN
        self._run_at_us = 0
        self._current: _Current | None = None
        self._streams = Streams(tables, spool)
        self._passed = NO_LSN

    def collect(self, received: Received, ts_ms: int) -> Iterator[CollectedEvent]:
        """Yield every event that these messages complete, in order.

        The next call continues an unfinished transaction.
        """
        current, block = self._current, self._streams.block
        at, end = 0, len(received)
        while at < end:
            item = received[at]
            if isinstance(item, Keepalive):
                self._passed = max(self._passed, item.wal_end)
                at += 1
                continue
            wal_start, payload = item
            if payload[0] not in _ROWS:
                message = decode(payload, in_stream=block is not None)
                if self._is_beyond(message):
                    yield from self._hand_over()
                    return
                yield from self._other(message, wal_start, ts_ms)
                current, block = self._current, self._streams.block
                at += 1
                if current is not None and current.batch.bytes > current.bytes_max:
                    yield from self._chunk(current)
            elif block is not None:
                at = block.rows(received, at, ts_ms)
            elif current is None:
                raise RunEnded("PostgreSQL sent a row outside of a transaction")
            elif current.skipped:
                at += 1
            else:
                at = self._rows(current, received, at, ts_ms)
                if current.batch.bytes > current.bytes_max:
                    yield from self._chunk(current)
        if current is None:
            yield from self._hand_over()
            if self._passed:
                yield CollectedEvent(Passed(self._passed))
                self._passed = NO_LSN

    def _is_beyond(self, message: m.Message) -> bool:
        if isinstance(message, m.Begin | m.CommitPrepared | m.StreamCommit):
            self.at = message.commit_lsn
            self.reached = self.at == self._upto
        return self.reached

    @property
    def gathered(self) -> bool:
        """Whether there are whole transactions without an event yet."""
        return self._run_transactions > 0

    @property
    def half_prepared(self) -> bool:
        """Whether a prepared transaction has begun and its PREPARE is not read.

        The schema ids in its rows are known only if no table is registered meanwhile.
        """
        return self._current is not None and self._current.waiting is not None

    def _rows(self, current: _Current, received: Received, at: int, ts_ms: int) -> int:
        """Encode this row and the following rows of the same table; return the index of the next
        message.
        """
        item = received[at]
        assert not isinstance(item, Keepalive), "a row"
        table = self._tables.of_relation(
            row_relation(item[1], in_stream=False), provisional=current.waiting is not None
        )
        lists = _lists(current, table)
        batch = current.batch
        room = current.bytes_max - batch.bytes
        behind, taken = table.plan.append_run(received, at, 1, current.header, ts_ms, lists, room)
        current.rows += behind - at
        batch.bytes += taken
        return behind

    def _chunk(self, current: _Current) -> Iterator[CollectedEvent]:
        """Hand over a large batch before its transaction has ended."""
        if current.waiting is None:
            yield from self._hand_over()
        else:
            current.waiting.append(current.batch)
            current.batch = RowBatch()

    def _hand_over(self) -> Iterator[CollectedEvent]:
        """Yield the group's rows with their event: a run of whole transactions, and the unfinished
        one behind it.

        One event names both. With two, the group could close between them with half a transaction
        in it.
        """
        current = self._current
        unfinished = current is not None and current.waiting is None and current.rows > 0
        if self._run_transactions:
            read = PlainRead(self._run_transactions, self._run_rows, self._run_end, unfinished)
            yield CollectedEvent(read, self._batch, at_us=self._run_at_us)
            self._run_transactions = self._run_rows = 0
        elif unfinished:
            yield CollectedEvent(PlainUnfinished(), self._batch)
        else:
            return
        self._batch = RowBatch()
        if current is not None and current.waiting is None:
            current.batch = self._batch
            current.handed_over = unfinished

    def _other(self, message: m.Message, wal_start: int, ts_ms: int) -> Iterable[CollectedEvent]:
        match message:
            case m.Begin():
                transaction_id = f"{message.xid}:{format_lsn(message.commit_lsn)}"
                facts = TransactionInfo(message.xid, message.commit_ts_us, transaction_id, None)
                self._current = _Current(facts, facts.header(), self._batch, skipped=self._skips(message.commit_lsn))
            case m.Commit():
                return self._commit(message)
            case m.BeginPrepare():
                self._begin_prepare(message)
            case m.Prepare() | m.CommitPrepared() | m.RollbackPrepared() | m.StreamCommit() | m.StreamPrepare():
                return (*self._hand_over(), *self._end(message))
            case _ if self._streams.handle(message, wal_start, ts_ms):
                pass
            case _:
                return self._within(message, wal_start, ts_ms)
        return ()

    def _end(
        self, message: m.Prepare | m.CommitPrepared | m.RollbackPrepared | m.StreamCommit | m.StreamPrepare
    ) -> Iterable[CollectedEvent]:
        """Handle a message that ends a transaction and is an event of its own."""
        match message:
            case m.Prepare():
                return (self._prepare(message),)
            case m.CommitPrepared():
                event: Event = CommitPreparedRead(message.identity, message.commit_lsn, message.end_lsn)
                return (CollectedEvent(event, at_us=message.commit_ts_us),)
            case m.RollbackPrepared():
                event = RollbackPreparedRead(message.identity, message.end_lsn)
                return (CollectedEvent(event, at_us=message.rollback_ts_us),)
            case m.StreamCommit():
                return self._stream_commit(message)
            case m.StreamPrepare():
                return (self._stream_prepare(message),)

    def _within(self, message: m.Message, wal_start: int, ts_ms: int) -> Iterator[CollectedEvent]:
        """Handle a message that neither begins nor ends a transaction."""
        match message:
            case m.Relation():
                if self.gathered and self._current is not None and not self._current.rows:
                    yield from self._hand_over()  # a new shape may have to wait for the registry
                self._tables.relation(message)
            case m.Truncate():
                self._truncate(message, wal_start, ts_ms)
            case m.LogicalMessage():
                yield from self._message(message, wal_start, ts_ms)
            case m.Type():
                self._tables.type(message)
            case m.Origin():
                pass  # which node a change was first made on is not part of the envelope
            case _:
                raise RunEnded(f"PostgreSQL sent {type(message).__name__} out of place")

    def _commit(self, message: m.Commit) -> Iterator[CollectedEvent]:
        """End a plain transaction.

        If it was handed over in part, the rest goes now and alone: behind it the group may close.
        """
        current = self._transaction(message)
        self._current = None
        if current.skipped:
            self._passed = max(self._passed, message.end_lsn)
            return
        self._run_transactions += 1
        self._run_rows += current.rows
        self._run_end = message.end_lsn
        self._run_at_us = message.commit_ts_us
        if current.handed_over:
            yield from self._hand_over()

    def _begin_prepare(self, message: m.BeginPrepare) -> None:
        identity = message.identity
        facts = TransactionInfo(
            identity.xid, message.prepare_ts_us, identity.downstream_id(message.prepare_lsn), identity.gid
        )
        waiting = BatchRows(self._spool.new())
        self._current = _Current(facts, facts.header(), RowBatch(), waiting=waiting, bytes_max=CHUNK_BYTES)

    def _prepare(self, message: m.Prepare) -> CollectedEvent:
        current = self._transaction(message)
        waiting = current.waiting
        if waiting is None:
            raise RunEnded("PostgreSQL ended a transaction with a prepare that began without one")
        self._current = None
        waiting.append(current.batch)
        waiting.provisional = tuple(table for table in current.tables if not table.committed)
        return self._prepared(
            message,
            rows=waiting,
            changes=current.rows,
            tables=current.tables,
            has_messages=current.has_messages,
        )

    def _prepared(
        self,
        message: m.Prepare | m.StreamPrepare,
        *,
        rows: Rows,
        changes: int,
        tables: dict[TableVersion, None],
        has_messages: bool,
    ) -> CollectedEvent:
        identity = message.identity
        topics = dict.fromkeys(table.topic for table in tables if not table.void)
        if has_messages:
            topics[self._tables.messages.topic] = None
        prepared = PreparedRows(
            identity,
            message.prepare_lsn,
            message.prepare_ts_us,
            rows,
            tuple(topics),
            gids.parse(identity.gid),
        )
        by_rule = f"a rule of prepared.rules parks gid {identity.gid}" if self._parks(identity.gid) else None
        by_shape = CHANGED_SHAPE if rows.provisional else None
        park_reason = next(filter(None, [by_rule, by_shape, *(table.park_reason for table in tables)]), None)
        event = PrepareRead(identity, message.prepare_lsn, message.end_lsn, changes, park_reason)
        return CollectedEvent(event, at_us=message.prepare_ts_us, prepared=prepared)

    def _stream_commit(self, message: m.StreamCommit) -> Iterator[CollectedEvent]:
        transaction_id = f"{message.xid}:{format_lsn(message.commit_lsn)}"
        streamed = self._streams.committed(message.xid)
        if self._skips(message.commit_lsn):
            streamed.drop()
            self._passed = max(self._passed, message.end_lsn)
            return
        rows = streamed.changes
        if rows:
            streamed.end(TransactionInfo(message.xid, message.commit_ts_us, transaction_id, None))
            yield CollectedEvent(PlainRead(1, rows, message.end_lsn), waited=streamed, at_us=message.commit_ts_us)
        else:
            streamed.drop()
            yield CollectedEvent(PlainRead(0, 0, message.end_lsn), at_us=message.commit_ts_us)

    def _stream_prepare(self, message: m.StreamPrepare) -> CollectedEvent:
        identity = message.identity
        transaction_id = identity.downstream_id(message.prepare_lsn)
        streamed = self._streams.ended(identity.xid)
        streamed.end(TransactionInfo(identity.xid, message.prepare_ts_us, transaction_id, identity.gid))
        return self._prepared(
            message,
            rows=streamed,
            changes=streamed.changes,
            tables=streamed.tables,
            has_messages=streamed.has_messages,
        )

    def _truncate(self, message: m.Truncate, wal_start: int, ts_ms: int) -> None:
        current = self._transaction(message)
        if current.skipped:
            return
        for oid in message.relations:
            table = self._tables.of_relation(oid, provisional=current.waiting is not None)
            lists = _lists(current, table)
            current.batch.bytes += _TRUNCATE_BYTES * table.plan.truncate(wal_start, current.header, ts_ms, lists)
            current.rows += 1

    def _message(self, message: m.LogicalMessage, wal_start: int, ts_ms: int) -> Iterator[CollectedEvent]:
        current = self._current
        if message.transactional:
            current = self._transaction(message)
            if not current.skipped:
                self._tables.messages.append(message, wal_start, current.facts, current.header, ts_ms, current.batch)
                current.has_messages = True
                current.rows += 1
            return
        if self._has(message.lsn):
            self._passed = max(self._passed, message.lsn)
            return
        yield from self._hand_over()
        batch = RowBatch()
        facts = TransactionInfo(None, ts_ms * 1000, None, None)
        self._tables.messages.append(message, wal_start, facts, None, ts_ms, batch)
        yield CollectedEvent(MessageRead(message.lsn), batch, at_us=ts_ms * 1000)

    def _transaction(self, message: m.Message) -> _Current:
        if self._current is None:
            raise RunEnded(f"PostgreSQL sent {type(message).__name__} outside of a transaction")
        return self._current


def _lists(current: _Current, table: TableVersion) -> list[list[Record]]:
    """Return the lists that the table's records go to.

    A prepared transaction may have changed whether the table has a key, and with it the partitions.
    Its commit is then refused, and its rollback forgets it.
    """
    current.tables[table] = None
    if current.waiting is not None and not current.batch.fits(table.topic, table.partitions):
        current.waiting.append(current.batch)
        current.batch = RowBatch()
    return current.batch.lists(table.topic, table.partitions)
