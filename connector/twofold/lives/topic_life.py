"""Decides what is published of a table in backfill, in the order of its topic: the worker's half of
a life.

Pure. The merger keeps the rows themselves (`chunk_rule.ChangeMemory`, and what is held of a table
without a key) and carries the actions out. It tells of them when something changes, never at the
rate of rows. The state is what the table's pin says, so a restart continues here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from twofold.lives.chunk_rule import DroppedRows, Snapshot
from twofold.lives.exchanged import NO_COMMAND, CarryOut, TopicState, WatchTopic
from twofold.lives.load_progress import LoadProgress


@dataclass(frozen=True, slots=True)
class TopicLife:
    """The whole state. A topic that is not in backfill is ready."""

    keyless: bool
    state: TopicState = "ready"
    progress: LoadProgress = field(default_factory=LoadProgress)
    holds: bool = False
    """Rows of a table without a message key wait for its one chunk, which they follow."""
    lost: bool = False
    """An earlier session held such rows: only a snapshot still has them."""
    executed: int = NO_COMMAND
    """The number of the last command that was carried out. It and all before it count no more."""

    @property
    def in_backfill(self) -> bool:
        return self.state != "ready"


# --- events


@dataclass(frozen=True, slots=True)
class RowsHeld:
    """The first row of this session is held."""


@dataclass(frozen=True, slots=True)
class KeysMoved:
    """Published rows got these keys, without a value that only the table has.

    The value is under the old key, whose row may never have been published.
    """

    keys: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class TruncateDue:
    """The truncate of a reload is to be published."""

    command: int = NO_COMMAND
    """The number of the command `start` that it carries out."""


@dataclass(frozen=True, slots=True)
class ChunkPassed:
    """The stream has passed a chunk's position: it is to be published."""

    snapshot: Snapshot
    kind: Literal["range", "whole", "gone"]
    """Some rows in key order; all rows of a table without a key; the table no longer exists."""
    changes: DroppedRows
    """What the memory says of the snapshot."""
    last: bytes | None = None
    order: tuple[str, ...] = ()
    among: frozenset[bytes] = frozenset()
    """The keys that were read again."""
    unread: frozenset[bytes] = frozenset()
    """The keys to read again, among the chunk's."""
    scanned: bool = False


@dataclass(frozen=True, slots=True)
class RowsCounted:
    """The chunk is produced: so many rows, in so much time."""

    rows: int
    size: int
    seconds: float


TopicEvent = WatchTopic | RowsHeld | KeysMoved | TruncateDue | ChunkPassed | RowsCounted | CarryOut

# --- actions


@dataclass(frozen=True, slots=True)
class ForgetChanges:
    """Forget the changes that this snapshot sees; without a snapshot all, because a barrier
    precedes the next one.
    """

    seen_by: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class PublishTruncate:
    """Publish the truncate."""


@dataclass(frozen=True, slots=True)
class PublishRows:
    """Publish the chunk's rows, except those of these keys."""

    dropped: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class PublishWhole:
    """Publish all rows of the table without a key."""


@dataclass(frozen=True, slots=True)
class ReleaseHeld:
    """Publish the held rows that the snapshot did not see; all of them without a snapshot."""

    unseen_by: Snapshot | None = None


TopicAction = ForgetChanges | PublishTruncate | PublishRows | PublishWhole | ReleaseHeld
Step = tuple[TopicLife, tuple[TopicAction, ...]]


def begin(state: TopicState, bound: bytes | None, executed: int, *, keyless: bool) -> TopicLife:
    """Return the life with which a run begins, from the table's pin."""
    progress = LoadProgress.from_bytes(bound)
    return TopicLife(keyless, state, progress, lost=progress.held, executed=executed)


def step_topic(life: TopicLife, event: TopicEvent) -> Step:  # noqa: PLR0911  (one flat dispatch)
    """Take an event, return the next state and the actions, in their order."""
    match event:
        case WatchTopic(keyless, reload):
            return TopicLife(keyless, "waiting", LoadProgress(reload=reload), executed=life.executed), ()
        case RowsHeld():
            return replace(life, holds=True, progress=replace(life.progress, held=True)), ()
        case KeysMoved(keys):
            return replace(life, progress=replace(life.progress, again=life.progress.again | keys)), ()
        case TruncateDue(command):
            return _empty(replace(life, executed=max(life.executed, command)))
        case ChunkPassed():
            return _publish(life, event)
        case RowsCounted(rows, size, seconds):
            return replace(life, progress=life.progress.counted(rows, size, seconds)), ()
        case CarryOut():
            return _carry_out(life, event)


def _empty(life: TopicLife) -> Step:
    """Begin a reload: rows ahead of the truncate count no more, and a barrier follows."""
    emptied = replace(life, state="running", progress=LoadProgress(held=life.holds), lost=False)
    return emptied, (ForgetChanges(), PublishTruncate())


def _publish(life: TopicLife, chunk: ChunkPassed) -> Step:
    progress = life.progress.behind(
        last=chunk.last, order=chunk.order, among=chunk.among, scanned=chunk.scanned, unread=chunk.unread
    )
    life = replace(life, progress=progress, state="ready" if progress.complete else "running")
    forget = ForgetChanges(chunk.snapshot)
    match chunk.kind:
        case "whole":
            return _released(life), (forget, PublishWhole(), ReleaseHeld(chunk.snapshot))
        case "gone":  # no snapshot has any held row
            return _released(life), (forget, ReleaseHeld())
        case "range" if chunk.changes.everything:
            return life, (forget,)
        case _:
            return life, (forget, PublishRows(chunk.changes.keys))


def _carry_out(life: TopicLife, due: CarryOut) -> Step:
    """Carry out a person's command.

    The memory no longer counts, because a barrier precedes the next snapshot.
    """
    name = due.command.name
    life = replace(life, executed=due.command.number)
    if due.reload:
        life = replace(life, progress=LoadProgress(reload=True, held=life.progress.held))
    elif not life.in_backfill:
        return life, (ForgetChanges(),)  # the load had ended before the command came
    match name:
        case "pause":
            return replace(life, state="paused"), (ForgetChanges(),)
        case "resume":
            return replace(life, state="running"), (ForgetChanges(),)
        case "cancel" if not life.lost:
            return _released(replace(life, state="ready")), (ForgetChanges(), ReleaseHeld())
        case _:
            return life, (ForgetChanges(),)


def _released(life: TopicLife) -> TopicLife:
    return replace(life, holds=False, lost=False)
