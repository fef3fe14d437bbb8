"""The clock of the run: when a staged transaction must be opened, an open one parked, and an idle
position brought up to date.

The bridge knows no time; this module turns time into its events. Deadlines are monotonic. A
transaction whose outcome was read has no more events; the bridge would ignore them, at the price of
a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from twofold.bridge.events import Event, IdleDue, OpenDue, ParkDue
from twofold_common.positions import PreparedIdentity

YOUNG_S = 0.01
"""Most outcomes follow their prepare at once.

A Kafka transaction for each would cost more than everything else that is done for it, and show
nothing sooner.
"""


class Timers:
    """Deadlines of one run. Each kind falls due in the order in which it was given.

    The delay of a kind is constant, except that transactions of a crowd may stay young until
    `open_within_s`. `pool`: if more are in doubt, there are not enough Kafka transactions for all;
    opening as many as possible, one after the other, would let all wait.
    """

    def __init__(self, *, open_within_s: float, hold_s: float, idle_s: float, pool: int, now: float) -> None:
        self._open_within_s = open_within_s
        self._hold_s = hold_s
        self._pool = pool
        self._idle_s = idle_s
        self._idle_at = now + idle_s
        self._in_doubt: set[PreparedIdentity] = set()
        self._young: deque[tuple[float, PreparedIdentity]] = deque()
        self._staged: deque[tuple[float, PreparedIdentity]] = deque()
        self._opened: deque[tuple[float, PreparedIdentity]] = deque()

    def staged(self, identity: PreparedIdentity, now: float) -> None:
        self._in_doubt.add(identity)
        crowded = len(self._in_doubt) > self._pool
        young_s = self._open_within_s if crowded else min(YOUNG_S, self._open_within_s)
        self._young.append((now + young_s, identity))
        self._staged.append((now + self._open_within_s, identity))

    def opened(self, identity: PreparedIdentity, begun: float) -> None:
        """Note when its Kafka transaction began."""
        self._opened.append((begun + self._hold_s, identity))

    def ended(self, identity: PreparedIdentity) -> None:
        """Note that its outcome was read."""
        self._in_doubt.discard(identity)

    def young(self, now: float) -> frozenset[PreparedIdentity]:
        """Return those without an outcome that must not be opened yet."""
        return frozenset(identity for until, identity in self._young if until > now and identity in self._in_doubt)

    def due(self, now: float, *, drained: bool) -> list[Event]:
        """Yield the events whose time has come.

        `drained`: nothing waits to be read, so transactions that are no longer young are opened.
        """
        events: list[Event] = []
        ripe = list(self._past(self._young, now))
        if drained:
            events += map(OpenDue, ripe)
        events += map(OpenDue, self._past(self._staged, now))
        held = f"open for {self._hold_s:g} s (prepared.hold)"
        events += (ParkDue(identity, held) for identity in self._past(self._opened, now))
        if now >= self._idle_at:
            self._idle_at = now + self._idle_s
            events.append(IdleDue())
        return events

    def wait_s(self, now: float) -> float:
        """Return the time until the next deadline."""
        firsts = (deadlines[0][0] for deadlines in (self._young, self._staged, self._opened) if deadlines)
        return max(0.0, min([self._idle_at, *firsts]) - now)

    def _past(self, deadlines: deque[tuple[float, PreparedIdentity]], now: float) -> Iterator[PreparedIdentity]:
        """Remove and yield those whose deadline is over, without those that have ended."""
        while deadlines and deadlines[0][0] <= now:
            identity = deadlines.popleft()[1]
            if identity in self._in_doubt:
                yield identity
