"""The interface of an observer inside the connector's process: what the runner reports, and when.
`ops` makes metrics and the status page of it.

The thread that reads calls it a few times a turn, never once a row. Calls must return at once and
raise nothing.
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
    """Published so far, earlier sessions included."""
    estimate: int
    """The estimated number of rows; 0 if it is not known."""
    per_second: float
    left_s: float | None
    """The estimated time left; None if it is not known."""


class Observer(Protocol):
    """The events that an observer receives."""

    def recovering(self) -> None:
        """Recovery begins, at its first step."""

    def standing_by(self, why: str) -> None:
        """Another instance has the slot."""

    def recovered(self, state: State) -> None:
        """The slot is held and the stream is about to be read."""

    def turned(self) -> None:
        """A turn has ended."""

    def stepped(self, event: Event, decided: Sequence[actions.Action], state: State, at_us: int) -> None:
        """The bridge decided on `event`; `state` is the state after it, `at_us` the source's time,
        if it has one.
        """

    def loading(self, backfills: tuple[BackfillProgress, ...]) -> None:
        """The tables in backfill, or their progress, have changed."""

    def ended(self, error: TwofoldError, wait_s: float) -> None:
        """The run has ended; recovery begins after this time."""


class NullObserver:
    """An observer that ignores everything."""

    def recovering(self) -> None: ...
    def standing_by(self, why: str) -> None: ...
    def recovered(self, state: State) -> None: ...
    def turned(self) -> None: ...
    def stepped(self, event: Event, decided: Sequence[actions.Action], state: State, at_us: int) -> None: ...
    def loading(self, backfills: tuple[BackfillProgress, ...]) -> None: ...
    def ended(self, error: TwofoldError, wait_s: float) -> None: ...
