"""One round: a database, a connector with a standby, clients, faults; then everything is healed,
settles, and is checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from chaos import workload
from chaos.faults import Faults
from chaos.ground import (
    PATIENCE_S,
    Database,
    Servers,
    ask_twofold,
    run_twofold,
    twofold_command,
    write_configuration,
)
from chaos.journal import Writer
from chaos.keeper import Keeper
from chaos.lanes import LANES
from chaos.mirror import MirrorJob
from chaos.plan import Plan, draw
from chaos.reading import avro, read_all
from chaos.soak import Samples

TESTS = Path(__file__).parents[1]
CLIENTS = 4
CAUGHT_UP_S = 120.0
"""After the last fault is healed, what was committed must be visible within this time."""
SAMPLE_S = 2.0
COMMANDS_GAP_S = 0.5
"""Between two commands about one table, of which each takes longer to start than that."""
SPOOL_BYTES = 64 << 20


@dataclass(slots=True)
class Result:
    """Of one round; a line of the results file."""

    seed: int
    seconds: float
    faults: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    records: int = 0
    events: int = 0
    commits: int = 0
    cuts: int = 0
    starts: int = 0
    caught_up_s: float = 0.0
    ends_inside: int = 0
    """Late ends that the broker took for the end of a later transaction."""
    violations: int = 0
    kinds: list[str] = field(default_factory=list)

    def line(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return (
            f"{sum(self.faults.values())} faults, {self.transactions} transactions, {self.events} events, {self.commits} commit records, {self.starts} starts,"
            f" {self.ends_inside} late ends accepted inside a later transaction, all there {self.caught_up_s} s after the last fault: {self.violations} violations {self.kinds or ''}"
        )


class Trial:
    """Made of a seed; `run` once."""

    def __init__(
        self, seed: int, seconds: float, kinds: Collection[str], servers: Servers, folder: Path, product: Path | None, say: Callable[[str], None], *, patience_s: float = CAUGHT_UP_S, pace: float = 1.0
    ) -> None:  # fmt: skip
        self.plan: Plan = draw(seed, kinds, pace)
        self.seconds = seconds
        self.kinds = kinds
        self.servers = servers
        self.folder = folder
        self.say = say
        self.patience_s = patience_s
        self.prefix = f"chaos{seed}_{os.getpid()}_{time.time_ns() % 1_000_000}"
        self.file = folder / "twofold.toml"
        self.journal = folder / "journal"
        self.environment = {"PYTHONUNBUFFERED": "1"}
        if product is not None:
            self.environment["PYTHONPATH"] = ":".join(
                str(product / part) for part in ("connector", "avro", "spark_jobs", "common", "reader")
            )
        self.violations: list[str] = []
        self.paused: set[str] = set()

    def run(self) -> Result:
        result = Result(self.plan.seed, self.seconds)
        self.folder.mkdir(parents=True)
        self.journal.mkdir()
        self.say(f"seed {self.plan.seed}: {self.plan.settings}")
        with ExitStack() as ending:
            database = Database(self.servers, self.folder, self.plan.settings, ending)
            seeding = Writer(self.journal / "seed.jsonl")
            workload.create(database.dsn, seeding)
            seeding.close()
            spool = self._spool(ending)
            write_configuration(self.file, self.prefix, spool, database.fronted_dsn, self.servers, self.plan.settings)
            with self.file.open("a") as file:
                file.write(workload.OUTBOX)
            run_twofold(self.file, "init", environment=self.environment)
            if self.plan.settings.standby:
                database.make_standby()
            connectors = [self._connector(name, ending) for name in ("one", "two")]
            mirror = self._mirror(ending)
            faults = Faults(
                servers=self.servers,
                databases={self.prefix: database},
                connectors=connectors,
                spark=mirror.keeper if mirror else None,
                spool=spool,
                clock=self.folder / "clock",
                say=self.say,
            )
            faults.wait_for_a_connector(CAUGHT_UP_S)
            told = self._under_load(database, faults, connectors)
            self.servers.heal()
            self._resume_all()
            workload.settle(database.dsn, self.plan.seed)
            result.caught_up_s = self._caught_up(database)
            tables = [*workload.KEYS, "bulk", "notes", "marks"]
            (self.journal / "source.json").write_text(json.dumps(workload.source_tables(database.dsn, tables)))
            for connector in [*connectors, *([mirror.keeper] if mirror else [])]:
                connector.close()
                self.violations += [f"gave up: {connector.name} ended with {status}: {words}" for status, words in connector.ended]  # fmt: skip
            result.ends_inside = faults.late.ends_inside()
            result.starts = sum(connector.starts for connector in connectors)
            checked = self._check()
            if mirror is not None:
                self._check_mirror(mirror, result)
        result.faults, result.told = dict(sorted(faults.done.items())), dict(told)
        for name in ("transactions", "records", "events", "commits", "kinds"):
            setattr(result, name, checked.get(name, getattr(result, name)))
        for violation in self.violations:
            self.say(f"!!! {violation}")
        result.kinds = sorted({*result.kinds, *(violation.partition(":")[0] for violation in self.violations)})
        result.violations = checked["violations"] + len(self.violations)
        return result

    def _connector(self, name: str, ending: ExitStack) -> Keeper:
        environment = dict(self.environment)
        clock = self.folder / "clock"
        if self.plan.settings.clock:
            clock.write_text("0")
            environment["CHAOS_CLOCK"] = str(clock)
            environment["PYTHONPATH"] = f"{Path(__file__).with_name('clock')}:{environment.get('PYTHONPATH', '')}"
        command = twofold_command(self.file, "run")
        keeper = Keeper(f"connector {name}", command, self.folder / f"{name}.log", environment)
        keeper.start()
        ending.callback(keeper.close)
        return keeper

    def _mirror(self, ending: ExitStack) -> MirrorJob | None:
        if not any(kind.startswith("spark") for kind in self.kinds):
            return None
        environment = {**self.environment, "PYTHONPATH": f"{self.environment.get('PYTHONPATH', '')}:{TESTS}"}
        job = MirrorJob(
            self.folder, self.servers.kafka.bootstrap, self.servers.registry_url, [self.prefix], environment
        )
        job.keeper.start()
        ending.callback(job.keeper.close)
        return job

    def _check_mirror(self, mirror: MirrorJob, result: Result) -> None:
        try:
            found, lines = mirror.check()
        except RuntimeError as error:
            self.violations.append(f"mirror: {error}")
            return
        result.cuts = found["cuts"]
        self.violations += lines

    def _spool(self, ending: ExitStack) -> Path:
        """A file system of its own that can be filled, where the machine lets us mount one."""
        spool = self.folder / "spool"
        spool.mkdir()
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SPOOL_BYTES}", "tmpfs", spool], capture_output=True, check=False
        )
        if made.returncode == 0:
            ending.callback(lambda: subprocess.run(["umount", "-l", spool], check=False))
        return spool

    def _under_load(self, database: Database, faults: Faults, connectors: list[Keeper]) -> Counter[str]:
        """Clients, faults and loads side by side, for as long as the round lasts."""
        over, no_more_faults = threading.Event(), threading.Event()
        clients = [
            workload.Client(number, self.plan.seed, lambda: database.dsn, self.journal, over)
            for number in range(CLIENTS)
        ]
        lanes = []
        for lane in LANES:
            drawn = self.plan.faults(lane, self.kinds)
            lanes.append(threading.Thread(target=faults.lane, args=(drawn, no_more_faults), daemon=True))
        lanes.append(threading.Thread(target=self._reload, args=(no_more_faults,), daemon=True))
        for thread in (*clients, *lanes):
            thread.start()
        samples, end = Samples(), time.monotonic() + self.seconds
        while not no_more_faults.wait(min(SAMPLE_S, max(0.0, end - time.monotonic()))) and time.monotonic() < end:
            for connector in connectors:
                samples.take(connector.pid)
        no_more_faults.set()
        for line in samples.plot():
            self.say(line)
        for thread in lanes:
            thread.join()
        over.set()
        for client in clients:
            client.join()
        for failure in (faults.failure, *(client.failure for client in clients)):
            if failure is not None:
                raise failure
        self.say(f"errors that clients met: {dict(sum((client.errors for client in clients), Counter()))}")
        return sum((client.told for client in clients), Counter())

    def _reload(self, until: threading.Event) -> None:
        """A person asks for tables to be reloaded; without an answer, not again.

        Commands of one table are given side by side, so that one may overtake another.
        """
        for gap, table, commands in self.plan.reloads():
            if until.wait(gap):
                return
            if "pause" in commands:
                self.paused.add(table)
            side_by_side = [threading.Thread(target=self._ask, args=(command, table)) for command in commands]
            for thread in side_by_side:
                thread.start()
                until.wait(COMMANDS_GAP_S)
            for thread in side_by_side:
                thread.join()
            self.say(f"asked to reload {table}: {', '.join(commands)}")

    def _ask(self, command: str, table: str) -> None:
        ask_twofold(
            self.file, "backfill", command, f"public.{table}", environment=self.environment, timeout_s=PATIENCE_S
        )

    def _resume_all(self) -> None:
        """No table stays paused, whichever command was the last that counted."""
        if self.paused:
            tables = [f"public.{table}" for table in sorted(self.paused)]
            run_twofold(self.file, "backfill", "resume", *tables, environment=self.environment)

    def _caught_up(self, database: Database) -> float:
        """Seconds until all that was committed is visible and no table is being loaded."""
        begun = time.monotonic()
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            assert row is not None
            connection.execute("INSERT INTO marks VALUES ('end')")
        writer = Writer(self.journal / "end.jsonl")
        writer.begun("end", None, [("marks", "c", {"id": "end"}, {"id": "end"})])
        writer.told("end", "committed")
        writer.close()
        decode = avro(self.servers.registry_url)
        while time.monotonic() < begun + self.patience_s:
            last = self._last_commit(decode)
            if last is not None and last["applied_lsn"] > row[0] and not last["backfilling"]:
                return round(time.monotonic() - begun, 1)
            time.sleep(0.3)
        self.violations.append(
            f"staleness: after {self.patience_s:.0f} s without faults the topics are not there yet (last commit record: {str(last)[:300]}); the connectors say:\n"
            + "\n".join("\n".join((self.folder / f"{n}.log").read_text(errors="replace").splitlines()[-8:]) for n in ("one", "two"))
        )  # fmt: skip
        return self.patience_s

    def _last_commit(self, decode: Any) -> Any:
        records = read_all(self.servers.kafka.bootstrap, decode, [f"{self.prefix}.commits"])
        return records[-1].value if records else None

    def _check(self) -> dict[str, Any]:
        """By the program that knows nothing of the product."""
        command = [
            sys.executable, "-m", "chaos.checker", "--bootstrap", self.servers.kafka.bootstrap, "--registry", self.servers.registry_url, "--prefix", self.prefix,
            "--journal", str(self.journal), "--keep", str(self.folder / "history.pickle"),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600 + self.seconds)
        lines = done.stdout.splitlines()
        for line in lines[:-1]:
            self.say(line)
        if not lines or not lines[-1].startswith("{"):
            raise RuntimeError(f"the checker failed: {done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(lines[-1])
        return found
