"""What passes between the readers of a backfill, the thread that runs the turn and the worker. Values."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from twofold.backfill.chunk_rule import Snapshot
from twofold.backfill.load_progress import LoadProgress
from twofold.sink.batch import Record
from twofold.source.messages import Relation
from twofold.spool import SpooledRows
from twofold_avro.shapes import TableShape
from twofold_avro.transcode import RowPlan
from twofold_common.positions import Lsn

KEY_HEAD = 5
"""A message key begins with its schema's id; without it, it is the same whatever the registry calls its schema."""


CommandName = Literal["start", "pause", "resume", "cancel"]


@dataclass(frozen=True, slots=True)
class TableEncoding:
    """One version of a table, committed, with a plan that is the reader's own."""

    shape: TableShape
    partitions: int
    plan: RowPlan
    version: object
    """Which version it is, for the one that made it."""


@dataclass(frozen=True, slots=True)
class EncodingRequest:
    """A reader has found a table of this description, and needs to know how its rows are encoded."""

    relation: Relation
    answer: Future[TableEncoding] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What became of a chunk."""

    progress: LoadProgress
    state: str
    """The pin's."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that one snapshot showed, to be published when the stream has passed `end_lsn`."""

    topic: str
    encoding: TableEncoding | None
    """None: the publication does not have the table any more."""
    lists: Sequence[Sequence[Record]]
    """Encoded, one list a partition."""
    snapshot: Snapshot
    end_lsn: Lsn
    last: bytes | None
    """The key of the last row in the order of the key; None if there was none, or if keys were read again."""
    among: frozenset[bytes]
    """The keys that were asked for, if keys were read again."""
    scanned: bool
    """There is nothing behind the last row."""
    at_us: int
    rows: int
    size: int
    begun: float = 0.0
    """When reading it began, by the monotonic clock."""
    command: CommandName | None = None
    """Carried out with it: a person's, about the table's load. Then there are no rows but, to start, a truncate."""
    whole: SpooledRows | None = None
    """Of a table without a message key all rows, as batches in the spool."""
    order: tuple[str, ...] = ()
    """The key's columns in the order in which the rows were read; empty if keys were read again."""
    reload: bool = False
    """With a wish to pause or to resume: a reload had begun, and its truncate is not published."""
    answer: Future[ChunkResult | None] = field(default_factory=Future)
    """None: it was not published, read it again."""

    def drop(self) -> None:
        """Its rows are wanted no more: published, or not to be. Called by who has it then: the reader's thread, then the one that runs the turn, then the worker's."""
        if self.whole is not None:
            self.whole.drop()


@dataclass(frozen=True, slots=True)
class SnapshotSeen:
    """A snapshot that all later ones of the table's load will see as much as."""

    topic: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class LoadDone:
    """A table's load is over."""

    topic: str


Offer = EncodingRequest | Chunk | SnapshotSeen | LoadDone
"""What a reader puts before the thread that runs the turn."""
