"""From messages to transactions: gathers what the session read into whole source transactions, rows encoded, and says to the bridge what happened.

Rows are never decoded here: the relation's oid is looked at, and the raw message goes through the relation's plan into a `RowBatch`. Rows of plain transactions go into the
group's batch; rows of prepared ones wait in the spool under their identity. What recovery says is done already is passed over by its Begin alone.

On kill -9 all of it is gone and comes again: nothing in here was reported to PostgreSQL as safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

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
from twofold.positions import NO_LSN, Lsn, PreparedIdentity, format_lsn
from twofold.runner.tables import Facts, Table, Tables
from twofold.sink.batch import RowBatch
from twofold.source import messages as m
from twofold.source.decoder import decode, row_relation
from twofold.source.session import Keepalive
from twofold.spool import Spool, Waiting
from twofold_avro.transcode import TransactionHeader

CHUNK_BYTES = 1 << 20

_ROWS = frozenset(b"IUD")


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """A prepared transaction as the runner keeps it until its end."""

    identity: PreparedIdentity
    prepare_lsn: Lsn
    prepared_at_us: int
    rows: Waiting
    topics: tuple[str, ...]
    provisional: tuple[Table, ...]
    """The tables whose shape was not committed when its rows were encoded."""

    @property
    def downstream_id(self) -> str:
        return self.identity.downstream_id(self.prepare_lsn)


@dataclass(frozen=True, slots=True)
class Collected:
    """One event for the bridge with what belongs to it outside of the bridge."""

    event: Event
    batch: RowBatch | None = None
    """Rows for the main producer, to be produced before what the event leads to."""
    at_us: int = 0
    """The source's time of the commit, prepare or rollback."""
    prepared: PreparedRows | None = None


@dataclass(slots=True)
class _Current:
    """The transaction that is being read."""

    facts: Facts
    header: TransactionHeader
    batch: RowBatch
    skipped: bool = False
    waiting: Waiting | None = None
    park_reason: str | None = None
    tables: dict[Table, None] = field(default_factory=dict)
    has_messages: bool = False
    rows: int = 0


