"""The values that the halves of a table's life exchange: actions of one are events of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twofold.lives.load_progress import LoadProgress

TopicState = Literal["ready", "waiting", "running", "paused"]
"""A pin's `backfill`."""
NO_COMMAND = -1
"""Below every command's number."""


@dataclass(frozen=True, slots=True)
class LoadCommand:
    """A person's command about a table."""

    number: int
    """The offset of its record. Later commands have greater ones."""
    name: str
    """start, pause, resume or cancel."""


@dataclass(frozen=True, slots=True)
class WatchTopic:
    """The table's existing rows are to be loaded: remember what the stream changes from here on."""

    keyless: bool
    reload: bool
    """The load begins with a truncate."""


@dataclass(frozen=True, slots=True)
class ExecuteCommand:
    """Carry a command out, in a Kafka transaction of its own."""

    command: LoadCommand
    reload: bool
    """A reload had begun, and its truncate is unpublished."""


@dataclass(frozen=True, slots=True)
class CommandExecuted:
    """A command is carried out, and committed in Kafka."""

    number: int
    state: TopicState
    progress: LoadProgress
