"""The clock of the run: when a staged transaction must be opened, an open one parked, and an idle
position brought up to date.

The bridge knows no time; this module turns time into its events. Deadlines are monotonic. A
transaction whose outcome was read has no more events; the bridge would ignore them, at the price of
a step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from twofold.bridge.events import Event, IdleDue, OpenDue, ParkDue
from twofold.stream.gathered_run import OpeningDelay
from twofold_common.positions import PreparedIdentity

OPEN_AFTER_S = 0.01
"""No prepared transaction is opened before this time is over: most outcomes follow their prepare at
once.

A Kafka transaction for each would cost more than everything else that is done for it, and show
nothing sooner.
"""


class Timers:
    """Deadlines of one run, and nothing else of a transaction. The delay of a kind is constant, so
    each falls due in the order in which it was given.

    `in_doubt`: how many are in doubt, as the bridge has it.
    """

    def __init__(self, *, open_within_s: float, hold_s: float, idle_s: float, pool: int, now: float) -> None:
        self._delay = OpeningDelay(open_within_s, pool)
        self._hold_s = hold_s
        self._idle_s = idle_s
        self._idle_at = now + idle_s
        self._soonest: OrderedDict[PreparedIdentity, float] = OrderedDict()
        self._staged: OrderedDict[PreparedIdentity, float] = OrderedDict()
        self._opened: OrderedDict[PreparedIdentity, float] = OrderedDict()

    def staged(self, identity: PreparedIdentity, now: float, in_doubt: int) -> None:
        if self._delay.open_within_s > OPEN_AFTER_S and not self._delay.exceeds_pool(in_doubt):
            self._soonest[identity] = now + OPEN_AFTER_S
        self._staged[identity] = now

    def opened(self, identity: PreparedIdentity, begun: float) -> None:
        """Note when its Kafka transaction began."""
        self._opened[identity] = begun + self._hold_s

    def ended(self, identity: PreparedIdentity) -> None:
        """Note that its outcome was read."""
        for deadlines in (self._soonest, self._staged, self._opened):
            deadlines.pop(identity, None)

    def due(self, now: float, *, drained: bool, in_doubt: int) -> list[Event]:
        """Yield the events whose time has come.

        `drained`: nothing waits to be read, so a transaction is opened after `OPEN_AFTER_S`.
        """
        events: list[Event] = []
        if drained:
            events += map(OpenDue, self._past(self._soonest, now))
        events += map(OpenDue, self._past(self._staged, now - self._delay.wait_s(in_doubt)))
        held = f"open for {self._hold_s:g} s (prepared.hold)"
        events += (ParkDue(identity, held) for identity in self._past(self._opened, now))
        if now >= self._idle_at:
            self._idle_at = now + self._idle_s
            events.append(IdleDue())
        return events

    def wait_s(self, now: float, in_doubt: int) -> float:
        """Return the time until the next deadline."""
        kinds = ((self._soonest, 0.0), (self._staged, self._delay.wait_s(in_doubt)), (self._opened, 0.0))
        firsts = (next(iter(deadlines.values())) + more_s for deadlines, more_s in kinds if deadlines)
        return max(0.0, min([self._idle_at, *firsts]) - now)

    @staticmethod
    def _past(deadlines: OrderedDict[PreparedIdentity, float], now: float) -> Iterator[PreparedIdentity]:
        """Remove and yield those whose deadline is over."""
        while deadlines and next(iter(deadlines.values())) <= now:
            yield deadlines.popitem(last=False)[0]
