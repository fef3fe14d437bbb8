"""One round of a group: databases with a connector each, one mirror, a coordinator, faults; then
all is healed and settles, and every global cut is checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.faults import Faults
from chaos.ground import Database, Servers, write_configuration
from chaos.group import bank
from chaos.group.checker_process import CheckerProcess
from chaos.keeper import Keeper
from chaos.lanes import GROUP_LANES
from chaos.mirror import MirrorJob
from chaos.plan import VERSIONS, Settings, draw, draw_group
from twofold.stack import PostgresServer

TESTS: Final = Path(__file__).parents[2]
READY_S: Final = 600.0
LATE_MAX_S: Final = 60.0
"""A branch comes behind another by so much at most; a quarter of a short round."""


@dataclass(slots=True)
class GroupResult:
    """Of one round; a line of the results file."""

    seed: int
    seconds: float
    databases: int
    sink: str = "iceberg"
    faults: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    cuts: int = 0
    """Global cuts whose tables were read."""
    under_faults: int = 0
    """Those of them that were published while there were faults."""
    looks: int = 0
    """So many of them were read while they were the last one."""
    torn_without: int = 0
    """At so many commit records a reader of each source alone sees a transfer in part."""
    wrong: int = 0
    """So many of the looks at mirrors of each source alone found that."""
    starts: int = 0
    violations: int = 0
    kinds: list[str] = field(default_factory=list)

    def line(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return (
            f"{sum(self.faults.values())} faults, {self.transactions} transactions, {self.starts} starts, {self.cuts} global cuts,"
            f" {self.under_faults} of them under faults, {self.looks} read meanwhile; readers of each source alone see a transfer in part at {self.torn_without} commit records:"
            f" {self.violations} violations {self.kinds or ''}"
        )


class Source:
    """One database of the group, with its connector."""

    def __init__(self, prefix: str, folder: Path, database: Database, environment: dict[str, str]) -> None:
        self.prefix = prefix
        self.database = database
        self.file = folder / "twofold.toml"
        self._command = [sys.executable, "-m", "twofold", "-c", str(self.file)]
        self._environment = environment
        self.connector = Keeper(f"connector {prefix}", [*self._command, "run"], folder / "connector.log", environment)

    def initialise(self, servers: Servers, settings: Settings, members: list[str]) -> None:
        bank.create(self.database.dsn)
        more: dict[str, dict[str, Any]] = {
            "kafka": {"replication": 1, "min_insync_replicas": 1},
            "group": {"name": "bank", "members": members},
            "prepared": {"gid_patterns": [bank.OWN_GIDS]},
        }
        spool = self.file.with_name("spool")
        write_configuration(self.file, self.prefix, spool, self.database.fronted_dsn, servers, settings, **more)
        environment = {**os.environ, **self._environment}
        subprocess.run([*self._command, "init"], check=True, capture_output=True, timeout=120, env=environment)


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
            parts = [str(product / part) for part in ("connector", "avro", "spark_jobs", "common")]
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
            job = MirrorJob(self.folder, self.servers.kafka.bootstrap, self.servers.registry_url, self.members, self.environment, *sink)  # fmt: skip
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
            self._start(sources, coordinator, job.keeper, ending)
            checker = ending.enter_context(
                CheckerProcess(self.folder, self.servers, self.members, job.lake, job.environment, *sink)
            )
            begun = time.time()
            self._under_faults(faults)
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
        for name in ("transactions", "cuts", "under_faults", "looks", "torn_without"):
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
            source = Source(prefix, folder, database, self.environment)
            source.initialise(self.servers, self.settings[number], self.members)
            if self.settings[number].standby:
                database.make_standby()
            return source

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

    @staticmethod
    def _start(sources: list[Source], coordinator: Keeper, mirror: Keeper, ending: ExitStack) -> None:
        """The coordinator begins when the mirror has published a global cut: before that there is
        nothing to disturb.
        """
        for source in sources:
            source.connector.start()
            ending.callback(source.connector.close)
        for source in sources:
            wait_for_words(source.connector, " recovered: ")
        mirror.start()
        ending.callback(mirror.close)
        wait_for_words(mirror, "global cut ")
        coordinator.start()
        ending.callback(coordinator.close)

    def _under_faults(self, faults: Faults) -> None:
        over = threading.Event()
        lanes = [
            threading.Thread(target=faults.lane, args=(self.plan.faults(lane, self.kinds), over), daemon=True)
            for lane in GROUP_LANES
        ]
        for thread in lanes:
            thread.start()
        over.wait(self.seconds)
        over.set()
        for thread in lanes:
            thread.join()
        if faults.failure is not None:
            raise faults.failure
        self.servers.heal()

    def _settle(self, sources: list[Source]) -> None:
        """The coordinator recovers for the last time; what the databases hold then is final."""
        environment = {**os.environ, **self.environment}
        subprocess.run(self._coordinating(sources, "--settle"), check=True, timeout=READY_S, env=environment)
        tables = {source.prefix: bank.source_tables(source.database.dsn) for source in sources}
        (self.folder / "source.json").write_text(json.dumps(tables))


def wait_for_words(keeper: Keeper, words: str) -> None:
    """Until its log says so."""

    def said() -> bool:
        return keeper.log.exists() and words in keeper.log.read_text(errors="replace")

    if not keeper.wait_for(said, READY_S):
        raise RuntimeError(f"{keeper.name} does not say {words!r}: {keeper.log.read_text()[-2000:]}")
