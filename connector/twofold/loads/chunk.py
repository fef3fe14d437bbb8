"""The values that readers, the turn's thread and the worker exchange during a backfill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from twofold.kafka.row_batch import Record
from twofold.lives.chunk_rule import Snapshot
from twofold.lives.exchanged import NO_COMMAND, ExecuteCommand, TopicState
from twofold.lives.load_progress import LoadProgress
from twofold.source.messages import Relation
from twofold.spool import SpooledRows
from twofold_avro.shapes import TableShape
from twofold_avro.transcode import RowPlan
from twofold_common.positions import Lsn

KEY_HEAD = 5
"""The number of bytes of the schema's id, with which a message key begins. The rest of the key does
not depend on the registry's ids.
"""


@dataclass(frozen=True, slots=True)
class TableEncoding:
    """A committed version of a table, with a plan that belongs to the reader."""

    shape: TableShape
    partitions: int
    plan: RowPlan
    version: object
    """The version's identity, for the object that made it."""


@dataclass(frozen=True, slots=True)
class EncodingRequest:
    """A reader's question how to encode the rows of a table with this description."""

    relation: Relation
    answer: Future[TableEncoding] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """The state of a load after its chunk."""

    progress: LoadProgress
    state: TopicState


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one snapshot, to be published when the stream has passed `end_lsn`."""

    topic: str
    encoding: TableEncoding | None
    """None: the publication no longer has the table."""
    snapshot: Snapshot
    end_lsn: Lsn
    at_us: int
    scanned: bool
    """No row follows the last one."""
    lists: Sequence[Iterable[Record]] = ()
    """The encoded rows of each partition; rows that were read are packed."""
    last: bytes | None = None
    """The key of the last row in key order; None without rows, or if keys were read again."""
    among: frozenset[bytes] = frozenset()
    """The requested keys, if keys were read again."""
    rows: int = 0
    size: int = 0
    begun: float = 0.0
    """When the read began, by the monotonic clock."""
    whole: SpooledRows | None = None
    """All rows of a table without a message key, packed, in the spool."""
    order: tuple[str, ...] = ()
    """The order of the read, as `LoadProgress` has it; empty if keys were read again."""
    answer: Future[ChunkResult | None] = field(default_factory=Future)
    """None: the chunk was not published and must be read again."""

    def drop(self) -> None:
        """Discard the rows: they are published, or no longer wanted.

        Only the present owner calls this: the reader's thread, then the turn's thread, then the
        worker's.
        """
        if self.whole is not None:
            self.whole.drop()


@dataclass(frozen=True, slots=True)
class ReloadTruncate:
    """The truncate that begins a reload, to be published when the stream has passed `end_lsn`."""

    topic: str
    encoding: TableEncoding | None
    """None: the publication no longer has the table."""
    lists: Sequence[Iterable[Record]]
    """The encoded truncate, for each partition."""
    end_lsn: Lsn
    at_us: int
    command: int = NO_COMMAND
    """The number of the command `start` that the truncate executes."""
    answer: Future[ChunkResult | None] = field(default_factory=Future)
    """None: the truncate was not published and must be made again."""

    def drop(self) -> None:
        """Do nothing: a truncate keeps no rows in the spool."""


@dataclass(frozen=True, slots=True)
class DueCommand:
    """A person's command whose place in the stream has come."""

    topic: str
    order: ExecuteCommand
    at_us: int


DueOfLoad = Chunk | ReloadTruncate | DueCommand
"""The worker's work for a load; each value is a Kafka transaction of its own."""


@dataclass(frozen=True, slots=True)
class SnapshotSeen:
    """A snapshot. All later snapshots of the table's load see at least as much."""

    topic: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class LoadDone:
    """The end of a table's load."""

    topic: str


Offer = EncodingRequest | ReloadTruncate | Chunk | SnapshotSeen | LoadDone
"""A reader's message to the turn's thread."""
