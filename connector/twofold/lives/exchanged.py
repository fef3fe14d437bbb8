"""The values that the halves of a table's life exchange: an action of one half is an event of the
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twofold.lives.load_progress import LoadProgress

TopicState = Literal["ready", "waiting", "running", "paused"]
"""The field `backfill` of a pin."""
NO_COMMAND = -1
"""Stands for no command: below every command's number."""


@dataclass(frozen=True, slots=True)
class LoadCommand:
    """A person's command about a table."""

    number: int
    """The offset of the command's record. Later commands have greater offsets."""
    name: str
    """start, pause, resume or cancel."""


@dataclass(frozen=True, slots=True)
class WatchTopic:
    """The table's existing rows are to be loaded: remember the stream's changes from here on."""

    keyless: bool
    reload: bool
    """The load begins with a truncate."""


@dataclass(frozen=True, slots=True)
class ExecuteCommand:
    """Execute a command, in a Kafka transaction of its own."""

    command: LoadCommand
    reload: bool
    """A reload had begun, and its truncate is unpublished."""


@dataclass(frozen=True, slots=True)
class CommandExecuted:
    """A command is executed, and committed in Kafka."""

    number: int
    state: TopicState
    progress: LoadProgress
