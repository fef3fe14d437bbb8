"""The messages of pgoutput, one frozen value per message of protocol versions 1 to 4.

Pure; compared with `==`. Every `*_lsn` is a record's start and every `*_end_lsn` its end, except
`LogicalMessage.lsn` (see there). Times are microseconds since the Unix epoch. A message that can
stand in a stream block has the xid of its *sub*transaction, and None outside a block.

The messages that begin and end a transaction are tuples, which are made in a third of the time. So
a Prepare equals the BeginPrepare of its transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from twofold_avro.shapes import ReplicaIdentity
from twofold_common.positions import Lsn, PreparedIdentity


class Unchanged(Enum):
    """The value of a column whose TOASTed value the change left alone:

    PostgreSQL did not send it.
    """

    TOAST = "unchanged"


@dataclass(frozen=True, slots=True)
class Text:
    """A value in the text form of its type, in UTF-8."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Binary:
    """A value in the form of its type's send function."""

    data: bytes


Value: TypeAlias = Text | Binary | Unchanged | None
Row: TypeAlias = tuple[Value, ...]


class Begin(NamedTuple):
    commit_lsn: Lsn
    commit_ts_us: int
    xid: int


class Commit(NamedTuple):
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_ts_us: int


class BeginPrepare(NamedTuple):
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_ts_us: int
    identity: PreparedIdentity


class Prepare(NamedTuple):
    """The end of the transaction that BeginPrepare began."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_ts_us: int
    identity: PreparedIdentity


class CommitPrepared(NamedTuple):
    """The commit of a prepared transaction. It has no prepare position: its identity matches it."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_ts_us: int
    identity: PreparedIdentity


class RollbackPrepared(NamedTuple):
    """The rollback of a prepared transaction. It has its record's end, but no start."""

    prepare_end_lsn: Lsn
    end_lsn: Lsn
    prepare_ts_us: int
    rollback_ts_us: int
    identity: PreparedIdentity


@dataclass(frozen=True, slots=True)
class StreamStart:
    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    pass


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_ts_us: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """The rollback of the rows of `subxid`, or of the whole transaction when both xids are equal.

    `abort_lsn` and `abort_ts_us` are only sent with streaming `parallel`.
    """

    xid: int
    subxid: int
    abort_lsn: Lsn | None = None
    abort_ts_us: int | None = None


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """The PREPARE of a streamed transaction; no BeginPrepare came before."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_ts_us: int
    identity: PreparedIdentity


@dataclass(frozen=True, slots=True)
class Origin:
    origin_lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's description at the time of the change that follows."""

    oid: int
    schema: str
    table: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in; it precedes the Relation that uses it."""

    oid: int
    schema: str
    name: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    relation: int
    new: Row
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """`key`:

    the old identity columns, sent if one changed. `old`: the whole old row, with identity full.
    """

    relation: int
    key: Row | None
    old: Row | None
    new: Row
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """The deletion of a row, with either `key` or `old`."""

    relation: int
    key: Row | None
    old: Row | None
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message that pg_logical_emit_message wrote."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None


Message: TypeAlias = (
    Begin
    | Commit
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | StreamPrepare
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
)
