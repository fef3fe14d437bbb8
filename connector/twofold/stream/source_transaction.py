"""`SourceTransaction`: a transaction of the source with its rows, from its first message until
Kafka has the rows or they are dropped.

PostgreSQL sends most transactions after they have ended; their rows are encoded at once. The rows
of a plain transaction go straight into the batch that the transaction shares with its neighbours.
The rows of a prepared transaction are kept in a batch of their own, and go into the spool once they
are many, or once the transaction is announced. `streamed` has transactions in progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from twofold.bridge.events import Event
from twofold.descriptions.ddl_message import DdlMessage
from twofold.kafka.row_batch import SKIPPED, Record, RegisteredTable, RowBatch
from twofold.kafka.schema_registry import SchemaRefused
from twofold.lives.skipped_rows import SkipCommand
from twofold.outbox.outbox import OutboxTable
from twofold.source import messages as m
from twofold.source.decoder import row_relation
from twofold.source.session import Keepalive, Received
from twofold.spool import Spool, SpooledRows
from twofold.stream import skipping
from twofold.tables.ddl_descriptions import NO_DDL, DdlMessages
from twofold.tables.table_version import DescribedVersion, TableVersion, TransactionInfo
from twofold.tables.tables import Tables
from twofold_avro.errors import MalformedRow
from twofold_avro.records import PreparedOutcome
from twofold_avro.wire import HEADER_BYTES, partition_of
from twofold_common.positions import Lsn, PreparedIdentity

CHUNK_BYTES = 1 << 17
"""The size of a piece that goes into the spool. The piece is completed and handed over when it
leaves the spool.

It stays in a core's own cache between the two. A megabyte took half as long again
(docs/inside/measurements).
"""
_TRUNCATE_BYTES = 512
"""The approximate size of a truncate's record."""


