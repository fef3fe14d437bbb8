"""What a seed decides: the server's version, the connector's settings, and every fault with its
moment, victim and length.

Pure: the same seed gives the same plan on every machine. Faults run in lanes side by side (what
befalls the connectors, the servers, the network and the machine, requests that come late), one
after the other within a lane, so that each fault meets the others in ever new ways. How far the
lanes come depends on the machine, and so does the interleaving: a seed repeats the plan, not the
accident. `lanes` has the kinds.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from chaos.lanes import (
    ANYBODY,
    CALM_S,
    FAILPOINTS,
    FIRST_STORM_S,
    GAP_S,
    GROUP_LANES,
    LANES,
    NET_VICTIMS,
    OTHERS_S,
    SECONDS,
    STORM_S,
)

PROMOTABLE: Final = ("17", "18")
"""Versions of PostgreSQL whose slots survive a promotion."""
VERSIONS: Final = ("15", "16", "17", "18")
"""Of the databases of a group, in turn."""
MOMENTS: Final = {
    "added": 3, "produced": 3, "before-record": 3, "behind-record": 2, "before-end": 2, "idle": 2, "after": 2, "kill": 1, "failover": 1,
}  # fmt: skip
"""When a late request is delivered: those of `late.rules.Moment`, and after a kill or a failover.
"""
CUTS: Final = {"fin": 6, "rst": 6, "hold": 1}
"""What its client notices: its connection is closed, reset, or nothing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`gap` seconds after the one before it in its lane.

    `detail` is what its kind needs beside a number of the victim.
    """

    kind: str
    victim: int
    gap: float
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lateness:
    """The detail of a late request."""

    moment: str
    cut: str
    whose: str
    """How the transactional id goes on behind the prefix."""
    nth: int

    def __str__(self) -> str:
        return f"{self.moment}:{self.cut}:{self.whose}:{self.nth}"

    @classmethod
    def of(cls, detail: str) -> Lateness:
        moment, cut, whose, nth = detail.split(":")
        return cls(moment, cut, whose, int(nth))


@dataclass(frozen=True, slots=True)
class Settings:
    """What of the trial's surroundings the seed decides."""

    postgres: str | None
    """A version; None is this machine's own."""
    standby: bool
    """Whether the server has one that can be promoted."""
    streaming: str
    pool: int
    hold: float
    spool_memory: int
    chunk_rows: int
    partitions: int
    turn_rows: int
    clock: bool
    """Whether the connectors' clocks can be moved; not in every round, since they are slower then.
    """


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    settings: Settings
    pace: float = 1.0
    """How much longer than the gaps drawn it is between faults."""

    def faults(self, lane: str, kinds: Collection[str]) -> Iterator[Fault]:
        """Without end: the lane takes as many as its time allows."""
        rng = random.Random(f"{self.seed} {lane}")
        weights = {kind: weight for kind, weight in {**LANES, **GROUP_LANES}[lane].items() if kind in kinds}
        while weights:
            (kind,) = rng.choices(list(weights), list(weights.values()))
            yield Fault(
                kind,
                victim=rng.randrange(60),
                gap=round(rng.uniform(*GAP_S[lane]) * self.pace, 2),
                seconds=round(rng.uniform(*SECONDS.get(kind, OTHERS_S)), 2),
                detail=_detail(lane, kind, rng),
            )

    def reloads(self) -> Iterator[tuple[float, str, tuple[str, ...]]]:
        """Tables to be reloaded, how long after the one before, and what a person asks for.

        Half of the time further commands overlap with the first one. Nobody cancels, because the
        table would lack rows at each commit record.
        """
        rng = random.Random(f"{self.seed} reloads")
        while True:
            table = rng.choice(["register", "docs", "scratch", "bank_a", "shapes", "bulk", "notes"])
            more = rng.choices(["start", "pause", "resume"], k=rng.randint(1, 4)) if rng.random() < 0.5 else []
            yield rng.uniform(8, 25), table, ("start", *more)

    def storms(self, seconds: float) -> list[tuple[float, float]]:
        """When the storms of a group's round begin and end."""
        rng, begin, found = random.Random(f"{self.seed} storms"), 0.0, list[tuple[float, float]]()
        while begin < seconds:
            begin += rng.uniform(*(CALM_S if found else FIRST_STORM_S)) * self.pace
            found.append((begin, end := begin + rng.uniform(*STORM_S)))
            begin = end
        return found

    def group_reloads(self) -> Iterator[tuple[float, int, str]]:
        """Tables to be reloaded by their member's number, how long after the one before."""
        rng = random.Random(f"{self.seed} group reloads")
        while True:
            yield rng.uniform(15, 40), rng.randrange(60), rng.choice(["account", "part"])

    def pattern_changes(self) -> Iterator[float]:
        """How long after the one before, the first after the start."""
        rng = random.Random(f"{self.seed} pattern changes")
        while True:
            yield rng.uniform(25, 60)


def draw(seed: int, kinds: Collection[str], pace: float = 1.0) -> Plan:
    """Rounds with a standby to promote take a server whose slots survive it."""
    rng = random.Random(seed)
    version = rng.choice(PROMOTABLE) if "postgres-promote" in kinds and seed % 4 == 0 else None
    return Plan(seed, _settings(rng, seed, kinds, version, standby=version is not None), pace)


def draw_group(seed: int, kinds: Collection[str], databases: int) -> list[Settings]:
    """The settings of each database of a group. The last one that can has a standby to promote."""
    rng = random.Random(f"{seed} group")
    versions = [VERSIONS[n % len(VERSIONS)] for n in range(databases)]
    with_standby = [n for n, version in enumerate(versions) if version in PROMOTABLE][-1:]
    return [
        _settings(rng, seed, (), version, standby="postgres-promote" in kinds and n in with_standby)
        for n, version in enumerate(versions)
    ]


def _settings(rng: random.Random, seed: int, kinds: Collection[str], version: str | None, *, standby: bool) -> Settings:
    return Settings(
        postgres=version,
        standby=standby,
        streaming=rng.choice(["on", "on", "off"]),
        pool=rng.randint(1, 4),
        hold=rng.choice([0.5, 2.0, 5.0]),
        spool_memory=rng.choice([0, 100_000, 64 << 20]),
        chunk_rows=rng.choice([50, 300, 10_000]),
        partitions=rng.choice([1, 3, 6]),
        turn_rows=rng.choice([20, 500, 20_000]),
        clock="clock" in kinds and seed % 3 == 0,
    )


def _detail(lane: str, kind: str, rng: random.Random) -> str:
    match kind:
        case "failpoint":
            action = rng.choices(["kill", "error", "stop"], [6, 2, 1])[0]
            return f"{rng.choice(FAILPOINTS)}:{rng.choice([1, 1, 2, 3])}={action}"
        case "clock":
            return rng.choice(["-3600", "+3600", "-86400", "+30", "-5", "+31536000"])
        case "net-cut" | "net-freeze" | "net-halfopen" | "net-delay":
            return rng.choice(NET_VICTIMS.get(lane, ANYBODY))
        case _ if kind.startswith("late-"):
            whose = {"late main": "main$", "late main.2": "main.2$"}.get(lane, "prepared")
            moment, cut = (rng.choices(list(each), list(each.values()))[0] for each in (MOMENTS, CUTS))
            return str(Lateness(moment, cut, whose, rng.choice([1, 1, 2, 3])))
        case _:
            return ""