class Collector:
    """One a run; used by the thread that reads."""

    def __init__(
        self,
        *,
        tables: Tables,
        spool: Spool,
        skips: Callable[[Lsn], bool],
        has: Callable[[Lsn], bool],
        parks: Callable[[str], bool],
    ) -> None:
        self._tables = tables
        self._spool = spool
        self._skips = skips
        self._has = has
        self._parks = parks
        self._batch = RowBatch()
        self._run_transactions = 0
        self._run_rows = 0
        self._run_end = NO_LSN
        self._run_at_us = 0
        self._current: _Current | None = None
        self._passed = NO_LSN

    def collect(self, received: Iterable[tuple[int, bytes] | Keepalive], ts_ms: int) -> Iterator[Collected]:
        """Everything that these messages complete, in order. A transaction that they leave unfinished goes on with the next call."""
        current = self._current
        for item in received:
            if isinstance(item, Keepalive):
                self._passed = max(self._passed, item.wal_end)
                continue
            wal_start, payload = item
            if payload[0] not in _ROWS:
                yield from self._other(decode(payload, in_stream=False), wal_start, ts_ms)
                current = self._current
            elif current is None:
                raise RunEnded("PostgreSQL sent a row outside of a transaction")
            elif not current.skipped:
                self._row(current, wal_start, payload, ts_ms)
                if current.batch.bytes > CHUNK_BYTES:
                    yield from self._chunk(current)
        if current is None:
            yield from self._hand_over()
            if self._passed:
                yield Collected(Passed(self._passed))
                self._passed = NO_LSN

    def _row(self, current: _Current, wal_start: int, payload: bytes, ts_ms: int) -> None:
        table = self._tables.of_relation(
            row_relation(payload, in_stream=False), provisional=current.waiting is not None
        )
        if table not in current.tables:
            current.tables[table] = None
        batch = current.batch
        table.plan.append(payload, 1, wal_start, current.header, ts_ms, batch.lists(table.topic, table.partitions))
        current.rows += 1
        batch.bytes += len(payload)

    def _chunk(self, current: _Current) -> Iterator[Collected]:
        """What has been gathered is large: it goes on its way, though the transaction that is being read has not ended."""
        if current.waiting is None:
            yield from self._hand_over()
        else:
            current.waiting.append(current.batch)
            current.batch = RowBatch()

    def _hand_over(self) -> Iterator[Collected]:
        """The rows gathered for the group, with the event that they belong to: the run of whole transactions, and the one behind it that is unfinished."""
        current = self._current
        unfinished = current is not None and current.waiting is None and current.rows > 0
        batch: RowBatch | None = self._batch
        if self._run_transactions:
            yield Collected(PlainRead(self._run_transactions, self._run_rows, self._run_end), batch, self._run_at_us)
            self._run_transactions = self._run_rows = 0
            batch = None
        if unfinished:
            yield Collected(PlainUnfinished(), batch)
        if unfinished or batch is None:
            self._batch = RowBatch()
            if current is not None and current.waiting is None:
                current.batch = self._batch

    def _other(self, message: m.Message, wal_start: int, ts_ms: int) -> Iterator[Collected]:
        match message:
            case m.Begin():
                transaction_id = f"{message.xid}:{format_lsn(message.commit_lsn)}"
                facts = Facts(message.xid, message.commit_ts_us, transaction_id, None)
                self._current = _Current(facts, facts.header(), self._batch, skipped=self._skips(message.commit_lsn))
            case m.Commit():
                self._commit(message)
            case m.BeginPrepare():
                self._begin_prepare(message)
            case m.Prepare():
                yield from self._hand_over()
                yield self._prepare(message)
            case m.CommitPrepared():
                yield from self._hand_over()
                event: Event = CommitPreparedRead(message.identity, message.commit_lsn, message.end_lsn)
                yield Collected(event, at_us=message.commit_ts_us)
            case m.RollbackPrepared():
                yield from self._hand_over()
                yield Collected(RollbackPreparedRead(message.identity, message.end_lsn), at_us=message.rollback_ts_us)
            case m.Relation():
                self._tables.relation(
                    message, provisional=self._current is not None and self._current.waiting is not None
                )
            case m.Truncate():
                self._truncate(message, wal_start, ts_ms)
            case m.LogicalMessage():
                yield from self._message(message, wal_start, ts_ms)
            case m.Type():
                self._tables.type(message)
            case m.Origin():
                pass  # which node a change was first made on is not part of the envelope
            case _:
                raise RunEnded(f"PostgreSQL sent {type(message).__name__}, and streaming was not asked for")

    def _commit(self, message: m.Commit) -> None:
        current = self._transaction(message)
        self._current = None
        if current.skipped:
            self._passed = max(self._passed, message.end_lsn)
            return
        self._run_transactions += 1
        self._run_rows += current.rows
        self._run_end = message.end_lsn
        self._run_at_us = message.commit_ts_us

    def _begin_prepare(self, message: m.BeginPrepare) -> None:
        identity = message.identity
        facts = Facts(identity.xid, message.prepare_ts_us, identity.downstream_id(message.prepare_lsn), identity.gid)
        park = f"a rule of prepared.rules parks gid {identity.gid}" if self._parks(identity.gid) else None
        self._current = _Current(facts, facts.header(), RowBatch(), waiting=self._spool.new(), park_reason=park)

    def _prepare(self, message: m.Prepare) -> Collected:
        current = self._transaction(message)
        waiting = current.waiting
        if waiting is None:
            raise RunEnded("PostgreSQL ended a transaction with a prepare that began without one")
        self._current = None
        waiting.append(current.batch)
        topics = dict.fromkeys(table.topic for table in current.tables)
        if current.has_messages:
            topics[self._tables.messages_topic] = None
        prepared = PreparedRows(
            message.identity,
            message.prepare_lsn,
            message.prepare_ts_us,
            waiting,
            tuple(topics),
            tuple(table for table in current.tables if not table.committed),
        )
        reasons = [current.park_reason, *(table.park_reason for table in current.tables)]
        park_reason = next(filter(None, reasons), None)
        event = PrepareRead(message.identity, message.prepare_lsn, message.end_lsn, current.rows, park_reason)
        return Collected(event, at_us=message.prepare_ts_us, prepared=prepared)

    def _truncate(self, message: m.Truncate, wal_start: int, ts_ms: int) -> None:
        current = self._transaction(message)
        if current.skipped:
            return
        for oid in message.relations:
            table = self._tables.of_relation(oid, provisional=current.waiting is not None)
            current.tables[table] = None
            table.plan.truncate(wal_start, current.header, ts_ms, current.batch.lists(table.topic, table.partitions))
            current.rows += 1

    def _message(self, message: m.LogicalMessage, wal_start: int, ts_ms: int) -> Iterator[Collected]:
        current = self._current
        if message.transactional:
            current = self._transaction(message)
            if not current.skipped:
                self._tables.message(message, wal_start, current.facts, current.header, ts_ms, current.batch)
                current.has_messages = True
                current.rows += 1
            return
        if self._has(message.lsn):
            self._passed = max(self._passed, message.lsn)
            return
        yield from self._hand_over()
        batch = RowBatch()
        self._tables.message(message, wal_start, Facts(None, ts_ms * 1000, None, None), None, ts_ms, batch)
        yield Collected(MessageRead(message.lsn), batch, ts_ms * 1000)

    def _transaction(self, message: m.Message) -> _Current:
        if self._current is None:
            raise RunEnded(f"PostgreSQL sent {type(message).__name__} outside of a transaction")
        return self._current
