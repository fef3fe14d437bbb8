"""Decides what is done about a table's load: the reader's half of a life.

Pure. The half decides when reading begins and stops, which command is executed, and whose answer
still counts. A table's last command counts. Until a reload's truncate is given out, rows that do
not fit the topic are void (`empties`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from twofold.lives.exchanged import CommandExecuted, ExecuteCommand, LoadCommand, TopicState, WatchTopic
from twofold.lives.load_progress import LoadProgress


class LoadPhase(StrEnum):
    """The phase of a table's load."""

    NONE = "none"  # the topic has all rows, or is not to get them
    DUE = "due"  # reading begins at the next turn
    READING = "reading"
    STOPPED = "stopped"  # paused, or a command decides how it continues


@dataclass(frozen=True, slots=True)
class LoadLife:
    """The reader's half of a life, whole."""

    phase: LoadPhase = LoadPhase.NONE
    progress: LoadProgress = field(default_factory=LoadProgress)
    """The place where reading begins, or continues behind a pause."""
    empties: bool = False
    """The truncate that begins the load is still to come."""
    recreated: bool = False
    """Another table has the name now: the load starts over at the next turn."""
    command: LoadCommand | None = None
    """The last command, until it is executed."""
    sent: bool = False
    """The worker has the command."""

    @property
    def in_backfill(self) -> bool:
        return self.phase is not LoadPhase.NONE

    @property
    def needs_turn(self) -> bool:
        return self.recreated or self.phase is LoadPhase.DUE

    @property
    def has_command(self) -> bool:
        """Whether a command waits for its place in the stream. A start waits for the truncate
        instead.
        """
        return self.command is not None and self.command.name != "start" and not self.sent

    @property
    def is_paused(self) -> bool:
        return self.phase is LoadPhase.STOPPED and self.command is None


# --- events


@dataclass(frozen=True, slots=True)
class PinRead:
    """A run begins with this pin."""

    state: TopicState
    progress: LoadProgress


@dataclass(frozen=True, slots=True)
class TopicPinned:
    """The table got its topic, and its existing rows are to be loaded."""

    keyless: bool


@dataclass(frozen=True, slots=True)
class TopicUnpinned:
    """The topic's pin is no longer valid: the topic is emptied and loaded when it is
    pinned again.
    """


@dataclass(frozen=True, slots=True)
class TableUnpublished:
    """When the run begins, no table of this name is published: nothing is loaded."""


@dataclass(frozen=True, slots=True)
class RowsPassedOver:
    """The table is gone. A load of the table finds that too."""


@dataclass(frozen=True, slots=True)
class TableRecreated:
    """The table was dropped, and another one has its name."""


@dataclass(frozen=True, slots=True)
class ReloadDue:
    """The table is to be loaded from the beginning, without a command."""


@dataclass(frozen=True, slots=True)
class CommandGiven:
    """A person gave a command."""

    command: LoadCommand


@dataclass(frozen=True, slots=True)
class CommandDue:
    """The place in the stream has come where a command may be executed."""


@dataclass(frozen=True, slots=True)
class ReadingDue:
    """A turn has begun, and every transaction that touches the table is parked."""


@dataclass(frozen=True, slots=True)
class TopicEmptied:
    """The worker is about to get the truncate."""


@dataclass(frozen=True, slots=True)
class LoadEnded:
    """The table's last chunk is committed."""


LoadEvent = (
    PinRead
    | TopicPinned
    | TopicUnpinned
    | TableUnpublished
    | RowsPassedOver
    | TableRecreated
    | ReloadDue
    | CommandGiven
    | CommandDue
    | ReadingDue
    | TopicEmptied
    | LoadEnded
    | CommandExecuted
)

# --- actions


@dataclass(frozen=True, slots=True)
class BeginReading:
    """Read the table from `progress` on, behind a barrier; a reload begins with a truncate."""

    progress: LoadProgress


@dataclass(frozen=True, slots=True)
class StopReading:
    """Stop reading the table, and discard chunks that are not given out."""


@dataclass(frozen=True, slots=True)
class ExecuteStart:
    """The truncate executes this command."""

    number: int


@dataclass(frozen=True, slots=True)
class ReportDelayedRows:
    """Report that the load was not cancelled: rows that an earlier session delayed would be
    missing.
    """


LoadAction = WatchTopic | ExecuteCommand | BeginReading | StopReading | ExecuteStart | ReportDelayedRows
Step = tuple[LoadLife, tuple[LoadAction, ...]]
RELOAD = LoadProgress(reload=True)


