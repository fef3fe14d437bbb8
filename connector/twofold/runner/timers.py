"""The clock of the run: when a staged transaction must be opened, an open one parked, and an idle position brought up to date.

The bridge knows no time; this turns time into its events. Deadlines are monotonic. Of a transaction whose outcome was read there is nothing more to say; the bridge would ignore it, at the price of a step.
"""

from __future__ import annotations

import heapq

from twofold.bridge.events import Event, IdleDue, OpenDue, ParkDue
from twofold.positions import PreparedIdentity


class Timers:
    """Deadlines of one run."""

    def __init__(self, *, open_within_s: float, hold_s: float, idle_s: float, now: float) -> None:
        self._open_within_s = open_within_s
        self._hold_s = hold_s
        self._idle_s = idle_s
        self._idle_at = now + idle_s
        self._heap: list[tuple[float, int, OpenDue | ParkDue]] = []
        self._given = 0
        self._in_doubt: set[PreparedIdentity] = set()

    def staged(self, identity: PreparedIdentity, now: float) -> None:
        self._in_doubt.add(identity)
        self._add(now + self._open_within_s, OpenDue(identity))

    def opened(self, identity: PreparedIdentity, now: float) -> None:
        self._add(now + self._hold_s, ParkDue(identity, f"open for {self._hold_s:g} s (prepared.hold)"))

    def ended(self, identity: PreparedIdentity) -> None:
        """Its outcome was read."""
        self._in_doubt.discard(identity)

    def _add(self, at: float, event: OpenDue | ParkDue) -> None:
        self._given += 1
        heapq.heappush(self._heap, (at, self._given, event))

    def due(self, now: float) -> list[Event]:
        """The events whose time has come."""
        events: list[Event] = []
        while self._heap and self._heap[0][0] <= now:
            event = heapq.heappop(self._heap)[2]
            if event.identity in self._in_doubt:
                events.append(event)
        if now >= self._idle_at:
            self._idle_at = now + self._idle_s
            events.append(IdleDue())
        return events

    def wait_s(self, now: float) -> float:
        """How long nothing falls due."""
        first = min(self._heap[0][0], self._idle_at) if self._heap else self._idle_at
        return max(0.0, first - now)
