"""What the bridge wants done.

`Report` and `Refuse` are for the thread that reads. All others are carried out one after the other, in the order given out, by one worker, and the rows of
plain transactions take their place among them at their event. An action that fails, or whose outcome is unknown, ends the run; recovery finds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from twofold_common.positions import Lsn, PreparedIdentity


class LedgerState(StrEnum):
    """Where the in-doubt ledger says that a prepared transaction stands; the symbols of prepared.avsc."""

    OPEN = "open"
    PARKED = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class AppendStaged:
    """Produce the rows of a staged or parked transaction through the main producer, here, and list it in the group's commit record.

    The spool drops them then."""

    identity: PreparedIdentity
    commit_lsn: Lsn


@dataclass(frozen=True, slots=True)
class NoteInDoubt:
    """Write a ledger entry through the main producer: it becomes readable with the next CommitMain.

    Of a transaction that the spool does not know (its ROLLBACK PREPARED came alone) the entry is the one that recovery read, with the new state.
    """

    identity: PreparedIdentity
    state: LedgerState


@dataclass(frozen=True, slots=True)
class CommitMain:
    """Commit the group: commit record number `sequence` if it has rows, progress (`applied_lsn`, `sequence`) in any case. Answer: MainCommitted."""

    sequence: int
    applied_lsn: Lsn
    transactions: int
    rows: int


@dataclass(frozen=True, slots=True)
class OpenPrepared:
    """Begin a Kafka transaction under the slot's id, produce the rows and flush; the spool keeps them. Answer: PreparedOpened."""

    identity: PreparedIdentity
    slot: int


@dataclass(frozen=True, slots=True)
class CommitOpenPrepared:
    """Add commit record and progress record (and, `in_ledger`, the ledger's `committed`) to the slot's Kafka transaction and commit it. Answer: PreparedCommitted."""

    identity: PreparedIdentity
    slot: int
    sequence: int
    applied_lsn: Lsn
    commit_lsn: Lsn
    in_ledger: bool


@dataclass(frozen=True, slots=True)
class CommitChunk:
    """Produce what ChunkDue spoke of through the main producer and commit it: a commit record of its own, progress as it was but for the sequence. Answer: MainCommitted."""

    sequence: int
    applied_lsn: Lsn


@dataclass(frozen=True, slots=True)
class AbortPrepared:
    """Abort the slot's Kafka transaction (done already, if Kafka was first). Answer: PreparedAborted."""

    identity: PreparedIdentity
    slot: int
    why: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The spool drops what it has of it: no action will ask for these rows again."""

    identity: PreparedIdentity


@dataclass(frozen=True, slots=True)
class Report:
    """Tell PostgreSQL these positions; of several only the last one counts, so they may be sent at leisure."""

    write: Lsn
    flush: Lsn


@dataclass(frozen=True, slots=True)
class Refuse:
    """Promise 8: raise `errors.Refused` with these words; nothing given out after it counts."""

    what: str
    at_stake: str
    repair: str
    lost: PreparedIdentity | None = None
    """The transaction whose tables stand for `{tables}` in `repair`."""


Action = (
    AppendStaged
    | NoteInDoubt
    | CommitMain
    | CommitChunk
    | OpenPrepared
    | CommitOpenPrepared
    | AbortPrepared
    | Forget
    | Report
    | Refuse
)
