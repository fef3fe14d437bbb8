"""Decides what is published of a table in backfill, in the order of its topic: the worker's half of
a life.

Pure. The merger keeps the changes (`chunk_rule.ChangeMemory`) and the delayed rows of a table
without a key, and executes the actions. Events come when something changes, never at the rate of
rows. The table's pin has the state, so a restart continues here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from twofold.lives.chunk_rule import DroppedRows, Snapshot
from twofold.lives.exchanged import NO_COMMAND, ExecuteCommand, TopicState, WatchTopic
from twofold.lives.load_progress import LoadProgress


@dataclass(frozen=True, slots=True)
class TopicLife:
    """The worker's half of a life, whole. A topic that is not in backfill is ready."""

    keyless: bool
    state: TopicState = "ready"
    progress: LoadProgress = field(default_factory=LoadProgress)
    has_delayed: bool = False
    """Rows of a table without a message key are delayed: they follow the table's one chunk."""
    lost: bool = False
    """An earlier session had delayed rows: only a snapshot still has them."""
    executed: int = NO_COMMAND
    """The number of the last executed command. No command up to that number is executed again."""

    @property
    def in_backfill(self) -> bool:
        return self.state != "ready"


# --- events


@dataclass(frozen=True, slots=True)
class RowsDelayed:
    """The first row of this session is delayed."""


@dataclass(frozen=True, slots=True)
class KeysMoved:
    """Published rows got these keys, without a value that only the table has.

    The table has the value under the old key, whose row may never have been published.
    """

    keys: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class TruncateDue:
    """The truncate of a reload is to be published."""

    command: int = NO_COMMAND
    """The number of the command `start` that the truncate executes."""


@dataclass(frozen=True, slots=True)
class ChunkPassed:
    """The stream has passed a chunk's position, so the chunk is to be published."""

    snapshot: Snapshot
    kind: Literal["range", "whole", "gone"]
    """Some rows in key order; all rows of a table without a key; the table no longer exists."""
    changes: DroppedRows
    """The chunk's rows that are not published."""
    last: bytes | None = None
    order: tuple[str, ...] = ()
    among: frozenset[bytes] = frozenset()
    """The keys that were read again."""
    unread: frozenset[bytes] = frozenset()
    """The keys to read again, among the chunk's."""
    scanned: bool = False


@dataclass(frozen=True, slots=True)
class RowsCounted:
    """The chunk is produced: its rows, their size, and the time that they took."""

    rows: int
    size: int
    seconds: float


TopicEvent = WatchTopic | RowsDelayed | KeysMoved | TruncateDue | ChunkPassed | RowsCounted | ExecuteCommand

# --- actions


@dataclass(frozen=True, slots=True)
class ForgetChanges:
    """Forget the changes that this snapshot sees. Without a snapshot forget all changes: a barrier
    precedes the next snapshot.
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
class ReleaseDelayed:
    """Publish the delayed rows that the snapshot did not see; without a snapshot, all of them."""

    unseen_by: Snapshot | None = None


TopicAction = ForgetChanges | PublishTruncate | PublishRows | PublishWhole | ReleaseDelayed
Step = tuple[TopicLife, tuple[TopicAction, ...]]


def begin(state: TopicState, bound: bytes | None, executed: int, *, keyless: bool) -> TopicLife:
    """Return the life with which a run begins, from the table's pin."""
    progress = LoadProgress.from_bytes(bound)
    return TopicLife(keyless, state, progress, lost=progress.delayed, executed=executed)


def step_topic(life: TopicLife, event: TopicEvent) -> Step:  # noqa: PLR0911  (one flat dispatch)
    """Take an event, return the next state and the actions, in their order."""
    match event:
        case WatchTopic(keyless, reload):
            return TopicLife(keyless, "waiting", LoadProgress(reload=reload), executed=life.executed), ()
        case RowsDelayed():
            return replace(life, has_delayed=True, progress=replace(life.progress, delayed=True)), ()
        case KeysMoved(keys):
            return replace(life, progress=replace(life.progress, again=life.progress.again | keys)), ()
        case TruncateDue(command):
            return _empty(replace(life, executed=max(life.executed, command)))
        case ChunkPassed():
            return _publish(life, event)
        case RowsCounted(rows, size, seconds):
            return replace(life, progress=life.progress.counted(rows, size, seconds)), ()
        case ExecuteCommand():
            return _execute_command(life, event)


def _empty(life: TopicLife) -> Step:
    """Begin a reload: rows ahead of the truncate are void, and a barrier follows."""
    emptied = replace(life, state="running", progress=LoadProgress(delayed=life.has_delayed), lost=False)
    return emptied, (ForgetChanges(), PublishTruncate())


def _publish(life: TopicLife, chunk: ChunkPassed) -> Step:
    progress = life.progress.behind(
        last=chunk.last, order=chunk.order, among=chunk.among, scanned=chunk.scanned, unread=chunk.unread
    )
    life = replace(life, progress=progress, state="ready" if progress.complete else "running")
    forget = ForgetChanges(chunk.snapshot)
    match chunk.kind:
        case "whole":
            return _released(life), (forget, PublishWhole(), ReleaseDelayed(chunk.snapshot))
        case "gone":  # no snapshot has any delayed row
            return _released(life), (forget, ReleaseDelayed())
        case "range" if chunk.changes.everything:
            return life, (forget,)
        case _:
            return life, (forget, PublishRows(chunk.changes.keys))


def _execute_command(life: TopicLife, due: ExecuteCommand) -> Step:
    """Execute a person's command.

    The remembered changes are void, because a barrier precedes the next snapshot.
    """
    name = due.command.name
    life = replace(life, executed=due.command.number)
    if due.reload:
        life = replace(life, progress=LoadProgress(reload=True, delayed=life.progress.delayed))
    elif not life.in_backfill:
        return life, (ForgetChanges(),)  # the load had ended before the command came
    match name:
        case "pause":
            return replace(life, state="paused"), (ForgetChanges(),)
        case "resume":
            return replace(life, state="running"), (ForgetChanges(),)
        case "cancel" if not life.lost:
            return _released(replace(life, state="ready")), (ForgetChanges(), ReleaseDelayed())
        case _:
            return life, (ForgetChanges(),)


def _released(life: TopicLife) -> TopicLife:
    return replace(life, has_delayed=False, lost=False)
