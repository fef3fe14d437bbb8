"""Requests of the connectors' producers that reach their broker late: one is withheld at a front,
and delivered on its old connection when the one behind it has gone on. What is withheld, how its
client notices and when it is delivered is the plan's; a fault counts when the broker has answered
the late request.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from chaos.keeper import Keeper
from chaos.plan import Fault, Lateness
from chaos.proxy import Proxy
from late.frames import Api
from late.rules import Cut, Moment, Rule

HELD_S: Final = 4.0
"""How long a request that fits is waited for."""
GIVE_UP_S: Final = 12.0
"""A moment that does not come: past the time after which the connector gives up a call."""
TAKEN_OVER_S: Final = 30.0
AWAY_S: Final = 6.0
"""So long that the other connector takes over."""
_APIS: Final = {
    "commit": (Api.END_TXN, True),
    "abort": (Api.END_TXN, False),
    "partitions": (Api.ADD_PARTITIONS, None),
    "produce": (Api.PRODUCE, None),
    "init": (Api.INIT_PRODUCER_ID, None),
}


class LateRequests:
    """Of all connectors of one round. Several lanes may use it at once."""

    def __init__(self, proxy: Proxy, prefix: str, connectors: Sequence[Keeper], lives: Callable[[], int]) -> None:
        self._proxy = proxy
        self._prefix = prefix
        self._connectors = connectors
        self._lives = lives
        self._numbers = count(1)
        self._rules: dict[str, Rule] = {}
        self._lock = threading.Lock()

    def befall(self, fault: Fault, until: threading.Event) -> bool:
        """Return when the broker has answered the late request, or nothing is withheld."""
        wanted = Lateness.of(fault.detail)
        what = fault.kind.removeprefix("late-")
        name = f"{self._prefix} {fault.kind} {next(self._numbers)}"
        lives = self._lives()
        self._change(name, self._rule(name, what, wanted, fault))
        try:
            if what == "init":  # there is one at a recovery only
                self._kill_one(fault, 0.0)
            if not self._wait(lambda: self._counts(name).get("held", 0) > 0, HELD_S, until):
                return False
        finally:
            self._change(name, None)
        if wanted.moment in {"kill", "failover"}:
            self._kill_one(fault, AWAY_S if wanted.moment == "failover" else 0.0)
            self._wait(lambda: self._lives() > lives, TAKEN_OVER_S, until)
            until.wait(fault.seconds)
            self._proxy.release(name)
        elif not self._wait(lambda: self._is_over(name), 2 * GIVE_UP_S, until):
            self._proxy.release(name)
        return self._counts(name).get("late", 0) > 0

    def ends_inside(self) -> int:
        """So many late ends the broker took for the end of a later transaction.

        A client's defence keeps it at 0.
        """
        counts = self._proxy.counts().items()
        ends = tuple(f"{self._prefix} late-{what} " for what in ("commit", "abort"))
        return sum(each.get("accepted", 0) for name, each in counts if name.startswith(ends))

    def _rule(self, name: str, what: str, wanted: Lateness, fault: Fault) -> Rule:
        api, commit = _APIS[what]
        told = wanted.moment in {"kill", "failover"}
        return Rule(
            name=name,
            api=api,
            commit=commit,
            ids=rf"^{re.escape(self._prefix)}\.{wanted.whose}",
            cut=Cut(wanted.cut),
            moment=Moment.COMMAND if told else Moment(wanted.moment),
            every=1 + fault.victim % 3 if wanted.whose.startswith("main") else 1,
            most=1,
            nth=wanted.nth,
            seconds=fault.seconds,
            give_up=TAKEN_OVER_S + GIVE_UP_S if told else GIVE_UP_S,
        )

    def _kill_one(self, fault: Fault, away_s: float) -> None:
        """The one that works, which recovered last."""
        working = max(self._connectors, key=_last_recovery)
        working.send(signal.SIGKILL, away_s=away_s)

    def _change(self, name: str, rule: Rule | None) -> None:
        """All rules are given to the proxy together; it counts those again that are given again, so
        one that has withheld its request must be gone.
        """
        with self._lock:
            if rule is None:
                self._rules.pop(name)
            else:
                self._rules[name] = rule
            self._proxy.withhold(*self._rules.values())

    def _counts(self, name: str) -> dict[str, int]:
        return self._proxy.counts().get(name, {})

    def _is_over(self, name: str) -> bool:
        counts = self._counts(name)
        return any(counts.get(end, 0) for end in ("late", "gone", "silent"))

    @staticmethod
    def _wait(holds: Callable[[], bool], within_s: float, until: threading.Event) -> bool:
        """False: in vain, or the round is over."""
        for _ in range(int(within_s / 0.05)):
            if holds():
                return True
            if until.wait(0.05):
                return False
        return False


def _last_recovery(connector: Keeper) -> str:
    """When, as its log says; lines begin with their time."""
    lines = connector.log.read_text(errors="replace").splitlines() if connector.log.exists() else []
    return max((line for line in lines if " recovered: " in line), default="")
