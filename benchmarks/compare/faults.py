"""The one set of faults: every part is killed, and frozen as by a network that carries nothing; the
broker and the databases are restarted in order as well.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from compare.usage import family

GAP_S: Final = (4.0, 9.0)
AWAY_S: Final = (0.5, 4.0)
FROZEN_S: Final = (3.0, 8.0)
RESTARTED: Final = ("source", "destination", "broker")


class Part(Protocol):
    """A process that can be made to fail, and be started again with the data that it had."""

    @property
    def pid(self) -> int: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Fault:
    part: str
    how: str
    gap_s: float
    """Before it."""
    seconds: float

    def __str__(self) -> str:
        return f"{self.how} {self.part}"


def plan(seed: int, parts: Mapping[str, Part]) -> Iterator[Fault]:
    """Without end: every part is killed, then come the other faults, then all again, each time in
    another order.
    """
    rng = random.Random(seed)
    kills = [(part, "kill") for part in sorted(parts)]
    others = [(part, "freeze") for part in sorted(parts)]
    others += [(part, "restart") for part in RESTARTED if part in parts]
    while True:
        for part, how in (*rng.sample(kills, len(kills)), *rng.sample(others, len(others))):
            away_s = rng.uniform(*(FROZEN_S if how == "freeze" else AWAY_S))
            yield Fault(part, how, rng.uniform(*GAP_S), away_s)


def befall(fault: Fault, part: Part) -> float:
    """Return the time from which on the part may work again: its start belongs to the recovery."""
    if fault.how == "freeze":
        frozen = family(part.pid)
        _signal(frozen, signal.SIGSTOP)
        try:
            time.sleep(fault.seconds)
        finally:
            _signal(frozen, signal.SIGCONT)
        return time.monotonic()
    part.kill() if fault.how == "kill" else part.stop()
    time.sleep(fault.seconds)
    healed = time.monotonic()
    part.start()
    return healed


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
