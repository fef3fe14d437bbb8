"""The collector's events, and rows of a transaction that wait in the spool until they may be
published.

`BatchRows` are finished when they come, as those of prepared transactions are. `streamed` has those
of transactions in progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from twofold.bridge.events import Event
from twofold.gids import ParsedGid
from twofold.kafka.row_batch import RowBatch, Settled
from twofold.spool import SpooledRows
from twofold.tables.table_version import TableVersion
from twofold.tables.told_tables import NOTHING_TOLD, Told
from twofold_avro.records import PreparedOutcome
from twofold_common.positions import Lsn, PreparedIdentity


class Rows(Protocol):
    """All rows of a transaction whose end was read.

    The worker's thread reads them, chunk by chunk.
    """

    @property
    def records(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def provisional(self) -> tuple[TableVersion, ...]:
        """The tables whose shape was not committed when their rows were encoded.

        It is before `batches`.
        """
        ...

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows in order; may be called more than once."""
        ...

    def drop(self) -> None: ...


class BatchRows:
    """Rows that are finished when they come."""

    def __init__(self, waiting: SpooledRows) -> None:
        self._waiting = waiting
        self.records = 0
        self.bytes = 0
        self.provisional: tuple[TableVersion, ...] = ()

    def append(self, batch: RowBatch) -> None:
        """Append a batch, which the caller must not use again."""
        self.records += batch.records
        self.bytes += batch.bytes
        self._waiting.append(batch.to_bytes())

    def batches(self) -> Iterator[RowBatch]:
        settled = [
            Settled(table.topic, table.provisional_id, *table.registered_ids, table.partitions, table.keyless)
            for table in self.provisional
            if not table.void
        ]
        passed_over = [table.passed_over for table in self.provisional if table.passed_over is not None]
        for chunk in self._waiting.chunks():
            batch = RowBatch.from_bytes(chunk)
            for topic in passed_over:
                batch.take_topic(topic)
            batch.settle(settled)
            yield batch

    def drop(self) -> None:
        self._waiting.drop()


class PreparedRows(NamedTuple):
    """A prepared transaction as it is kept until its outcome."""

    identity: PreparedIdentity
    prepare_lsn: Lsn
    prepared_at_us: int
    rows: Rows
    topics: tuple[str, ...]
    parsed: ParsedGid
    """The gid's global id and branch."""
    told: Told = NOTHING_TOLD
    """What the transaction's DDL messages tell of tables."""

    @property
    def downstream_id(self) -> str:
        return self.identity.downstream_id(self.prepare_lsn)


class CollectedEvent(NamedTuple):
    """An event of the bridge, with the rows that the bridge does not see."""

    event: Event
    batch: RowBatch | None = None
    """Rows for the main producer, to be produced before the event's actions."""
    waited: Rows | None = None
    """Rows for the main producer that waited in the spool."""
    at_us: int = 0
    """The source's time of the commit, prepare or rollback."""
    prepared: PreparedRows | None = None
    held_ms: int = 0
    """How long ago its PREPARE was read."""
    outcomes: tuple[PreparedOutcome, ...] = ()
    """The committed prepared transactions of a run, for the commit record."""
    told: Told = NOTHING_TOLD
    """What the committed transactions' DDL messages tell of tables."""
