"""Runs a case: connectors side by side, late requests until there were enough, kill -9 behind them
if wanted; then everything is compared.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from late.cases import Case
from late.gaps import Gaps
from late.lane import Lane
from late.servers import Servers

LOOK_S: Final = 0.1
ROLL_S: Final = 10.0
"""Before the next broker of a rolling restart."""
_RECOVERED: Final = " recovered: "
_ENDED: Final = re.compile(r"the run has ended \((\w+):")


@dataclass(slots=True)
class Result:
    """Of one case."""

    case: str
    brokers: int
    kill: str
    seconds: float = 0.0
    committed: int = 0
    rolled_back: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each rule, as `late.withheld` counts."""
    kills: int = 0
    reaped: int = 0
    """Connections that brokers closed by themselves."""
    freezes: int = 0
    recoveries: int = 0
    """The first of each connector among them."""
    ended: dict[str, int] = field(default_factory=dict)
    """Why runs ended, by the names of errors."""
    found: dict[str, int] = field(default_factory=dict)
    longest_gap_s: float = 0.0
    """Between two commit records of a connector, as a read_committed consumer got them."""
    gave_up: list[str] = field(default_factory=list)
    """Connectors that ended by themselves, with their last words."""
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def violations(self) -> int:
        return sum(self.found.values()) + len(self.gave_up)

    @property
    def deliveries(self) -> int:
        """Of all rules; and brokers that were stopped."""
        return self.freezes + sum(map(delivered, self.counts.values()))

    def line(self) -> str:
        return json.dumps({**asdict(self), "deliveries": self.deliveries, "violations": self.violations})


class Laboratory:
    """The servers, and one case after the other on them."""

    def __init__(self, servers: Servers, folder: Path, say: Callable[[str], None]) -> None:
        self._servers = servers
        self._folder = folder
        self._say = say
        self._made = 0

    def run(self, case: Case, *, deliveries: int, lanes: int = 1, kill: str = "", longest_s: float = 0.0) -> Result:
        """Until each rule had so many deliveries, or the time is over."""
        result = Result(case.name, len(self._servers.kafka.cluster.nodes), kill)
        with ExitStack() as ending:
            chosen = self._lanes(case, lanes, ending)
            proxy = self._servers.kafka.proxy
            proxy.withhold(*(rule for lane in chosen for rule in case.rules_of(lane.prefix)))
            gaps = [Gaps(self._servers.kafka.bootstrap, f"{lane.prefix}.commits") for lane in chosen]
            for each in gaps:
                each.start()
            begun, reaped = time.monotonic(), proxy.reaped()
            _Disturbed(self._servers, case, chosen, kill, result).last(
                deliveries, longest_s or 20 + case.cost_s * deliveries / lanes
            )
            result.seconds = round(time.monotonic() - begun, 1)
            result.reaped = proxy.reaped() - reaped
            result.longest_gap_s = max(each.stop() for each in gaps)
            proxy.withhold()
            self._compare(chosen, result)
            result.counts = counts_of(self._servers, chosen)
        self._say(f"{case.name}: {result.deliveries} deliveries in {result.seconds} s, {result.violations} violations")
        return result

    def _lanes(self, case: Case, count: int, ending: ExitStack) -> list[Lane]:
        names = [f"late{os.getpid()}x{self._made + n}" for n in range(count)]
        self._made += count
        with ThreadPoolExecutor() as pool:
            lanes = list(pool.map(lambda name: Lane(name, self._servers, self._folder, case, ending), names))
            list(pool.map(Lane.start, lanes))
        return lanes

    @staticmethod
    def _compare(lanes: list[Lane], result: Result) -> None:
        with ThreadPoolExecutor() as pool:
            outcomes = list(pool.map(lambda lane: lane.clients.stop(), lanes))
            verdicts = list(pool.map(Lane.judge, lanes, outcomes))
        found: Counter[str] = Counter()
        for lane, outcome, verdict in zip(lanes, outcomes, verdicts, strict=True):
            result.committed += len(outcome.committed)
            result.rolled_back += len(outcome.rolled_back)
            found.update(verdict.counts())
            for name, some in verdict.examples().items():
                result.examples.setdefault(name, []).extend(f"{lane.prefix}: {each}" for each in some)
            result.gave_up += [f"{lane.prefix}: status {status}: {words}" for status, words in lane.keeper.ended]
        result.found = dict(found)
        result.recoveries = sum(lane.said().count(_RECOVERED) for lane in lanes)
        result.ended = dict(Counter(name for lane in lanes for name in _ENDED.findall(lane.said())))


