"""The interface of an observer inside the connector's process: what a run reports, and when.
`watch` makes metrics and the status page from these calls.

Calls come a few times a turn, never once a row: `published` from the thread that speaks to Kafka,
all others from the thread that reads. Calls must return at once and raise nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from twofold.bridge import Event, State, actions
from twofold.errors import TwofoldError
from twofold_avro.records import Commit, Pin


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """A table whose rows are being loaded."""

    table: str
    state: Literal["waiting for locks", "reading", "paused"]
    rows: int
    """The rows published so far, in earlier sessions too."""
    estimate: int
    """The estimated number of rows; 0 if it is not known."""
    per_second: float
    left_s: float | None
    """The estimated time left; None if it is not known."""


class Observer:
    """The events that an observer receives. This one ignores them."""

    def recovering(self) -> None:
        """Recovery begins, at its first step."""

    def standing_by(self, why: str) -> None:
        """Another instance has the slot."""

    def recovered(self, state: State, stream_id: str = "") -> None:
        """The slot is held and the stream, which has this identity, is about to be read."""

    def tables_known(self, pins: Mapping[str, Pin]) -> None:
        """The tables that have a topic, by topic; called once a run, before the stream is read."""

    def published(self, commit: Commit | None, pins: Mapping[str, Pin]) -> None:
        """A Kafka transaction has committed: its commit record with ranges, and its pins."""

    def turned(self) -> None:
        """A turn has ended."""

    def stepped(self, event: Event, decided: Sequence[actions.Action], state: State, at_us: int) -> None:
        """The bridge decided on `event`; `state` is the one after it, `at_us` the event's time."""

    def loading(self, backfills: tuple[BackfillProgress, ...]) -> None:
        """The tables in backfill, or their progress, have changed."""

    def ended(self, error: TwofoldError, wait_s: float) -> None:
        """The run has ended; recovery begins after `wait_s`."""
