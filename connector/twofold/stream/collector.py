"""From messages to transactions: gathers the session's messages into whole source transactions with
encoded rows, and makes the bridge's events.

The collector never decodes a row. It reads the relation's oid, and the raw message goes through the
relation's plan into a `RowBatch`. Rows of plain transactions go into the main batch. Rows of
prepared transactions wait in the spool under their identity, unless `gathered_outcomes` keeps them.
Rows of transactions in progress (`streamed`) wait there for the end. A transaction that is already
in Kafka is recognised by its Begin, and its rows are passed.

On kill -9 everything here is lost and sent again: nothing of it was reported to PostgreSQL as safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from twofold.bridge.events import (
    CommitPreparedRead,
    MessageRead,
    Passed,
    PlainRead,
    PrepareRead,
    RollbackPreparedRead,
)
from twofold.descriptions.ddl_message import PREFIX
from twofold.errors import MalformedMessage
from twofold.kafka.row_batch import RowBatch
from twofold.source import messages as m
from twofold.source.decoder import decode
from twofold.source.session import Keepalive, Received
from twofold.spool import Spool
from twofold.stream.gathered_outcomes import GatheredOutcomes
from twofold.stream.source_transaction import CollectedEvent, SourceTransaction
from twofold.stream.stream_order import StreamOrder, missing_end
from twofold.stream.streamed import Streams
from twofold.tables.ddl_descriptions import NO_DDL
from twofold.tables.table_version import TransactionInfo
from twofold.tables.tables import Tables
from twofold_common import gids
from twofold_common.positions import NO_LSN, Lsn, PreparedIdentity, format_lsn

_ROWS = frozenset(b"IUD")
_AT_COMMITS = m.Begin, m.CommitPrepared, m.StreamCommit
"""The messages that tell the position of the commit that is being read."""
_LACKS_ROW = "it touches a table that lacks a skipped row"
_PIECE_BYTES = 1 << 20
"""The size of a piece that goes to the batch: each piece is one job of the worker."""


class Collector:
    """Collects for one run; used by the thread that reads."""

    def __init__(
        self,
        *,
        tables: Tables,
        spool: Spool,
        is_applied: Callable[[Lsn], bool],
        is_applied_upto: Callable[[Lsn], bool],
        knows: Callable[[PreparedIdentity], bool],
        parks: Callable[[str], bool],
        open_within_s: float,
        pool: int,
        parse_gid: gids.Parse = gids.parse,
        upto: Lsn | None = None,
        order: StreamOrder | None = None,
    ) -> None:
        """`is_applied`, `is_applied_upto`: whether Kafka has the outcome that starts, or ends, at a
        position.

        `knows`: whether the bridge or the ledger has the prepared transaction.

        `open_within_s` and `pool` are those of `GatheredOutcomes`.

        `upto`: collecting ends before this commit, plain or prepared, or before this prepare.
        """
        self._tables = tables
        self._spool = spool
        self._is_applied = is_applied
        self._is_applied_upto = is_applied_upto
        self._knows = knows
        self._parks = parks
        self._parse_gid = parse_gid
        self._upto = upto
        self._order = order or StreamOrder()
        self.at = NO_LSN
        """The position of the commit, or of the prepare, that is being read, if it is known."""
        self.reached = False
        """The next message is `upto`'s: nothing more is collected."""
        self._gathered = GatheredOutcomes(open_within_s=open_within_s, pool=pool)
        self._batch = RowBatch()
        """The rows of the gathered outcomes, and of the plain transaction that is being read."""
        self._current: SourceTransaction | None = None
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
                self._note_keepalive(item.wal_end)
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
                at = block.append_rows(received, at, ts_ms)
            elif current is None:
                raise MalformedMessage("PostgreSQL sent a row outside of a transaction", offset=0)
            elif current.is_applied:
                current.has_rows = True
                at += 1
            else:
                at = current.append_rows(received, at, ts_ms)
                if current.batch.bytes > current.bytes_max:
                    yield from self._chunk(current)
        yield from self._announce(ts_ms, ts_ms)
        if current is None and self._passed:
            yield CollectedEvent(Passed(self._passed))
            self._passed = NO_LSN

    def announce(self, ts_ms: int) -> Iterator[CollectedEvent]:
        """Yield the events of all whole transactions."""
        yield from self._announce(math.inf, ts_ms)

    def announce_drained(self, ts_ms: int, in_doubt: int) -> Iterator[CollectedEvent]:
        """Yield the events of all whole transactions, when the stream has been read to its end.

        No outcome of a prepared transaction waits to be read then. If more transactions are
        unannounced than can be opened beside the `in_doubt` announced ones, they stay unannounced:
        most outcomes come before an opened transaction would be of use.
        """
        yield from self._announce(ts_ms, ts_ms, drained_with=in_doubt)

    def wait_s(self, now_ms: float, in_doubt: int) -> float:
        """Return the time until a transaction is to be announced, if nothing is read meanwhile."""
        return math.inf if self._half_plain else self._gathered.wait_s(now_ms, in_doubt)

    def _note_keepalive(self, wal_end: Lsn) -> None:
        """Note how far the server has sent everything. A keepalive ends no transaction."""
        begun = self._current.begun if self._current is not None else None
        # A prepared transaction may be older than the position where the server sends it.
        if isinstance(begun, m.Begin) and wal_end > begun.commit_lsn:
            raise missing_end(begun, f"everything up to {format_lsn(wal_end)}")
        self._order.note_sent(wal_end)
        self._passed = max(self._passed, wal_end)

    def _is_beyond(self, message: m.Message) -> bool:
        if isinstance(message, _AT_COMMITS):
            self.at = message.commit_lsn
        elif isinstance(message, m.BeginPrepare):
            self.at = message.prepare_lsn
        self.reached |= self.at == self._upto
        return self.reached

    @property
    def gathered(self) -> bool:
        """Whether there are whole transactions without an event yet."""
        return self._gathered.has_outcomes

    @property
    def _half_plain(self) -> bool:
        """Whether a plain transaction has begun, without its commit."""
        return self._current is not None and not self._current.is_prepared

    @property
    def _open(self) -> bool:
        """Whether a transaction or a stream block has begun, without its end."""
        return self._current is not None or self._streams.block is not None

    @property
    def half_prepared(self) -> bool:
        """Whether a prepared transaction has begun, without its PREPARE.

        The schema ids in its rows are known only if no table is registered meanwhile.
        """
        return self._current is not None and self._current.is_prepared

    def _chunk(self, current: SourceTransaction) -> Iterator[CollectedEvent]:
        """Hand over a large batch before its transaction has ended."""
        if current.is_prepared:
            current.spill()
        else:
            yield from self._hand_over()

    def _hand_over(self) -> Iterator[CollectedEvent]:
        """Yield the batch's rows with their event: neighbouring outcomes, and the unfinished
        transaction behind them.

        Whatever event follows, the bridge then knows where the oldest unannounced prepare is.
        """
        current = self._current if self._current is not None and not self._current.is_prepared else None
        unfinished = current is not None and current.rows > 0
        yield from self._gathered.unannounced(lower=True)
        if collected := self._gathered.take_event(unfinished=unfinished):
            batch, self._batch = self._batch, RowBatch()
            yield collected._replace(batch=batch)
            if current is not None:
                current.batch = self._batch
                current.handed_over = unfinished
        yield from self._gathered.unannounced(lower=False)

    def _announce(self, until_ms: float, ts_ms: int, *, drained_with: int | None = None) -> Iterator[CollectedEvent]:
        """Hand over, and announce prepared transactions.

        In the middle of a plain transaction do nothing: its rows would be handed over too.
        """
        if self._half_plain:
            return
        yield from self._hand_over()
        for prepared in self._gathered.take_due(until_ms, drained_with=drained_with):
            prepared.complete()
            yield self._prepared(prepared, waited_ms=max(0, ts_ms - prepared.read_ms))
        yield from self._gathered.unannounced(lower=False)

    def _other(self, message: m.Message, wal_start: int, ts_ms: int) -> Iterable[CollectedEvent]:
        match message:
            case m.Commit():
                return self._commit(message, wal_start)
            case m.Begin() | m.BeginPrepare() if not self._open:
                self._current = self._begin(message)
            case m.Prepare() | m.CommitPrepared() | m.RollbackPrepared():
                return self._of_prepared(message, wal_start, ts_ms)
            case m.Begin() | m.BeginPrepare() | m.StreamStart() | m.StreamCommit() | m.StreamPrepare() if self._open:
                raise self._unended(message)
            case m.StreamCommit():
                self._order.check_outcome(message, wal_start, has_rows=self._streams.has_rows(message.xid))
                return (*self._hand_over(), *self._stream_commit(message))
            case m.StreamPrepare():
                self._order.check_prepare(message, None, wal_start)
                return (*self._hand_over(), self._stream_prepare(message))
            case _ if self._streams.handle(message, wal_start, ts_ms):
                pass
            case _:
                return self._within(message, wal_start, ts_ms)
        return ()

    def _begin(self, message: m.Begin | m.BeginPrepare) -> SourceTransaction:
        if isinstance(message, m.BeginPrepare):
            return SourceTransaction(self._info(message), RowBatch(), self._tables, self._spool, message)
        info, is_applied = _committed(message), self._is_applied(message.commit_lsn)
        return SourceTransaction(info, self._batch, self._tables, self._spool, message, _PIECE_BYTES, is_applied)

    def _of_prepared(
        self, message: m.Prepare | m.CommitPrepared | m.RollbackPrepared, wal_start: int, ts_ms: int
    ) -> Iterable[CollectedEvent]:
        """Handle a PREPARE or an outcome: gathered if possible, else by an event of its own."""
        gathered = self._gathered
        if isinstance(message, m.Prepare):
            prepared = self._end_prepared(message, wal_start)
            if prepared.ddl:
                self._tables.ddl.prepare(message.identity, prepared.ddl)
            if not self._may_keep(message, prepared):
                return self._announce_now(prepared)
            gathered.keep(prepared, ts_ms)
            return ()
        if self._open:
            raise self._unended(message)
        self._order.check_outcome(message, wal_start)
        self._tables.ddl.resolve(message.identity, committed=isinstance(message, m.CommitPrepared))
        if not gathered.keeps(message.identity):
            return self._outcome(message)
        if isinstance(message, m.RollbackPrepared):
            gathered.roll_back(message)
        elif (prepared := gathered.commit(message)).rows:
            self._batch.add(prepared.batch)
        return self._hand_over() if self._batch.bytes > _PIECE_BYTES else ()

    def _announce_now(self, prepared: SourceTransaction) -> Iterator[CollectedEvent]:
        yield from self._hand_over()
        prepared.complete()
        yield self._prepared(prepared)

    def _outcome(self, message: m.CommitPrepared | m.RollbackPrepared) -> Iterator[CollectedEvent]:
        """Yield the event of an announced transaction's outcome."""
        yield from self._hand_over()
        match message:
            case m.CommitPrepared(commit_lsn, end_lsn, at_us, identity):
                yield CollectedEvent(CommitPreparedRead(identity, commit_lsn, end_lsn), at_us=at_us)
            case m.RollbackPrepared(_, end_lsn, _, at_us, identity):
                yield CollectedEvent(RollbackPreparedRead(identity, end_lsn), at_us=at_us)

    def _within(self, message: m.Message, wal_start: int, ts_ms: int) -> Iterator[CollectedEvent]:
        """Handle a message that neither begins nor ends a transaction."""
        match message:
            case m.Relation():
                if self.gathered and self._current is not None and not self._current.rows:
                    yield from self._hand_over()  # a new shape may have to wait for the registry
                ddl = self._current.ddl if self._current is not None else NO_DDL
                self._tables.relation(message, committed=not self.half_prepared, ddl=ddl)
            case m.Truncate():
                self._transaction(message).append_truncate(message, wal_start, ts_ms)
            case m.LogicalMessage(prefix=prefix) if prefix == PREFIX or not self._tables.messages.published:
                self._note_ddl(message)
            case m.LogicalMessage():
                yield from self._message(message, wal_start, ts_ms)
            case m.Type():
                self._tables.type(message)
            case m.Origin():
                pass  # which node a change was first made on is not part of the envelope
            case _:
                raise MalformedMessage(f"PostgreSQL sent {type(message).__name__} out of place", offset=0)

    def _commit(self, message: m.Commit, wal_start: int) -> Iterable[CollectedEvent]:
        """End a plain transaction.

        If a part of the transaction was handed over, hand over the rest now, alone: behind it the
        batch may close.
        """
        current = self._transaction(message)
        begun = current.begun
        ends = message.commit_lsn, message.commit_ts_us
        if not isinstance(begun, m.Begin) or (begun.commit_lsn, begun.commit_ts_us) != ends:
            raise self._unended(message)
        self._order.check_outcome(message, wal_start, has_rows=current.has_rows)
        self._current = None
        if current.is_applied:
            self._passed = max(self._passed, message.end_lsn)
            return ()
        self._gathered.add_plain(message, current)
        return self._hand_over() if current.handed_over else ()

    def _end_prepared(self, message: m.Prepare, wal_start: int) -> SourceTransaction:
        current = self._transaction(message)
        if not isinstance(current.begun, m.BeginPrepare):
            raise self._unended(message)
        self._order.check_prepare(message, current.begun, wal_start)
        current.prepare = message
        self._current = None
        return current

    def _may_keep(self, message: m.Prepare, prepared: SourceTransaction) -> bool:
        """Whether the transaction may stay unannounced until its outcome.

        It may not if Kafka or the ledger may have the transaction, if a rule parks it, or if it has
        many rows.
        """
        return (
            prepared.spooled is None
            and not self._is_applied(message.prepare_lsn)
            and not self._knows(message.identity)
            and self._gathered.is_latest(message)
            and self._park_reason(message.identity.gid, prepared) is None
        )

    def _park_reason(self, gid: str, prepared: SourceTransaction) -> str | None:
        if self._parks(gid):
            return f"a rule of prepared.rules parks gid {gid}"
        if prepared.has_skipped:
            return _LACKS_ROW
        for table in prepared.tables:
            if table.topic in self._tables.skips.topics:
                return _LACKS_ROW
            if reason := table.park_reason:
                return reason
        return None

    def _prepared(self, prepared: SourceTransaction, waited_ms: int = 0) -> CollectedEvent:
        """Return the event that announces a prepared transaction, whose rows are in the spool."""
        prepare = prepared.prepare
        assert prepare is not None
        park_reason = self._park_reason(prepare.identity.gid, prepared)
        event = PrepareRead(prepare.identity, prepare.prepare_lsn, prepare.end_lsn, prepared.rows, park_reason)
        return CollectedEvent(event, transaction=prepared, at_us=prepare.prepare_ts_us, waited_ms=waited_ms)

    def _stream_commit(self, message: m.StreamCommit) -> Iterator[CollectedEvent]:
        streamed = self._streams.committed(message.xid)
        if self._is_applied(message.commit_lsn):
            streamed.drop()
            self._passed = max(self._passed, message.end_lsn)
            return
        streamed.end(_committed(message))
        read = PlainRead(int(streamed.rows > 0), streamed.rows, message.end_lsn)
        if not streamed.rows:
            streamed.drop()
        kept = streamed if streamed.rows else None
        yield CollectedEvent(
            read, transaction=kept, at_us=message.commit_ts_us, ddl=streamed.ddl, tables=streamed.tables
        )

    def _stream_prepare(self, message: m.StreamPrepare) -> CollectedEvent:
        streamed = self._streams.ended(message.identity.xid)
        streamed.end(self._info(message), message)
        self._tables.ddl.prepare(message.identity, streamed.ddl)
        return self._prepared(streamed)

    def _message(self, message: m.LogicalMessage, wal_start: int, ts_ms: int) -> Iterator[CollectedEvent]:
        if message.transactional:
            if not (current := self._transaction(message)).is_applied:
                current.append_message(message, wal_start, ts_ms)
            return
        self._order.check_message(message, wal_start)
        if self._is_applied_upto(message.lsn):
            self._passed = max(self._passed, message.lsn)
            return
        yield from self._hand_over()
        batch = RowBatch()
        info = TransactionInfo(None, ts_ms * 1000, None, None)
        self._tables.messages.append(message, wal_start, info, None, ts_ms, batch)
        yield CollectedEvent(MessageRead(message.lsn), batch, at_us=ts_ms * 1000)

    def _note_ddl(self, message: m.LogicalMessage) -> None:
        """Note a DDL message, also of a transaction that Kafka has."""
        if message.transactional and message.prefix == PREFIX and (changed := self._tables.ddl.read(message.content)):
            current = self._transaction(message)
            current.ddl[changed.oid] = changed.behind(current.ddl)
            if not current.is_prepared:
                self._tables.ddl.note({changed.oid: changed})

    def _transaction(self, message: m.Message) -> SourceTransaction:
        if self._current is None:
            raise MalformedMessage(f"PostgreSQL sent {type(message).__name__} outside of a transaction", offset=0)
        return self._current

    def _unended(self, message: m.Message) -> MalformedMessage:
        """Make the error for a message that needs the end of the transaction before it."""
        found = f"another one's {type(message).__name__}"
        begun = self._current.begun if self._current is not None else None
        if begun is None:
            return MalformedMessage(f"PostgreSQL has not sent the end of a stream block, and {found} came", offset=0)
        return missing_end(begun, found)

    def _info(self, message: m.BeginPrepare | m.StreamPrepare) -> TransactionInfo:
        """Return the facts that the rows of a prepared transaction share."""
        identity = message.identity
        downstream_id, parsed = identity.downstream_id(message.prepare_lsn), self._parse_gid(identity.gid)
        return TransactionInfo(identity.xid, message.prepare_ts_us, downstream_id, identity.gid, parsed)


def _committed(message: m.Begin | m.StreamCommit) -> TransactionInfo:
    """Return the facts that the rows of a plain transaction share."""
    transaction_id = f"{message.xid}:{format_lsn(message.commit_lsn)}"
    return TransactionInfo(message.xid, message.commit_ts_us, transaction_id, None, commit_lsn=message.commit_lsn)
