"""Actions: the bridge's decisions, for others to execute.

The thread that reads executes `Report` and `Refuse`. One worker executes all other actions, in the
order in which the bridge gave them out. The rows of plain transactions take their place among the
actions at their event. An action that fails, or whose outcome is unknown, ends the run; recovery
then finds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from twofold.bridge.events import MemberSeen
from twofold_common.positions import Lsn, PreparedIdentity


class LedgerState(StrEnum):
    """A prepared transaction's state in the in-doubt ledger; the symbols of prepared.avsc."""

    OPEN = "open"
    PARKED = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class AppendStaged:
    """Produce a staged or parked transaction's rows through the main producer, and list the
    transaction in the commit record.

    The spool then drops the rows.
    """

    identity: PreparedIdentity
    commit_lsn: Lsn


@dataclass(frozen=True, slots=True)
class NoteInDoubt:
    """Write a ledger entry through the main producer. The entry becomes readable with the next
    CommitMain.

    The spool may lack the transaction, because its ROLLBACK PREPARED came alone. The entry is then
    the one that recovery read, with the new state.
    """

    identity: PreparedIdentity
    state: LedgerState


@dataclass(frozen=True, slots=True)
class WriteFrontier:
    """Write a frontier through the main producer. The frontier becomes readable with the next
    CommitMain.

    `sequence` is the last commit record then, `lsn` the stream's position.
    """

    sequence: int
    lsn: Lsn
    seen: tuple[MemberSeen, ...]
    in_doubt: frozenset[PreparedIdentity]


@dataclass(frozen=True, slots=True)
class CommitMain:
    """Commit the batch: with commit record `sequence` if the batch has rows, and always with
    progress.

    Answer: MainCommitted.
    """

    sequence: int
    applied_lsn: Lsn
    transactions: int
    rows: int


@dataclass(frozen=True, slots=True)
class OpenPrepared:
    """Begin a Kafka transaction under the slot's id, produce the rows, flush. The spool keeps them.

    Answer: PreparedOpened.
    """

    identity: PreparedIdentity
    slot: int


@dataclass(frozen=True, slots=True)
class CommitOpenPrepared:
    """Add commit record and progress to the slot's Kafka transaction, and commit it.

    With `in_ledger` also the ledger's entry `committed`. Answer: PreparedCommitted.
    """

    identity: PreparedIdentity
    slot: int
    sequence: int
    applied_lsn: Lsn
    commit_lsn: Lsn
    in_ledger: bool


@dataclass(frozen=True, slots=True)
class CommitChunk:
    """Produce the rows of ChunkDue through the main producer, and commit them with a commit record
    of their own.

    Of the progress only the sequence changes. Answer: MainCommitted.
    """

    sequence: int
    applied_lsn: Lsn


@dataclass(frozen=True, slots=True)
class AbortPrepared:
    """Abort the slot's Kafka transaction, if Kafka has not already done so.

    Answer: PreparedAborted.
    """

    identity: PreparedIdentity
    slot: int
    why: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the transaction's rows from the spool: no later action needs them."""

    identity: PreparedIdentity


@dataclass(frozen=True, slots=True)
class Report:
    """Report these positions to PostgreSQL.

    Only the last report counts, so it may be sent later.
    """

    write: Lsn
    flush: Lsn


@dataclass(frozen=True, slots=True)
class Refuse:
    """Raise `errors.Refused` with this text (promise 8). No action after it counts."""

    what: str
    at_stake: str
    repair: str
    lost: PreparedIdentity | None = None
    """The transaction whose tables stand for `{tables}` in `repair`."""


Action = (
    AppendStaged
    | NoteInDoubt
    | WriteFrontier
    | CommitMain
    | CommitChunk
    | OpenPrepared
    | CommitOpenPrepared
    | AbortPrepared
    | Forget
    | Report
    | Refuse
)
