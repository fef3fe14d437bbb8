"""One round of a group: databases with a connector each, one mirror, a coordinator, faults; then
all is healed and settles, and every global cut is checked.

The coordinator comes first. So members, and a table of the first one, join while branches are in
doubt across them. Two members found the group. One of them is made again, with other topics under
the same names, and the mirror begins in a new place. The others join it. Under the faults tables
are reloaded all the time, and the patterns of gids change.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import psycopg

from chaos.faults import ALWAYS, Faults, Storms
from chaos.ground import (
    Database,
    Servers,
    ask_twofold,
    run_twofold,
    twofold_command,
    write_configuration,
)
from chaos.group import bank
from chaos.group.checker_process import CheckerProcess
from chaos.keeper import Keeper
from chaos.lanes import GROUP_LANES, THE_MIRROR
from chaos.mirror import MirrorJob
from chaos.plan import VERSIONS, Settings, draw, draw_group
from fixtures.stack import delete_topics, list_topics
from twofold.stack import PostgresServer

TESTS: Final = Path(__file__).parents[2]
READY_S: Final = 600.0
DECISIONS: Final = 15
"""So many transfers are decided before anybody joins."""
ASKED_S: Final = 20.0
"""A person who asks for a reload waits so long for the command."""
LATE_MAX_S: Final = 30.0
"""A branch comes behind another by so much at most; a quarter of a short round. An `init` waits
for what is prepared in its database, twice.
"""
FOUNDERS: Final = 2


@dataclass(slots=True)
class GroupResult:
    """Of one round; a line of the results file."""

    seed: int
    seconds: float
    databases: int
    sink: str = "iceberg"
    faults: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    published: int = 0
    """Global cuts."""
    cuts: int = 0
    """Those of them whose tables were read: some table was loaded in no member."""
    under_faults: int = 0
    """Those of these that were published while there were faults."""
    looks: int = 0
    """So many of these were read while they were the last one."""
    torn_without: int = 0
    """At so many commit records a reader of each source alone sees a transfer in part."""
    starts: int = 0
    violations: int = 0
    kinds: list[str] = field(default_factory=list)

    def line(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return (
            f"{sum(self.faults.values())} faults, {self.transactions} transactions, {self.starts} starts, {self.published} global cuts published, {self.cuts} read,"
            f" {self.under_faults} of these from under faults, {self.looks} read meanwhile; readers of each source alone see a transfer in part at {self.torn_without} commit records:"
            f" {self.violations} violations {self.kinds or ''}"
        )


class Source:
    """One database of the group, with its connector."""

    def __init__(
        self, prefix: str, folder: Path, database: Database, settings: Settings, environment: dict[str, str]
    ) -> None:
        self.prefix = prefix
        self.database = database
        self.settings = settings
        self.file = folder / "twofold.toml"
        self.own_gids = bank.OWN_GIDS[0]
        self._environment = environment
        self.connector = Keeper(
            f"connector {prefix}", twofold_command(self.file, "run"), folder / "connector.log", environment
        )

    def configure(self, servers: Servers, members: list[str], tables: str = "*") -> None:
        """`tables`: those that `init` publishes."""
        more: dict[str, dict[str, Any]] = {
            "source": {"tables": [f"public.{tables}"]},
            "kafka": {"replication": 1, "min_insync_replicas": 1},
            "group": {"name": "bank", "members": members},
            "prepared": {"gid_patterns": [self.own_gids]},
        }
        spool = self.file.with_name("spool")
        write_configuration(self.file, self.prefix, spool, self.database.fronted_dsn, servers, self.settings, **more)

    def twofold(self, *arguments: str) -> None:
        run_twofold(self.file, *arguments, environment=self._environment)

    def reload(self, table: str) -> None:
        """Ask for it, as a person who does not wait for long."""
        ask_twofold(self.file, "backfill", "start", f"public.{table}", environment=self._environment, timeout_s=ASKED_S)

    def publish(self, table: str) -> None:
        with psycopg.connect(self.database.dsn, autocommit=True) as session:
            session.execute(f"ALTER PUBLICATION {self.prefix} ADD TABLE {table}".encode())


class GroupTrial:
    """Made of a seed; `run` once."""

    def __init__(
        self, seed: int, seconds: float, kinds: Collection[str], servers: Servers, folder: Path, product: Path | None, say: Callable[[str], None], *, pace: float = 1.0, sink: str = "iceberg"
    ) -> None:  # fmt: skip
        self.plan = draw(seed, kinds, pace)
        self.settings = draw_group(seed, kinds, len(servers.postgres_fronts))
        self.seconds = seconds
        self.kinds = kinds
        self.servers = servers
        self.folder = folder
        self.say = say
        self.sink = sink
        self.environment = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(TESTS)}
        if product is not None:
            parts = [str(product / part) for part in ("connector", "avro", "spark_jobs", "common", "reader")]
            self.environment["PYTHONPATH"] = ":".join([*parts, str(TESTS)])
        tag = f"{os.getpid()}_{time.time_ns() % 1_000_000}"
        self.members = [f"chaos{seed}_{tag}_{n}" for n in range(len(self.settings))]
        self.violations: list[str] = []

    def run(self) -> GroupResult:
        result = GroupResult(self.plan.seed, self.seconds, len(self.members), self.sink)
        self.folder.mkdir(parents=True)
        with ExitStack() as ending:
            sources = self._sources(ending)
            coordinator = self._coordinator(sources)
            sink = ("--sink", self._place(ending))
            job = MirrorJob(self.folder, self.servers.kafka.bootstrap, self.servers.registry_url, self.members[:FOUNDERS], self.environment, *sink)  # fmt: skip
            faults = Faults(
                servers=self.servers,
                databases={source.prefix: source.database for source in sources},
                connectors=[source.connector for source in sources],
                spark=job.keeper,
                spool=self.folder / "spool",
                clock=self.folder / "clock",
                coordinator=coordinator,
                say=self.say,
            )
            self._start(sources, coordinator, job, ending)
            checker = ending.enter_context(
                CheckerProcess(self.folder, self.servers, self.members, job.lake, job.environment, *sink)
            )
            begun = time.time()
            self._under_faults(faults, sources)
            ended = time.time()
            coordinator.close()
            self._settle(sources)
            found = checker.end(begun, ended)
            keepers = [*(source.connector for source in sources), job.keeper, coordinator]
            for keeper in keepers:
                keeper.close()
                self.violations += [f"gave up: {keeper.name} ended with {status}: {words}" for status, words in keeper.ended]  # fmt: skip
        for line in (*found.pop("lines"), *(f"!!! {violation}" for violation in self.violations)):
            self.say(line)
        for name in ("transactions", "published", "cuts", "under_faults", "looks", "torn_without"):
            setattr(result, name, found[name])
        result.faults, result.starts = dict(sorted(faults.done.items())), sum(keeper.starts for keeper in keepers)
        result.violations = found["violations"] + len(self.violations)
        result.kinds = sorted({*found["kinds"], *(violation.partition(":")[0] for violation in self.violations)})
        return result

    def _place(self, ending: ExitStack) -> str:
        """What `--sink` is given. A database of the mirror has no faults of its own."""
        match self.sink:
            case "delta":
                return f"delta={self.folder / 'delta'}"
            case "jdbc":
                server = PostgresServer(self.folder / "mirrored", version=VERSIONS[-1])
                ending.callback(server.stop)
                server.start()
                return f"jdbc={server.dsn()}"
        return "iceberg"

    def _sources(self, ending: ExitStack) -> list[Source]:
        def make(number: int) -> Source:
            prefix, folder = self.members[number], self.folder / f"source{number}"
            folder.mkdir()
            database = Database(self.servers, folder, self.settings[number], ending, number=number)
            bank.create(database.dsn)
            return Source(prefix, folder, database, self.settings[number], self.environment)

        with ThreadPoolExecutor() as pool:
            return list(pool.map(make, range(len(self.members))))

    def _coordinator(self, sources: list[Source]) -> Keeper:
        command = self._coordinating(sources, "--late", str(min(LATE_MAX_S, self.seconds / 4)))
        return Keeper("coordinator", command, self.folder / "coordinator.log", self.environment)

    def _coordinating(self, sources: list[Source], *arguments: str) -> list[str]:
        log = str(self.folder / "decisions")
        dsns = [f"{source.database.fronted_dsn} connect_timeout=3" for source in sources]
        return [
            sys.executable, "-m", "chaos.group.coordinator", "--seed", str(self.plan.seed), "--log", log, *arguments, *dsns,
        ]  # fmt: skip

    def _start(self, sources: list[Source], coordinator: Keeper, job: MirrorJob, ending: ExitStack) -> None:
        """While the coordinator works, the founders join, one of them again, a table of the first,
        and the others.
        """
        coordinator.start()
        ending.callback(coordinator.close)
        self._wait_for_decisions()
        self._join(sources[:FOUNDERS], self.members[:FOUNDERS], ending)
        self._mirror_the_former_stream()
        self._make_again(sources[FOUNDERS - 1], sources[: FOUNDERS - 1])
        job.keeper.start()
        ending.callback(job.keeper.close)
        wait_for_words(job.keeper, "global cut ")
        sources[0].publish("part")
        if len(sources) > FOUNDERS:
            self._join(sources[FOUNDERS:], self.members, ending)
            for source in sources[:FOUNDERS]:
                source.configure(self.servers, self.members)
                source.connector.stop(0.0)
            job.restart_with(self.members)
            wait_for_words(job.keeper, "global cut ", self.members[-1])

    def _mirror_the_former_stream(self) -> None:
        """In a place that nobody reads any more: the founders' connectors then know each other."""
        folder = self.folder / "former"
        folder.mkdir()
        servers = self.servers.kafka.bootstrap, self.servers.registry_url
        former = MirrorJob(folder, *servers, self.members[:FOUNDERS], self.environment)
        former.keeper.start()
        try:
            wait_for_words(former.keeper, "global cut ")
        finally:
            former.keeper.close()

    def _make_again(self, source: Source, others: list[Source]) -> None:
        """A person starts a member over under its name, and restarts the others."""
        source.connector.stop(math.inf)
        source.twofold("reset", "--yes")
        bootstrap = self.servers.kafka.bootstrap
        delete_topics(bootstrap, source.prefix)
        source.connector.wait_for(lambda: not list_topics(bootstrap, source.prefix), 30)
        source.twofold("init")
        source.connector.recall()
        for other in others:
            other.connector.stop(0.0)

    def _join(self, joining: list[Source], members: list[str], ending: ExitStack) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda source: self._initialise(source, members), joining))
        for source in joining:
            source.connector.start()
            ending.callback(source.connector.close)
        for source in joining:
            wait_for_words(source.connector, " recovered: ")

    def _initialise(self, source: Source, members: list[str]) -> None:
        source.configure(self.servers, members, "account" if source.prefix == self.members[0] else "*")
        source.twofold("init")
        if source.settings.standby:
            source.database.make_standby()

    def _wait_for_decisions(self) -> None:
        log = self.folder / "decisions"
        deadline = time.monotonic() + READY_S
        while not log.exists() or len(log.read_text().splitlines()) < DECISIONS:
            if time.monotonic() > deadline:
                raise RuntimeError("the coordinator decides nothing")
            time.sleep(0.1)

    def _under_faults(self, faults: Faults, sources: list[Source]) -> None:
        over, storms = threading.Event(), Storms(self.plan.storms(self.seconds))
        lanes = [
            threading.Thread(
                target=faults.lane,
                args=(self.plan.faults(lane, self.kinds), over, ALWAYS if lane == THE_MIRROR else storms),
                daemon=True,
            )
            for lane in GROUP_LANES
        ]
        persons = self._reload, self._change_patterns
        lanes += [threading.Thread(target=person, args=(sources, over), daemon=True) for person in persons]
        for thread in lanes:
            thread.start()
        over.wait(self.seconds)
        over.set()
        for thread in lanes:
            thread.join()
        if faults.failure is not None:
            raise faults.failure
        self.servers.heal()

    def _reload(self, sources: list[Source], over: threading.Event) -> None:
        """A person asks for tables to be reloaded; without an answer, not again."""
        for gap, number, table in self.plan.group_reloads():
            if over.wait(gap):
                return
            source = sources[number % len(sources)]
            source.reload(table)
            self.say(f"asked to reload {table} of {source.prefix}")

    def _change_patterns(self, sources: list[Source], over: threading.Event) -> None:
        """A person has the same gids read by another pattern, and restarts every connector."""
        for gap, own_gids in zip(self.plan.pattern_changes(), cycle(reversed(bank.OWN_GIDS)), strict=False):
            if over.wait(gap):
                return
            for source in sources:
                source.own_gids = own_gids
                source.configure(self.servers, self.members)
                source.connector.send(signal.SIGTERM)
            self.say(f"gids are read by {own_gids}")

    def _settle(self, sources: list[Source]) -> None:
        """The coordinator recovers for the last time; what the databases hold then is final."""
        environment = {**os.environ, **self.environment}
        subprocess.run(self._coordinating(sources, "--settle"), check=True, timeout=READY_S, env=environment)
        tables = {source.prefix: bank.source_tables(source.database.dsn) for source in sources}
        (self.folder / "source.json").write_text(json.dumps(tables))


def wait_for_words(keeper: Keeper, *words: str) -> None:
    """Until a line of its log has these."""

    def said() -> bool:
        lines = keeper.log.read_text(errors="replace").splitlines() if keeper.log.exists() else []
        return any(all(word in line for word in words) for line in lines)

    if not keeper.wait_for(said, READY_S):
        raise RuntimeError(f"{keeper.name} does not say {' '.join(words)!r}: {keeper.log.read_text()[-2000:]}")
