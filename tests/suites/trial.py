"""One trial: servers, the schedule, a connector for the stream or for the load, and what the
comparison says.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fixtures.connector import START_S, Installation
from suites.archive import Suite
from suites.comparing import Verdict, compare
from suites.folding import fold
from suites.keeper import Keeper
from suites.schedule import Ran, Schedule
from suites.topics import Topics

CATCH_UP_S = 900
LOAD_S = 900


STREAMS_EARLY: Final = {"logical_decoding_work_mem": "64kB"}
"""A setting of PostgreSQL: transactions of some hundred rows are sent before they end."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where everything is."""

    dsn: str
    bootstrap: str
    registry: str


@dataclass
class Outcome:
    """What one connector made of the suite."""

    verdicts: Sequence[Verdict]
    records: int
    refusals: Counter[str] = field(default_factory=Counter)
    """By the words of docs/reference/refusals.md; each was repaired as it says."""
    seconds: float = 0

    @property
    def different(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.state == "different"]

    def states(self) -> dict[str, int]:
        return dict(Counter(verdict.state for verdict in self.verdicts))


class Trial:
    """The schedule's files, with one connector beside them and one that loads what they have
    left.
    """

    def __init__(
        self, suite: Suite, servers: Servers, folder: Path, prefix: str, *, reloads: bool = True, told: bool = False
    ) -> None:
        """`reloads`: stale tables are reloaded, or else named. `told`: with event triggers."""
        self._servers = servers
        self._source = {
            "tables": ["*"],
            "reload_up_to": 1_000_000 if reloads else 0,
            "ddl_messages": told,
        }
        self._folder = folder
        self._prefix = prefix
        self.schedule = Schedule(suite, servers.dsn, folder / "suite")
        self.schedule.prepare()

    def stream(self, files: Iterable[str], *, publishers: bool) -> tuple[Ran, Outcome]:
        """The files, while a connector carries what they do; compared once it has caught up.

        With `publishers` what the tests of logical replication do on their publisher comes behind
        them.
        """
        here = self._installation(f"{self._prefix}_stream")
        keeper = Keeper(here)
        try:
            keeper.start()
            ran = self.schedule.run(files, lambda _name: keeper.check())
            if publishers:
                ran.add(self.schedule.run_publishers(lambda _name: keeper.check()))
            begun = time.monotonic()
            keeper.catch_up(CATCH_UP_S)
            # Tables in which nothing has changed since they were made are met at a start at the
            # latest.
            keeper.start_again()
            here.until_loaded(LOAD_S, keeper.check)
            keeper.catch_up(CATCH_UP_S)
            keeper.stop()
            outcome = self._outcome(here)
        finally:
            keeper.close()
        outcome.refusals, outcome.seconds = keeper.refusals, time.monotonic() - begun
        return ran, outcome

    def load(self) -> Outcome:
        """All tables as they are now, loaded by a connector of its own."""
        here = self._installation(f"{self._prefix}_load")
        keeper, begun = Keeper(here), time.monotonic()
        try:
            keeper.start()
            here.until_loaded(LOAD_S, keeper.check)
            keeper.stop()
            outcome = self._outcome(here)
        finally:
            keeper.close()
        outcome.refusals, outcome.seconds = keeper.refusals, time.monotonic() - begun
        return outcome

    def _installation(self, prefix: str) -> Installation:
        options = {
            "source": self._source,
            "kafka": {"partitions": 1},
            "backfill": {"notice": 1},
            "spool": {"folder": str(self._folder / "spool")},
        }
        here = Installation(
            self._folder, prefix, self.schedule.dsn, self._servers.bootstrap, self._servers.registry, options
        )
        here.twofold("init", ok=True)
        return here

    def _outcome(self, here: Installation) -> Outcome:
        topics = Topics(self._servers.bootstrap, self._servers.registry, here.prefix)
        folded = fold(topics.records())
        verdicts = compare(self.schedule.dsn, here.prefix, folded)
        if not self._source["reload_up_to"]:
            named = _named_as_stale(here)
            verdicts = [
                replace(each, state="named", words=named[each.table])
                if each.state == "different" and each.table in named
                else each
                for each in verdicts
            ]
        return Outcome(verdicts, sum(each.operations.total() for each in folded.values()))


def _named_as_stale(here: Installation) -> dict[str, str]:
    """The tables that the connector names as stale, with its reasons."""
    asked = subprocess.run(
        here.command("status", "--json"), capture_output=True, text=True, timeout=START_S, check=True
    )
    return {each["table"]: each["reason"] for each in json.loads(asked.stdout)["stale"]}
