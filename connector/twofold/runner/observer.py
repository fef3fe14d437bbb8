"""Whoever watches a connector from inside its process: what the runner tells, and when. `ops` makes metrics and the status page of it.

Calls come from the thread that reads, a few times a turn and never once a row; they must return at once and raise nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from twofold.bridge import Event, State, actions
from twofold.errors import TwofoldError


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """A table whose rows are being loaded."""

    table: str
    state: Literal["waiting for locks", "reading", "paused"]
    rows: int
    """Published so far, sessions before this one included."""
    estimate: int
    """How many the table may have; 0: not known."""
    per_second: float
    left_s: float | None
    """How long it will go on at that; None: not known."""


class Observer(Protocol):
    """What it may learn."""

    def recovering(self) -> None:
        """Recovery begins, at its first step."""

    def standing_by(self, why: str) -> None:
        """Another instance has the slot."""

    def recovered(self, state: State) -> None:
        """The slot is held and the stream is about to be read."""

    def turned(self) -> None:
        """The loop has come round."""

    def stepped(self, event: Event, decided: Sequence[actions.Action], state: State, at_us: int) -> None:
        """The bridge was told of `event` and decided; `state` is after it, `at_us` the source's time of the event if it has one."""

    def loading(self, backfills: tuple[BackfillProgress, ...]) -> None:
        """The tables in backfill, or how far they are, have changed."""

    def ended(self, error: TwofoldError, wait_s: float) -> None:
        """The run has ended; recovery begins after this time."""


class NullObserver:
    """Nobody watches."""

    def recovering(self) -> None: ...
    def standing_by(self, why: str) -> None: ...
    def recovered(self, state: State) -> None: ...
    def turned(self) -> None: ...
    def stepped(self, event: Event, decided: Sequence[actions.Action], state: State, at_us: int) -> None: ...
    def loading(self, backfills: tuple[BackfillProgress, ...]) -> None: ...
    def ended(self, error: TwofoldError, wait_s: float) -> None: ...
