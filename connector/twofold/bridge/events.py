"""Events of the bridge: something was read, fell due, or was answered by the worker.

Events come in the order of the replication stream; due times and answers may come between any two.
A due time or an abort of a prepared transaction that has ended meanwhile does nothing. Answers to
commits come in the order in which the commits were given out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from twofold_common.positions import Lsn, PreparedIdentity

NO_PREPARE = Lsn(2**64 - 1)
"""In place of a prepare's position: beyond all positions, so nothing waits for it."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The stream has reached `lsn` without anything to do: a keepalive, or outcomes that are
    skipped.
    """

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class PlainUnfinished:
    """Rows of a plain transaction go to the main producer before its commit is read.

    The batch cannot close until its PlainRead.
    """


@dataclass(frozen=True, slots=True)
class PlainRead:
    """A run of neighbouring outcomes, none of them skipped: of plain transactions, and of prepared
    ones whose PREPARE no event has announced.

    Their rows go to the main producer.

    `unfinished`: rows of the next transaction, whose commit has not been read, go with them.
    """

    transactions: int
    rows: int
    end_lsn: Lsn
    unfinished: bool = False
    oldest_prepare: Lsn = NO_PREPARE
    """The oldest prepare that one of the outcomes resolves."""
    committed: int = 0
    """Number of outcomes that are COMMIT PREPARED."""
    rolled_back: int = 0
    """Number of outcomes that are ROLLBACK PREPARED. They have no rows and count as no transaction
    here."""


@dataclass(frozen=True, slots=True)
class MessageRead:
    """A message outside transactions that may not be in Kafka. PostgreSQL sends only its end."""

    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PrepareRead:
    """PREPARE TRANSACTION; the rows are in the spool.

    `park_reason` names the rule that forbids opening.
    """

    identity: PreparedIdentity
    prepare_lsn: Lsn
    end_lsn: Lsn
    rows: int
    park_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Unannounced:
    """The oldest PREPARE that was read and that no event has announced; NO_PREPARE without one.

    It comes before an event that passes such a PREPARE, and behind the one that ends its wait.
    """

    prepare_lsn: Lsn


@dataclass(frozen=True, slots=True)
class CommitPreparedRead:
    """COMMIT PREPARED."""

    identity: PreparedIdentity
    commit_lsn: Lsn
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class RollbackPreparedRead:
    """ROLLBACK PREPARED. PostgreSQL sends only the end of its record."""

    identity: PreparedIdentity
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing more waits on the replication socket: the batch may close."""


@dataclass(frozen=True, slots=True)
class TurnFull:
    """The batch has reached the limit of rows, bytes or age.

    In mid-transaction it counts from its end.
    """


@dataclass(frozen=True, slots=True)
class OpenDue:
    """A staged transaction is to be opened.

    It has waited for `prepared.open_within`, or nothing more waits to be read and its outcome has
    not followed at once.
    """

    identity: PreparedIdentity


@dataclass(frozen=True, slots=True)
class ParkDue:
    """A prepared transaction must not stay or become open: `prepared.hold` is over, or a table goes
    into backfill.
    """

    identity: PreparedIdentity
    why: str


@dataclass(frozen=True, slots=True)
class ChunkDue:
    """Rows of no transaction may be published: the stream has passed their position.

    They are a chunk of a backfill, or the truncate that begins a reload. Not while
    `State.unfinished`.
    """


@dataclass(frozen=True, slots=True)
class IdleDue:
    """Progress and ledger are due to be brought up to date, if nothing else has done so."""


class MemberSeen(NamedTuple):
    """How far another member of the source group was visible."""

    prefix: str
    sequence: int
    """The member's last visible commit record."""
    stream_id: str
    """The stream that the number belongs to. A member whose prefix was made again counts from 1."""


class FrontierAsked(NamedTuple):
    """The answers that a frontier of a source group needs, asked in the order of the fields.

    The frontier is written when the stream has passed `end_lsn`. Nothing is asked again before
    that: a busy stream would never pass the latest end.
    """

    seen: tuple[MemberSeen, ...]
    listed: frozenset[PreparedIdentity]
    """The transactions that PostgreSQL lists as prepared."""
    end_lsn: Lsn
    """The end of the WAL."""


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
    """A CommitOpenPrepared has been carried out, and Kafka has acknowledged it."""

    identity: PreparedIdentity
    applied_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PreparedAborted:
    """A prepared transaction's Kafka transaction has ended: by an AbortPrepared, or by Kafka's own
    abort.
    """

    identity: PreparedIdentity


Event = (
    Passed
    | PlainUnfinished
    | PlainRead
    | MessageRead
    | PrepareRead
    | Unannounced
    | CommitPreparedRead
    | RollbackPreparedRead
    | Drained
    | TurnFull
    | OpenDue
    | ParkDue
    | ChunkDue
    | IdleDue
    | FrontierAsked
    | MainCommitted
    | PreparedOpened
    | PreparedCommitted
    | PreparedAborted
)
