"""Events of the bridge: the stream brought something, a time has come, or the worker has answered.

Events come in the order of the replication stream; due times and answers may come between any two
events. A due time, or an abort, of a prepared transaction that has ended meanwhile does nothing.
Answers to commits come in the order in which the commits were given out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from twofold_common.positions import Lsn, PreparedIdentity

NO_PREPARE = Lsn(2**64 - 1)
"""Stands for no prepare: the position lies beyond all others, so nothing waits for it."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The stream has reached `lsn` and there is nothing to do: after a keepalive, or outcomes that
    Kafka has already.
    """

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class PlainUnfinished:
    """Rows of a plain transaction go to the main producer before its commit is read.

    The batch cannot close until its PlainRead.
    """


@dataclass(frozen=True, slots=True)
class PlainRead:
    """Neighbouring outcomes that Kafka does not have: of plain transactions, and of prepared ones
    whose PREPARE was not announced.

    The rows go to the main producer.

    `unfinished`: rows of the next transaction, whose commit has not been read, go with these rows.
    """

    transactions: int
    rows: int
    end_lsn: Lsn
    unfinished: bool = False
    oldest_prepare: Lsn = NO_PREPARE
    """The oldest prepare that these outcomes resolve."""
    committed: int = 0
    """Number of outcomes that are COMMIT PREPARED."""
    rolled_back: int = 0
    """Number of outcomes that are ROLLBACK PREPARED. Such outcomes have no rows, and `transactions`
    does not count them.
    """


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
    """The oldest PREPARE that was read and not announced; NO_PREPARE without one.

    This event comes before an event that passes such a PREPARE, and behind the event that announces
    or resolves the PREPARE.
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

    In the middle of a transaction the event counts from the transaction's end.
    """


@dataclass(frozen=True, slots=True)
class OpenDue:
    """A staged transaction is to be opened.

    The transaction has waited for `prepared.open_within`. Or nothing more waits to be read, and the
    outcome has not followed at once.
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
    """Rows that belong to no transaction may be published: the stream has passed their position.

    The rows are a chunk of a backfill, or the truncate that begins a reload. The event never comes
    while `State.unfinished`.
    """


@dataclass(frozen=True, slots=True)
class IdleDue:
    """Progress and ledger should be brought up to date, if no commit has done so."""


class MemberSeen(NamedTuple):
    """A member of the source group, and how far its commit records were visible."""

    prefix: str
    sequence: int
    """The member's last visible commit record."""
    stream_id: str
    """The stream that `sequence` counts. A member whose prefix was made again counts from 1."""


class FrontierAsked(NamedTuple):
    """The answers that a frontier of a source group needs, asked in the order of the fields.

    The frontier is written when the stream has passed `end_lsn`. No question is asked again before
    that: a busy stream would never pass the latest end.
    """

    seen: tuple[MemberSeen, ...]
    listed: frozenset[PreparedIdentity]
    """The transactions that PostgreSQL lists as prepared."""
    end_lsn: Lsn
    """The end of the WAL."""


@dataclass(frozen=True, slots=True)
class MainCommitted:
    """Kafka has acknowledged the oldest outstanding CommitMain."""

    applied_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PreparedOpened:
    """The transaction's rows are in Kafka, acknowledged by the in-sync replicas."""

    identity: PreparedIdentity


@dataclass(frozen=True, slots=True)
class PreparedCommitted:
    """Kafka has acknowledged a CommitOpenPrepared."""

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
