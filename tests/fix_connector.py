"""Whole connectors against real servers: `connector(...)` makes a configuration for a fresh database and prefix, and runs `twofold init` and `twofold run` on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

import connector_ledger
from connector_topics import COMMITTED, Reader, Seen, Tail
from fix_stack import fresh_database, fresh_prefix
from twofold.config import load
from twofold.errors import TwofoldError
from twofold.runner.setup import initialise
from twofold.runner.supervisor import supervise

START_S = 150
"""How long a recovery may take on a machine that has other things to do."""


def wait_until(holds: Callable[[], Any], within_s: float = 30, what: str = "") -> Any:
    """Poll until it is true; returns what it was."""
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"did not come true within {within_s} s: {what or holds}"
        time.sleep(0.02)
    return found


class Running:
    """One process of `twofold run`."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})

    @property
    def dead(self) -> bool:
        return self.process.poll() is not None

    @property
    def asleep(self) -> bool:
        """Stopped by SIGSTOP."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    @property
    def threads(self) -> list[str]:
        """Their names; librdkafka's have some too."""
        names = []
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                names.append((thread / "comm").read_text().strip())
        return names

    @property
    def still(self) -> bool:
        """Dead or asleep."""
        return self.dead or self.asleep

    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, words: str, within_s: float = START_S) -> None:
        """Until its log has the words."""

        def spoken() -> bool:
            there = words in self.said()
            assert there or not self.dead, (
                f"ended with {self.process.returncode} before it said {words!r}: {self.said()}"
            )
            return there

        wait_until(spoken, within_s, f"{words!r} in {self.log}")

    def ended(self, within_s: float = START_S) -> int:
        """Its exit status; -9 if it was killed."""
        return self.process.wait(within_s)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, within_s: float = 20) -> None:
        """As an operator does."""
        self.process.terminate()
        assert self.process.wait(within_s) == 0, self.said()


