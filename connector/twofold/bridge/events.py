"""What can happen to the bridge: what was read, what fell due, what the sink answered.

Events come in the order in which the replication stream brought them; due times and answers may come between any two. Due times and aborts that speak of a
prepared transaction which has ended meanwhile are harmless. Answers to commits come in the order in which the commits were given out.
"""

from __future__ import annotations

from dataclasses import dataclass

from twofold_common.positions import Lsn, PreparedIdentity


@dataclass(frozen=True, slots=True)
class Passed:
    """The stream has come to `lsn` and brought nothing to do: a keepalive, or transactions and messages that `State.skips` knows as done."""

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class PlainUnfinished:
    """Rows of a plain transaction whose commit has not been read go to the main producer from here on: until its PlainRead the group cannot be closed."""


@dataclass(frozen=True, slots=True)
class PlainRead:
    """A run of neighbouring plain transactions, none of them skipped; their rows are on their way to the main producer.

    `unfinished`: with them go rows of the one behind, whose commit has not been read.
    """

    transactions: int
    rows: int
    end_lsn: Lsn
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class MessageRead:
    """A message that belongs to no transaction, not known to be in Kafka. PostgreSQL tells where its record ends, not where it starts."""

    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PrepareRead:
    """PREPARE TRANSACTION; its rows are in the spool. `park_reason` says by which rule it must not be opened, if one forbids it."""

    identity: PreparedIdentity
    prepare_lsn: Lsn
    end_lsn: Lsn
    rows: int
    park_reason: str | None = None


@dataclass(frozen=True, slots=True)
class CommitPreparedRead:
    """COMMIT PREPARED."""

    identity: PreparedIdentity
    commit_lsn: Lsn
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class RollbackPreparedRead:
    """ROLLBACK PREPARED. PostgreSQL tells where its record ends, not where it starts."""

    identity: PreparedIdentity
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing more waits on the replication socket. The `young` were prepared a moment ago, and their outcome may be on its way: they are not opened for this."""

    young: frozenset[PreparedIdentity] = frozenset()


@dataclass(frozen=True, slots=True)
class TurnFull:
    """The group has as many rows or bytes, or is as old, as a turn may be; in mid-transaction it counts from its end on."""


@dataclass(frozen=True, slots=True)
class OpenDue:
    """A staged transaction has waited for `prepared.open_within`."""

    identity: PreparedIdentity


@dataclass(frozen=True, slots=True)
class ParkDue:
    """An open one has been so for `prepared.hold`, or a table that it touches goes into backfill: it must not stay, or become, open."""

    identity: PreparedIdentity
    why: str


@dataclass(frozen=True, slots=True)
class ChunkDue:
    """Rows that come from no transaction (a chunk of a backfill, or the truncate with which a reload begins) may be published now: the stream has passed their position. Not while `State.unfinished`."""


@dataclass(frozen=True, slots=True)
class IdleDue:
    """It is time again to bring progress and ledger up to date, if nothing else has done so."""


@dataclass(frozen=True, slots=True)
class MainCommitted:
    """The oldest outstanding CommitMain has been carried out, and Kafka has acknowledged it."""

    applied_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PreparedOpened:
    """The rows are in Kafka, acknowledged by the in-sync replicas."""

    identity: PreparedIdentity


@dataclass(frozen=True, slots=True)
class PreparedCommitted:
    """A CommitPrepared has been carried out, and Kafka has acknowledged it."""

    identity: PreparedIdentity
    applied_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PreparedAborted:
    """A prepared transaction's Kafka transaction is no more: an AbortPrepared has been carried out, or Kafka has aborted it by itself."""

    identity: PreparedIdentity


Event = (
    Passed
    | PlainUnfinished
    | PlainRead
    | MessageRead
    | PrepareRead
    | CommitPreparedRead
    | RollbackPreparedRead
    | Drained
    | TurnFull
    | OpenDue
    | ParkDue
    | ChunkDue
    | IdleDue
    | MainCommitted
    | PreparedOpened
    | PreparedCommitted
    | PreparedAborted
)
