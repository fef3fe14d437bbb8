"""What a seed decides: the server's version, the connector's settings, and every fault with its
moment, victim and length.

Pure: the same seed gives the same plan on every machine. Faults run in lanes side by side (what
befalls the connectors, the servers, the network and the machine, requests that come late), one
after the other within a lane, so that each fault meets the others in ever new ways. How far the
lanes come depends on the machine, and so does the interleaving: a seed repeats the plan, not the
accident.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

FAILPOINTS: Final = (
    "after_read", "after_decode", "after_staging", "after_begin", "after_produce", "after_flush", "before_commit_record", "after_commit_record", "before_commit", "after_commit",
    "before_feedback", "after_feedback", "before_open", "after_open", "before_abort", "after_abort", "after_start_replication", "fence_main", "fence_prepared", "after_takeover",
    "after_progress_read", "after_checks",
)  # fmt: skip

_OF_MAIN: Final = {"late-commit": 14, "late-partitions": 2, "late-produce": 2, "late-init": 2}
_OF_POOL: Final = {"late-commit": 7, "late-abort": 10, "late-partitions": 2, "late-produce": 2, "late-init": 2}
LANES: Final = {
    "connector": {
        "connector-kill": 5, "connector-pause": 2, "connector-outlasted": 1, "connector-stop": 2, "failpoint": 8,
    },
    "servers": {
        "broker-kill": 3, "broker-stop": 1, "broker-pause": 3, "postgres-kill": 2, "postgres-stop": 1, "postgres-pause": 2, "postgres-promote": 1,
        "registry-kill": 1, "registry-stop": 1, "registry-pause": 1, "spark-kill": 2, "spark-stop": 1, "spark-pause": 1,
    },
    "surroundings": {
        "net-cut": 4, "net-freeze": 3, "net-halfopen": 2, "net-delay": 3, "disk-full": 2, "clock": 2, "lost-packets": 3,
    },
    "coordinator": {"coordinator-kill": 3, "coordinator-pause": 1},
    "late main": _OF_MAIN, "late main.2": _OF_MAIN, "late pool": _OF_POOL, "late pool too": _OF_POOL,
}  # fmt: skip
"""Kinds of faults by lane, and how often each is drawn beside the others of its lane.
Late requests have four lanes, since of each producer one at a time is withheld."""

PROMOTABLE: Final = ("17", "18")
"""Versions of PostgreSQL whose slots survive a promotion."""
VERSIONS: Final = ("15", "16", "17", "18")
"""Of the databases of a group, in turn."""
KINDS: Final = frozenset(kind for name, lane in LANES.items() if name != "coordinator" for kind in lane)
GROUP_KINDS: Final = frozenset(
    kind for lane in ("connector", "servers", "surroundings", "coordinator") for kind in LANES[lane]
) - {"connector-outlasted", "failpoint", "disk-full", "clock", "lost-packets"}
"""What befalls the databases of a group. The others need a second connector of the same
configuration, or a machine that they change for all.
"""
GAP_S: Final = {
    "connector": (0.3, 4.0),
    "servers": (0.5, 5.0),
    "surroundings": (0.2, 3.0),
    "coordinator": (2.0, 12.0),
    "late main": (0.1, 1.0),
    "late main.2": (0.1, 1.0),
    "late pool": (0.1, 1.0),
    "late pool too": (0.1, 1.0),
}
"""From the end of a fault to the next of its lane."""

SECONDS: Final = {
    "connector-outlasted": (9.0, 12.0), "connector-pause": (0.2, 5.0), "connector-stop": (0.0, 1.5), "connector-kill": (0.0, 1.5), "failpoint": (0.0, 1.5),
    "clock": (1.0, 5.0), "disk-full": (1.0, 5.0), "net-delay": (2.0, 6.0), "lost-packets": (2.0, 13.0), "postgres-promote": (0.0, 0.0),
}  # fmt: skip
"""How long a fault lasts; a process that was killed stays away that long. Others: `OTHERS_S`."""
OTHERS_S: Final = (0.2, 4.0)

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
        weights = {kind: weight for kind, weight in LANES[lane].items() if kind in kinds}
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
        """Tables to be loaded anew, how long after the one before, and what a person asks for.

        Half of the time further commands overlap with the first one. Nobody cancels, because the
        table would lack rows at each commit record.
        """
        rng = random.Random(f"{self.seed} reloads")
        while True:
            table = rng.choice(["register", "docs", "scratch", "bank_a", "shapes", "bulk", "notes"])
            more = rng.choices(["start", "pause", "resume"], k=rng.randint(1, 4)) if rng.random() < 0.5 else []
            yield rng.uniform(8, 25), table, ("start", *more)


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
            return rng.choice(["broker", "broker", "brokers", "postgres", "postgres", "registry"])
        case _ if kind.startswith("late-"):
            whose = {"late main": "main$", "late main.2": "main.2$"}.get(lane, "prepared")
            moment, cut = (rng.choices(list(each), list(each.values()))[0] for each in (MOMENTS, CUTS))
            return str(Lateness(moment, cut, whose, rng.choice([1, 1, 2, 3])))
        case _:
            return ""