def step_load(life: LoadLife, event: LoadEvent) -> Step:  # noqa: C901, PLR0911, PLR0912  (one flat dispatch)
    """Take an event, return the next state and the actions, in their order."""
    match event:
        case PinRead(state, progress):
            phase = {"ready": LoadPhase.NONE, "paused": LoadPhase.STOPPED}.get(state, LoadPhase.DUE)
            return LoadLife(phase, progress, empties=phase is not LoadPhase.NONE and progress.reload), ()
        case TopicPinned(keyless):
            progress = RELOAD if life.empties else LoadProgress()
            return replace(life, phase=LoadPhase.DUE, progress=progress), (WatchTopic(keyless, progress.reload),)
        case TopicUnpinned():
            return LoadLife(empties=True), _stop(life)
        case TableUnpublished():
            return LoadLife(), _stop(life)
        case RowsPassedOver():
            return replace(life, empties=False), ()
        case TableRecreated():
            return replace(life, recreated=not life.empties), ()
        case ReloadDue():
            return _start(life, life.command)
        case CommandGiven(command):
            return _start(life, command) if command.name == "start" else _wait(life, command)
        case CommandDue():
            return _send(life)
        case CommandExecuted():
            return _continue(life, event)
        case ReadingDue():
            if life.phase is not LoadPhase.DUE:
                return life, ()
            return replace(life, phase=LoadPhase.READING), (BeginReading(life.progress),)
        case TopicEmptied():
            return _execute_start(life)
        case LoadEnded():
            return LoadLife(recreated=life.recreated), ()


def _stop(life: LoadLife) -> tuple[LoadAction, ...]:
    return (StopReading(),) if life.phase is LoadPhase.READING else ()


def _start(life: LoadLife, command: LoadCommand | None) -> Step:
    """Load from the beginning. The truncate executes the command."""
    command = command and replace(command, name="start")
    return LoadLife(LoadPhase.DUE, RELOAD, empties=True, command=command), _stop(life)


def _wait(life: LoadLife, command: LoadCommand) -> Step:
    """Stop reading until the command is executed."""
    stopped = LoadPhase.STOPPED if life.in_backfill else LoadPhase.NONE
    return replace(life, phase=stopped, command=command, sent=False), _stop(life)


def _send(life: LoadLife) -> Step:
    if life.command is None or not life.has_command:
        return life, ()
    return replace(life, sent=True), (ExecuteCommand(life.command, reload=life.empties),)


def _continue(life: LoadLife, done: CommandExecuted) -> Step:
    """Continue as the command says, unless a later command was given meanwhile."""
    command = life.command
    if command is None or not life.sent or command.number != done.number:
        return life, ()
    life = replace(life, progress=done.progress, command=None, sent=False)
    if done.state == "ready":  # cancelled, or it had ended before the command came
        return LoadLife(recreated=life.recreated), ()
    report = (ReportDelayedRows(),) if command.name == "cancel" else ()
    return replace(life, phase=LoadPhase.STOPPED if done.state == "paused" else LoadPhase.DUE), report


def _execute_start(life: LoadLife) -> Step:
    emptied = replace(life, empties=False)
    if life.command is None or life.command.name != "start":
        return emptied, ()
    return replace(emptied, command=None), (ExecuteStart(life.command.number),)


def blocking(
    holders: Mapping[str, tuple[int, str]],
    at_beginning: frozenset[str] | None,
    *,
    resumed: bool,
    delivered: Collection[tuple[int, str]],
) -> frozenset[str]:
    """Return the lock holders that the barrier waits for, before a session's first chunk.

    A snapshot must see two kinds of changes. Nobody remembers the keys of changes that an earlier
    session published, or that came before the topic was emptied. And the stream does not bring
    changes from before the table joined the publication. The transaction of such a change holds a
    lock on the table until a snapshot sees the change.

    `holders` has the xid and gid of those that hold a lock now; `at_beginning` those that held one
    when the barrier began, None at its first check. Behind an earlier session's barrier (`resumed`)
    a prepared transaction that the stream has brought again is not waited for.

    A restart of the server renames a prepared transaction: such a name begins with `-1/`. Which one
    it was is not known, so all of them are waited for.
    """
    renamed = {name for name in holders if name.startswith("-1/")}
    waited_for = holders.keys() if at_beginning is None else holders.keys() & at_beginning | renamed
    return frozenset(name for name in waited_for if not (resumed and holders[name] in delivered))