class Installation:
    """A configuration with its database, topics and processes."""

    def __init__(
        self, folder: Path, name: str, conninfo: str, bootstrap: str, registry_url: str, options: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.prefix = name
        self.conninfo = conninfo
        self.reader = Reader(bootstrap, registry_url)
        self.file = folder / f"{name}.toml"
        self.runs: list[Running] = []
        self._started = 0
        self._endings = ExitStack()
        self.at_end = self._endings.callback
        parts: dict[str, dict[str, Any]] = {
            "source": {"dsn": conninfo, "tables": [f"public.{t}" for t in connector_ledger.TABLES]},
            "kafka": {"bootstrap": bootstrap, "partitions": 3, "replication": 1, "min_insync_replicas": 1},
            "registry": {"url": registry_url},
            "prepared": {"pool": 4},
            "turn": {"idle_progress": 0.5},
            "spool": {"folder": str(folder / "spool")},
            "status": {"listen": "127.0.0.1:0"},
        }
        self._parts = parts
        self.configure(options)

    def configure(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Set these beside what is set."""
        for part, settings in options.items():
            self._parts.setdefault(part, {}).update(settings)
        sections = (
            f"[{part}]\n" + "".join(f"{k} = {_toml(v)}\n" for k, v in s.items()) for part, s in self._parts.items()
        )
        self.file.write_text(f'name = "{self.prefix}"\n\n' + "\n".join(sections))

    def sql(self, *statements: str) -> None:
        """Each in a transaction of its own."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def ask(self, query: str) -> Any:
        """The one value that it gives."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            row = connection.execute(query).fetchone()
            return row[0] if row else None

    def prepare(self, gid: str, *statements: str) -> None:
        """A transaction that is prepared under the gid."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in ("BEGIN", *statements, f"PREPARE TRANSACTION '{gid}'"):
                connection.execute(statement)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "twofold", "-c", str(self.file), *arguments]

    def init(self, failpoint: str = "") -> subprocess.CompletedProcess[str]:
        """`twofold init`, whatever comes of it."""
        environment = {**os.environ, "TWOFOLD_FAILPOINT": failpoint}
        return subprocess.run(
            self.command("init"), capture_output=True, text=True, timeout=START_S, check=False, env=environment
        )

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """`twofold run` on a thread of this process: quicker where the process itself is not what is tried."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            run = executor.submit(supervise, load(self.file), stop)
            try:
                yield
            finally:
                stop.set()
                run.result(START_S)

    def refusal(self) -> TwofoldError:
        """Why `twofold run` ends by itself."""
        stop = threading.Event()
        impatience = threading.Timer(START_S, stop.set)
        impatience.start()
        try:
            supervise(load(self.file), stop)
        except TwofoldError as error:
            return error
        finally:
            impatience.cancel()
        raise AssertionError("it did not end")

    def start(self, failpoint: str = "", *options: str, ready: bool = True) -> Running:
        """`twofold run`; ready: it has recovered."""
        self._started += 1
        log = self.folder / f"{self.prefix}.{self._started}.log"
        run = Running(self.command("run", *options), log, {"TWOFOLD_FAILPOINT": failpoint})
        self.runs.append(run)
        if ready:
            run.wait_for("recovered:")
        return run

    def table(self, name: str) -> str:
        return f"{self.prefix}.public.{name}"

    def slot(self, column: str) -> Any:
        return self.ask(f"SELECT {column} FROM pg_replication_slots WHERE slot_name = '{self.prefix}'")

    def tail(self, *tables: str, isolation: str = COMMITTED) -> Tail:
        """Goes on reading the tables' topics."""
        tail = self.reader.tail([self.table(t) for t in tables], isolation)
        self.at_end(tail.close)
        return tail

    def read(self, table: str, isolation: str = COMMITTED) -> list[Seen]:
        return self.reader.read([self.table(table)], isolation)

    def records(self, topic: str) -> list[Any]:
        """The values of a topic of the bookkeeping."""
        return [s.value for s in self.reader.read([f"{self.prefix}.{topic}"])]

    def caught_up(self, within_s: float = 60) -> None:
        """Until everything that was committed before this call is committed in Kafka."""
        before = self.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
        self.sql(
            "INSERT INTO account VALUES (0, 0, 'a mark') ON CONFLICT (id) DO UPDATE SET version = account.version + 1"
        )
        tail = self.reader.tail([f"{self.prefix}.commits"])
        try:
            tail.wait_for(lambda s: s.value["applied_lsn"] > before, within_s, unless=self._all_dead)
        finally:
            tail.close()
        assert not self._all_dead(), f"ended with {self.runs[-1].process.returncode}: {self.runs[-1].said()}"

    def _all_dead(self) -> bool:
        return bool(self.runs) and all(run.dead for run in self.runs)

    def everything(self, within_s: float = 30) -> connector_ledger.Topics:
        """What a read_committed reader has, once every partition can be read to where the commit records say that it goes."""
        names = [t for t in self.reader.topics(self.prefix) if ".public." in t or t.endswith(".messages")]
        commits = self.reader.read([f"{self.prefix}.commits"])
        lasts = {(r["topic"], r["partition"]): r["last"] for s in commits for r in s.value["ranges"]}
        tail = self.reader.tail(names)
        try:
            tail.to_end(within_s)
            deadline = time.monotonic() + 20
            while behind := [p for p, last in lasts.items() if tail.ends[p] <= last]:
                assert time.monotonic() < deadline, f"committed and not visible: {behind}"
                tail.poll()
        finally:
            tail.close()
        rest = {name: self.reader.read([f"{self.prefix}.{name}"]) for name in ("progress", "prepared")}
        return connector_ledger.Topics(self.prefix, sorted(tail.seen, key=lambda s: s.place), commits, **rest)

    def check(self) -> connector_ledger.Topics:
        """Catch up, then compare everything with the ledger."""
        self.caught_up()
        topics = self.everything()
        with psycopg.connect(self.conninfo) as connection:
            ledger = connector_ledger.entries(connection)
            in_doubt = connection.execute("SELECT transaction::text::bigint FROM pg_prepared_xacts").fetchall()
        connector_ledger.compare(topics, ledger, in_doubt=[xid for (xid,) in in_doubt])
        return topics

    def close(self) -> None:
        """End what runs, and show what it said: pytest prints it if the test failed."""
        self.forget_runs()
        self._endings.close()

    def forget_runs(self) -> None:
        for run in self.runs:
            if not run.dead:
                run.signal(signal.SIGCONT)
                run.kill9()
            print(f"--- {run.log.name}: ended with {run.process.returncode}\n{run.said()}")
        self.runs.clear()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


@dataclass(frozen=True)
class Maker:
    """Makes Installations: `connector(prepared={"hold": 2})`."""

    folder: Path
    ending: ExitStack
    request: pytest.FixtureRequest

    def __call__(
        self,
        *,
        conninfo: str = "",
        kafka_server: Any = None,
        registry_server: Any = None,
        name: str = "",
        init: bool = True,
        **options: Any,
    ) -> Installation:
        """Each in a fresh database of the session's servers, unless others are given. `init=False` leaves the tables and `init` to the test."""
        value = self.request.getfixturevalue
        name = name or fresh_prefix()
        conninfo = conninfo or self.ending.enter_context(fresh_database(value("postgres"), f"db_{name}"))
        bootstrap, url = (kafka_server or value("kafka")).bootstrap, (registry_server or value("registry")).url
        made = Installation(self.folder, name, conninfo, bootstrap, url, options)
        self.ending.callback(made.close)
        if init:
            made.sql(connector_ledger.SCHEMA)
            initialise(load(made.file), print)
        return made


@pytest.fixture
def connector(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Maker]:
    with ExitStack() as ending:
        yield Maker(tmp_path, ending, request)


@pytest.fixture(scope="module")
def module_connector(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Maker]:
    """For Installations that a module's tests share."""
    with ExitStack() as ending:
        yield Maker(tmp_path_factory.mktemp("connector"), ending, request)