class _Disturbed:
    """The time in which requests come late."""

    def __init__(self, servers: Servers, case: Case, lanes: list[Lane], kill: str, result: Result) -> None:
        self._servers = servers
        self._case = case
        self._lanes = lanes
        self._kill = kill
        self._result = result
        self._killed_at: defaultdict[str, int] = defaultdict(int)

    def last(self, deliveries: int, longest_s: float) -> None:
        """Return when there were so many, or the time is over."""
        end = time.monotonic() + longest_s
        disconnect_at = time.monotonic() + self._case.disconnects
        while time.monotonic() < end:
            if self._least() >= deliveries:
                return
            counts = self._servers.kafka.proxy.counts()
            for lane in self._lanes:
                self._tend(lane, counts)
            if self._case.disconnects and time.monotonic() > disconnect_at:
                self._disconnect()
                disconnect_at = time.monotonic() + self._case.disconnects
            if self._case.freezes:
                self._freeze()
            if self._case.rolling:
                self._roll()
                return
            time.sleep(LOOK_S)

    def _least(self) -> int:
        """Deliveries of the rule that has fewest."""
        self._result.counts = counts_of(self._servers, self._lanes)
        if not self._case.rules:
            return self._result.deliveries
        return min(delivered(self._result.counts.get(rule.name, {})) for rule in self._case.rules)

    def _tend(self, lane: Lane, counts: dict[str, dict[str, int]]) -> None:
        """kill -9 behind what was withheld, or behind what arrived late; and what would wait long
        is restarted.
        """
        number = sum(each.get(self._kill, 0) for name, each in counts.items() if name.startswith(f"{lane.prefix} "))
        kills = self._kill and number > self._killed_at[lane.prefix]
        if kills or lane.waits_long():
            self._result.kills += lane.keeper.send(signal.SIGKILL)
        self._killed_at[lane.prefix] = number

    def _disconnect(self) -> None:
        with psycopg.connect(self._servers.postgres.dsn(), autocommit=True) as session:
            session.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")

    def _freeze(self) -> None:
        nodes = self._servers.kafka.cluster.nodes
        pid = nodes[self._result.freezes % len(nodes)].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._case.freezes)
        os.kill(pid, signal.SIGCONT)
        self._result.freezes += 1
        time.sleep(self._case.freezes / 2)

    def _roll(self) -> None:
        time.sleep(ROLL_S)
        for number in range(len(self._servers.kafka.cluster.nodes)):
            self._servers.kafka.cluster.restart(number)
            time.sleep(ROLL_S)


def delivered(counts: dict[str, int]) -> int:
    """Of one rule: requests that came late, and answers that were lost."""
    return counts.get("late", 0) + counts.get("lost", 0)


def counts_of(servers: Servers, lanes: list[Lane]) -> dict[str, dict[str, int]]:
    """Of all lanes together, by the rules' own names."""
    together: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, each in servers.kafka.proxy.counts().items():
        prefix, _, rule = name.partition(" ")
        if any(prefix == lane.prefix for lane in lanes):
            together[rule].update(each)
    return {name: dict(sorted(each.items())) for name, each in together.items()}


def totals(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Of many results: deliveries of each case, and what was found."""
    deliveries: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for each in results:
        name = each["case"] + (f" kill={each['kill']}" if each["kill"] else "") + f" brokers={each['brokers']}"
        deliveries[name] += each["deliveries"]
        accepted[name] += sum(counts.get("accepted", 0) for counts in each["counts"].values())
        found.update(each["found"])
        found["gave_up"] += len(each["gave_up"])
    return {
        "deliveries": dict(deliveries), "accepted": dict(accepted), "found": dict(found), "violations": sum(found.values()),
    }  # fmt: skip
