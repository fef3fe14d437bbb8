"""The cases of the laboratory: what comes late, or is lost, and when it arrives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from late.clients import Pace
from late.frames import Api
from late.rules import Cut, Moment, Rule

MIXED: Final = Pace()
MAIN, FIRST_MAIN, POOL = r"\.main(\.2)?$", r"\.main$", r"\.prepared\.\d+$"
PLAIN: Final = Pace(plain=0.05, preparers=0)
FAILS: Final = ",".join(
    f"{place}:{hits}=error"
    for place, hits in (
        ("after_produce", 4),
        ("before_commit_record", 8),
        ("after_commit_record", 12),
        ("before_commit", 16),
    )
)
"""The run ends with a group open, which is aborted; four times in a process's life."""
IN_DOUBT: Final = Pace(plain=0.3, preparers=5, in_doubt=(0.3, 1.2))


@dataclass(frozen=True, slots=True)
class Case:
    """`rules` are made for each connector: their `ids` get its prefix. Each has its own part of the
    deliveries.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    pace: Pace = MIXED
    failpoints: str = ""
    """Armed in each life of a connector."""
    disconnects: float = 0.0
    """So often, in seconds, PostgreSQL ends the connector's session: the run ends, and recovers."""
    freezes: float = 0.0
    """A broker is stopped (SIGSTOP) for so many seconds, again and again: longer than the client
    waits.
    """
    rolling: bool = False
    """Each broker is stopped in an orderly way and started again, one after the other, once."""
    cost_s: float = 4.0
    """What a delivery takes about, for the longest time that the case may take."""

    def rules_of(self, prefix: str) -> list[Rule]:
        return [replace(rule, name=f"{prefix} {rule.name}", ids=f"^{prefix}{rule.ids}") for rule in self.rules]


def _end(name: str, commit: bool | None, ids: str, moment: Moment, **more: object) -> Rule:
    return replace(Rule(name=name, api=Api.END_TXN, commit=commit, ids=ids, moment=moment, give_up=12.0), **more)  # type: ignore[arg-type]


def _case(rule: Rule, **more: object) -> Case:
    return replace(Case(rule.name, (rule,)), **more)  # type: ignore[arg-type]


_SLOW = tuple(
    _end(f"end {seconds} s", None, "", Moment.AFTER, seconds=seconds, cut=Cut.HOLD, every=every)
    for seconds, every in ((0.5, 3), (1.25, 2), (2.0, 1))
)
"""Each end takes one of three times, in turn."""
_APIS = {"add": Api.ADD_PARTITIONS, "produce": Api.PRODUCE, "init": Api.INIT_PRODUCER_ID, "end": Api.END_TXN}

CASES: Final = {
    each.name: each
    for each in (
        _case(_end("abort-pool", False, POOL, Moment.IDLE, seconds=0.05), pace=IN_DOUBT),
        _case(_end("commit-pool", True, POOL, Moment.IDLE, seconds=0.05), pace=IN_DOUBT),
        _case(_end("commit-main-rows", True, MAIN, Moment.PRODUCED)),
        _case(_end("commit-main-record", True, MAIN, Moment.BEFORE_RECORD)),
        _case(_end("abort-main", False, MAIN, Moment.PRODUCED), pace=PLAIN, failpoints=FAILS),
        _case(_end("commit-takeover", True, FIRST_MAIN, Moment.ADDED, first=True, every=2), disconnects=2.0),
        _case(_end("silent", True, "", Moment.AFTER, seconds=9.0, cut=Cut.HOLD, every=5), cost_s=12.0),
        *(
            Case(
                name,
                (
                    Rule(name=name, api=api, moment=Moment.ADDED, give_up=12.0, every=7),
                    Rule(name=f"{name}-any-time", api=api, moment=Moment.AFTER, seconds=0.5, every=7),
                ),
                disconnects=2.0 if name == "init" else 0.0,
            )
            for name, api in _APIS.items()
            if name != "end"
        ),
        Case(
            "answers",
            tuple(Rule(name=f"answer-{name}", api=api, cut=Cut.LOST, every=7) for name, api in _APIS.items()),
            disconnects=3.0,
        ),
        Case(
            "ends",
            (
                _end("abort-pool", False, POOL, Moment.IDLE, seconds=0.05, every=2),
                _end("commit-pool", True, POOL, Moment.IDLE, seconds=0.05),
                _end("commit-takeover", True, FIRST_MAIN, Moment.ADDED, first=True, every=3),
                _end("commit-main-rows", True, MAIN, Moment.PRODUCED, gap=6.0, every=2),
                _end("commit-main-record", True, MAIN, Moment.BEFORE_RECORD, gap=6.0),
            ),
            pace=IN_DOUBT,
            cost_s=100.0,
        ),
        Case("frozen-broker", freezes=11.0, cost_s=20.0),
        Case("slow-broker", _SLOW),
        Case("rolling", pace=Pace(preparers=2, bursts=500), rolling=True),
        Case("idle", pace=Pace(plain=15.0, preparers=1, in_doubt=(10.0, 30.0))),
        Case("quiet"),
    )
}
"""`slow-broker` lasts as long as it may.

In `idle` and `quiet` nothing befalls the connector but what the brokers' settings do: a recovery
there has no good reason.
"""
LATE: Final = [name for name, case in CASES.items() if name not in {"slow-broker", "rolling", "idle", "quiet"}]
"""Those that count deliveries."""