class SourceTransaction:
    """One transaction. The reading thread adds rows until it calls `complete`. Then the worker's
    thread reads the rows, piece by piece.

    What most transactions never set has its first value in the class: one is made for each small
    transaction.
    """

    has_rows = False
    """Whether a row or a truncate was passed, because Kafka has the transaction."""
    rows = 0
    """The number of changes."""
    has_skipped = False
    """Whether a row was skipped by a person's command."""
    handed_over = False
    """Whether some of the transaction's rows have gone to the batch."""
    prepare: m.Prepare | m.StreamPrepare | None = None
    """The message that ended a prepared transaction, once read."""
    read_ms = 0
    """The time when PREPARE was read, if the transaction is kept unannounced."""
    records = 0
    """The number of records in the spool."""
    spooled_bytes = 0
    provisional: tuple[TableVersion, ...] = ()
    """The tables whose shape was not committed when the transaction was complete. Their shapes must
    be committed before `batches`.
    """
    topics: tuple[str, ...] = ()
    """All topics of the transaction, once complete."""
    spooled: SpooledRows | None = None
    relations: Mapping[int, DescribedVersion] = {}
    """The descriptions that hold for this transaction alone, by oid."""

    def __init__(
        self,
        info: TransactionInfo,
        batch: RowBatch,
        all_tables: Tables,
        spool: Spool,
        begun: m.Begin | m.BeginPrepare | None = None,
        bytes_max: int = CHUNK_BYTES,
        is_applied: bool = False,
    ) -> None:
        """`batch`: the rows that are not in the spool. Plain transactions share one batch.

        `begun`: the message that began the transaction; None if the transaction is streamed.

        `bytes_max`: a batch that is larger is handed over, or spilled, at once.

        `is_applied`: whether Kafka has the transaction.
        """
        self.info = info
        self.batch = batch
        self.all_tables = all_tables
        self.spool = spool
        self.begun = begun
        self.bytes_max = bytes_max
        self.is_applied = is_applied
        self.header = info.header()
        self.is_prepared = isinstance(begun, m.BeginPrepare)
        self.tables: dict[TableVersion, None] = {}
        self.event_topics: dict[str, None] = {}
        """The topics of the transaction's events and logical messages."""
        self.ddl: dict[int, DdlMessage] = {}
        """The last DDL message of each table, by its oid."""
        self._unregistered: dict[TableVersion, tuple[int, str]] = {}

    @property
    def identity(self) -> PreparedIdentity:
        assert self.prepare is not None, "its PREPARE was read"
        return self.prepare.identity

    @property
    def prepare_lsn(self) -> Lsn:
        assert self.prepare is not None, "its PREPARE was read"
        return self.prepare.prepare_lsn

    @property
    def downstream_id(self) -> str:
        assert self.info.transaction_id is not None, "its PREPARE was read"
        return self.info.transaction_id

    def outcome(self, commit_lsn: Lsn, at_us: int) -> PreparedOutcome:
        """Return a prepared transaction's entry in its commit record."""
        parsed, places = self.info.parsed, (self.prepare_lsn, commit_lsn, at_us)
        return PreparedOutcome(self.downstream_id, *self.identity, *places, parsed.global_id, parsed.branch)

    def append_rows(self, received: Received, at: int, ts_ms: int) -> int:
        """Encode this row and the table's rows behind it; return the index of the next message."""
        item = received[at]
        assert not isinstance(item, Keepalive), "a row"
        if item[0] > self.all_tables.skips.last:
            return self._append_run(received, at, ts_ms, *item)
        if not self._append_named(*item, ts_ms):  # one by one, as long as a command may name a row
            self._append_run([item], 0, ts_ms, *item)
        return at + 1

    def _append_run(self, received: Received, at: int, ts_ms: int, lsn: int, payload: bytes) -> int:
        oid = row_relation(payload, in_stream=False)
        try:
            table = self.all_tables.of_relation(oid, provisional=self.is_prepared)
        except SchemaRefused as refusal:
            described = self.all_tables.of_relation(oid, provisional=True)
            raise skipping.offer_raw(refusal, described, lsn, payload, 1) from refusal
        if table.outbox is not None:
            self._append_event(table, table.outbox, payload)
            return at + 1
        if not table.committed:
            self._note_unregistered(table, lsn, payload, 1)
        lists = self._lists(table)
        batch = self.batch
        room = self.bytes_max - batch.bytes
        try:
            behind, taken = table.plan.append_run(received, at, 1, self.header, ts_ms, lists, room)
        except MalformedRow as error:
            raise skipping.refuse_malformed(error, table, received, at, 1) from error
        self.rows += behind - at
        batch.bytes += taken
        return behind

    def _append_named(self, lsn: int, payload: bytes, ts_ms: int) -> bool:
        """Append a row at a position that people's commands name, without the records that the
        commands skip.

        Return False, and do nothing, if the row can go the usual way.

        A row that cannot be encoded, or whose shape is not registered, is skipped whole. Of any
        other row that changes its key, the delete of the old key stays.
        """
        skips = self.all_tables.skips
        if lsn not in skips.positions:
            return False
        table = self.all_tables.of_relation(row_relation(payload, in_stream=False), provisional=True)
        if table.void:
            return False
        keys = skipping.read_keys(table.plan, payload, 1)
        name = skipping.name_raw(keys, lsn, payload, 1)
        records: list[Record] = []
        if table.committed:
            with suppress(MalformedRow):
                table.plan.append_run([(lsn, payload)], 0, 1, self.header, ts_ms, [records] * table.partitions, 0)
        if records:
            self._append_unnamed(table, records, name, lsn)
        elif command := skips.find(table.topic, lsn, (name,)):
            for key in keys or (None,):
                self._note_skipped(command, key)
        else:
            return False
        self.rows += 1
        self.batch.bytes += len(payload)
        return True

    def _append_unnamed(self, table: TableVersion, records: list[Record], raw_name: str, lsn: int) -> None:
        """Append the records that no command names; note the skipped ones, once for each key."""
        lists, skipped = self._lists(table), dict[bytes | None, SkipCommand]()
        for record in records:
            key = record["key"]
            names = skipping.names_of_record(lsn, record, raw_name)
            if command := self.all_tables.skips.find(table.topic, lsn, names):
                skipped[key and key[HEADER_BYTES:]] = command
            else:
                lists[0 if key is None else partition_of(key, table.partitions)].append(record)
        for key, command in skipped.items():
            self._note_skipped(command, key)

    def _note_skipped(self, command: SkipCommand, key: bytes | None) -> None:
        """Note a skipped row for the merger, which gets the note in the order of the topic."""
        self.has_skipped = True
        self.batch.lists(SKIPPED, 1)[0].append({**command._asdict(), "key": key})

    def _note_unregistered(self, table: TableVersion, lsn: int, payload: bytes, oid_at: int) -> None:
        """Keep the name of the first row of a shape that the registry may refuse later."""
        if table not in self._unregistered:
            keys = skipping.read_keys(table.plan, payload, oid_at)
            self._unregistered[table] = lsn, skipping.name_raw(keys, lsn, payload, oid_at)

    def register(self) -> None:
        """Register the schemas that the transaction's tables lack, now that it is committed."""
        for table in self.provisional:
            try:
                self.all_tables.register_committed((table,))
            except SchemaRefused as refusal:
                if (first := self._unregistered.get(table)) is None:
                    raise
                raise skipping.offer(refusal, table, *first) from refusal

    def append_truncate(self, message: m.Truncate, wal_start: int, ts_ms: int) -> None:
        if self.is_applied:
            self.has_rows = True
            return
        for oid in message.relations:
            table = self.all_tables.of_relation(oid, provisional=self.is_prepared)
            if table.outbox is not None:
                self.tables[table] = None
                continue
            lists = self._lists(table)
            self.batch.bytes += _TRUNCATE_BYTES * table.plan.truncate(wal_start, self.header, ts_ms, lists)
            self.rows += 1

    def append_message(self, message: m.LogicalMessage, wal_start: int, ts_ms: int) -> None:
        topic = self.all_tables.messages.append(message, wal_start, self.info, self.header, ts_ms, self.batch)
        self.event_topics[topic] = None
        self.rows += 1

    def _append_event(self, table: TableVersion, outbox: OutboxTable, payload: bytes) -> None:
        """Add the event that an outbox's row is, if the row is an insert."""
        self.tables[table] = None
        if (event := self.all_tables.events.row_event(outbox, payload, in_stream=False)) is not None:
            self.all_tables.events.append(event, self.batch)
            self.event_topics[event.topic] = None
            self.rows += 1

    def _lists(self, table: TableVersion) -> list[list[Record]]:
        """Return the lists for the table's records.

        A prepared transaction may have changed whether the table has a key, and with the key the
        partitions. Such a transaction's commit is then refused, and its rollback forgets it.
        """
        self.tables[table] = None
        if self.is_prepared and not self.batch.fits(table.topic, table.partitions):
            self.spill()
        return self.batch.lists(table.topic, table.partitions)

    def spill(self) -> None:
        """Move the rows into the spool."""
        self.records += self.batch.records
        self.spooled_bytes += self.batch.bytes
        self._append_spooled(self.batch.to_bytes())
        self.batch = RowBatch()

    def complete(self) -> None:
        """Spill all rows, and note their tables and topics."""
        self.spill()
        self.provisional = tuple(table for table in self.tables if not table.committed)
        self.topics = (*(dict.fromkeys(table.topic for table in self.tables if not table.void) | self.event_topics),)

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows of the spool in order; may be called more than once."""
        registered = [
            RegisteredTable(table.topic, table.provisional_id, *table.registered_ids, table.partitions, table.keyless)
            for table in self.provisional
            if not table.void
        ]
        passed_over = [table.passed_over for table in self.provisional if table.passed_over is not None]
        for batch in map(RowBatch.from_bytes, self._spooled_chunks()):
            for topic in passed_over:
                batch.take_topic(topic)
            batch.put_registered_ids(registered)
            yield batch

    def drop(self) -> None:
        """Forget the rows of the spool."""
        if self.spooled is not None:
            self.spooled.drop()

    def _append_spooled(self, chunk: bytes) -> None:
        if self.spooled is None:
            self.spooled = self.spool.new()
        self.spooled.append(chunk)

    def _spooled_chunks(self) -> Iterator[bytes]:
        return self.spooled.chunks() if self.spooled is not None else iter(())


class CollectedEvent(NamedTuple):
    """An event of the bridge, with the rows that the bridge does not see."""

    event: Event
    batch: RowBatch | None = None
    """Rows for the main producer, to be produced before the event's actions."""
    transaction: SourceTransaction | None = None
    """A complete transaction. A prepared one is kept until its outcome. The rows of any other are
    for the main producer, as those of `batch` are.
    """
    at_us: int = 0
    """The source's time of the commit, prepare or rollback."""
    waited_ms: int = 0
    """The time since the PREPARE was read."""
    outcomes: tuple[PreparedOutcome, ...] = ()
    """The committed prepared transactions among the outcomes, for the commit record."""
    ddl: DdlMessages = NO_DDL
    """The DDL messages of the committed transactions, by table."""
    tables: Iterable[TableVersion] = ()
    """The tables of the committed transactions' changes, outboxes among them."""
