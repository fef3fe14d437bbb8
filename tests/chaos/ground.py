"""The servers of a trial, each behind a front: three brokers, a registry, and PostgreSQL with, in
some rounds, a standby to promote. A group of sources has several databases, and one broker.

Brokers and registry serve all rounds of a run; PostgreSQL is a round's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from chaos.plan import PROMOTABLE, Settings
from chaos.proxy import Proxy
from helpers.source.standby import SLOT, standby_of
from twofold.stack import KafkaCluster, PostgresServer, RegistryServer
from twofold.stack.local import fetch_all
from twofold.stack.postgres import find_binaries
from twofold.stack.process import choose_port
from twofold.stack.server_files import server_user

DATABASE = "shop"
POSTGRES_SETTINGS = {
    "logical_decoding_work_mem": "64kB",
    "wal_sender_timeout": "6s",
    "max_connections": "60",
    "deadlock_timeout": "200ms",
    "checkpoint_timeout": "30s",
}
BROKER_SETTINGS = {"replica.lag.time.max.ms": "5000", "num.partitions": "1", "delete.topic.enable": "true"}
BROKERS = 3
SERVER_AWAY = 4
"""With this status a command ends if a server did not answer in time."""
PATIENCE_S = 120.0
PAUSE_S = 0.5
"""Between two tries: a command may end at once while a server is away."""


class Servers:
    """Brokers, registry and the fronts."""

    def __init__(self, folder: Path, ending: ExitStack, *, databases: int = 1, brokers: int = BROKERS) -> None:
        self.folder = folder
        ports = [choose_port(None, "a front") for _ in range(brokers + 1 + databases)]
        self.broker_fronts, self.registry_front = ports[:brokers], ports[brokers]
        self.postgres_fronts = ports[brokers + 1 :]
        self.kafka = KafkaCluster(
            folder / "kafka", brokers=brokers, fronts=self.broker_fronts, settings=BROKER_SETTINGS
        )
        self.registry = RegistryServer(folder / "registry")
        behind = dict(zip(self.broker_fronts, (node.port for node in self.kafka.nodes), strict=True))
        behind |= {self.registry_front: self.registry.port, **dict.fromkeys(self.postgres_fronts, 1)}
        self.proxy = Proxy(behind, kafka=self.broker_fronts, events=folder / "late.jsonl")
        ending.callback(self.proxy.close)
        ending.callback(self.kafka.stop)
        ending.callback(self.registry.stop)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.start(), (self.kafka, self.registry)))

    @property
    def registry_url(self) -> str:
        """Behind its front."""
        return RegistryServer.address(self.registry_front)

    def fronts(self, whose: str, victim: int) -> list[int]:
        match whose:
            case "broker":
                return [self.broker_fronts[victim % len(self.broker_fronts)]]
            case "brokers":
                return self.broker_fronts
            case "registry":
                return [self.registry_front]
            case _:
                return [self.postgres_fronts[victim % len(self.postgres_fronts)]]

    def heal(self) -> None:
        for front in (*self.broker_fronts, self.registry_front, *self.postgres_fronts):
            self.proxy.set(front, "heal")


class Database:
    """A round's PostgreSQL, or that of one source of a group by its number.

    Clients ask `dsn` for the server that is the primary now; the connector knows its front alone.
    """

    def __init__(
        self, servers: Servers, folder: Path, settings: Settings, ending: ExitStack, *, number: int = 0
    ) -> None:
        self._servers = servers
        self._front = servers.postgres_fronts[number]
        self._folder = folder
        self._ending = ending
        self.standby: PostgresServer | None = None
        more = {"synchronized_standby_slots": SLOT} if settings.standby else {}
        self.primary = PostgresServer(
            folder / "postgres", version=settings.postgres, settings={**POSTGRES_SETTINGS, **more}
        )
        ending.callback(self.primary.stop)
        self.primary.start()
        with psycopg.connect(self.primary.dsn(), autocommit=True) as session:
            session.execute(f"CREATE DATABASE {DATABASE}")
        self._point()

    def make_standby(self) -> None:
        """What is committed from here on is on it as well: a promotion loses nothing that a client
        was told.
        """
        self.standby = standby_of(self.primary, self._folder / "standby")
        self._ending.callback(self.standby.stop)
        with psycopg.connect(self.primary.dsn(), autocommit=True) as session:
            session.execute("ALTER SYSTEM SET synchronous_standby_names = 'walreceiver'")
            session.execute("SELECT pg_reload_conf()")

    def take_over(self) -> None:
        """The standby is the primary now."""
        assert self.standby is not None
        self.primary, self.standby = self.standby, None
        self._point()

    def _point(self) -> None:
        self._servers.proxy.set(self._front, "pass", target=self.primary.port)

    @property
    def dsn(self) -> str:
        return f"{self.primary.dsn(DATABASE)} connect_timeout=3"

    @property
    def fronted_dsn(self) -> str:
        return f"host=127.0.0.1 port={self._front} user=postgres dbname={DATABASE}"


def write_configuration(
    file: Path, prefix: str, spool: Path, dsn: str, servers: Servers, settings: Settings, **more: Mapping[str, Any]
) -> None:
    """The connector's, with limits so small that every path is taken; `more` adds settings by
    section.
    """
    parts: dict[str, Mapping[str, Any]] = {
        "source": {
            "dsn": dsn, "tables": ["public.*"], "streaming": settings.streaming, "failover": settings.standby,
        },
        "kafka": {
            "bootstrap": servers.kafka.bootstrap, "partitions": settings.partitions, "transaction_timeout": 8, "call_timeout": 10,
        },
        "registry": {"url": servers.registry_url, "timeout": 5},
        "prepared": {"pool": settings.pool, "hold": settings.hold},
        "turn": {"idle_progress": 1, "rows": settings.turn_rows},
        "spool": {"folder": str(spool), "memory": settings.spool_memory},
        "backfill": {"chunk_rows": settings.chunk_rows},
        "status": {"listen": "127.0.0.1:0"},
    }  # fmt: skip
    lines = [f'name = "{prefix}"']
    for part in {**parts, **more}:
        values = {**parts.get(part, {}), **more.get(part, {})}
        lines += [f"[{part}]", *(f"{name} = {_toml(value)}" for name, value in values.items())]
    written = file.with_suffix(".new")
    written.write_text("\n".join(lines) + "\n")
    written.replace(file)  # a connector may start meanwhile


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return str(value)


def run_twofold(file: Path, *arguments: str, environment: Mapping[str, str]) -> None:
    """Run a command, and again while a server is away, as a person would: servers that just started
    may be silent for seconds. RuntimeError with its words if it fails, or does not end in time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            done = subprocess.run(
                twofold_command(file, *arguments), capture_output=True, text=True, check=False, timeout=PATIENCE_S, env={**os.environ, **environment}
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            words = b"".join(each or b"" for each in (late.stdout, late.stderr)).decode(errors="replace")
            raise RuntimeError(f"twofold {' '.join(arguments)} did not end in {PATIENCE_S:.0f} s: {words}") from late
        if done.returncode == 0:
            return
        if done.returncode != SERVER_AWAY or time.monotonic() > deadline:
            raise RuntimeError(f"twofold {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        time.sleep(PAUSE_S)


def ask_twofold(file: Path, *arguments: str, environment: Mapping[str, str], timeout_s: float) -> None:
    """Run a command that may fail, or not end in time: its servers have faults."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            twofold_command(file, *arguments), capture_output=True, check=False, timeout=timeout_s, env={**os.environ, **environment}
        )  # fmt: skip


def twofold_command(file: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "twofold", "-c", str(file), *arguments]


def download(kinds: Collection[str]) -> None:
    """All that rounds of these kinds start, for who will not reach a registry later."""
    fetch_all()
    if "postgres-promote" in kinds:
        for version in PROMOTABLE:
            find_binaries(version, server_user())
    if any(kind.startswith("spark") for kind in kinds):
        subprocess.run([sys.executable, "-m", "twofold_spark", "jars"], check=True, capture_output=True)


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
