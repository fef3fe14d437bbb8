"""The clock of the run: when a staged transaction must be opened, an open one parked, and an idle position brought up to date.

The bridge knows no time; this turns time into its events. Deadlines are monotonic. Of a transaction whose outcome was read there is nothing more to say; the bridge would ignore it, at the price of a step.
"""

from __future__ import annotations

import heapq
from collections import deque

from twofold.bridge.events import Event, IdleDue, OpenDue, ParkDue
from twofold.positions import PreparedIdentity

YOUNG_S = 0.01
"""Most outcomes follow their prepare at once: a Kafka transaction for each would cost more than all else that is done for it, and show nothing sooner."""


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
        self._young: deque[tuple[float, PreparedIdentity]] = deque()

    def staged(self, identity: PreparedIdentity, now: float) -> None:
        self._in_doubt.add(identity)
        self._young.append((now + min(YOUNG_S, self._open_within_s), identity))
        self._add(now + self._open_within_s, OpenDue(identity))

    def opened(self, identity: PreparedIdentity, now: float) -> None:
        self._add(now + self._hold_s, ParkDue(identity, f"open for {self._hold_s:g} s (prepared.hold)"))

    def ended(self, identity: PreparedIdentity) -> None:
        """Its outcome was read."""
        self._in_doubt.discard(identity)

    def _add(self, at: float, event: OpenDue | ParkDue) -> None:
        self._given += 1
        heapq.heappush(self._heap, (at, self._given, event))

    def young(self, now: float) -> frozenset[PreparedIdentity]:
        """Those without an outcome whose prepare was read a moment ago."""
        return frozenset(identity for until, identity in self._young if until > now and identity in self._in_doubt)

    def due(self, now: float, *, drained: bool) -> list[Event]:
        """The events whose time has come. `drained`: nothing waits to be read, so what is young no more is to be opened; otherwise that is asked when it is."""
        events: list[Event] = []
        while self._young and self._young[0][0] <= now:
            identity = self._young.popleft()[1]
            if drained and identity in self._in_doubt:
                events.append(OpenDue(identity))
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
        if self._young:
            first = min(first, self._young[0][0])
        return max(0.0, first - now)
