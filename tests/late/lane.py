"""A connector of the laboratory with its database, its clients and its topics; several run side by
side on one broker.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psycopg

from chaos.ends import read_ends
from chaos.keeper import Keeper
from chaos.reading import avro, read_all
from late.cases import Case
from late.clients import SCHEMA, TABLES, Clients, Outcomes, insert
from late.servers import Servers
from late.verdict import Verdict, judge

START_S: Final = 120.0
CAUGHT_UP_S: Final = 120.0
PATIENCE_S: Final = 1.5
"""A connector that would wait longer before its next recovery is restarted: a laboratory does not
wait.
"""
_WAITS = re.compile(rb"recovering in (\d+\.\d) s")
_CONFIGURATION: Final = """\
name = "{prefix}"
[source]
dsn = "{dsn}"
tables = ["public.*"]
[kafka]
bootstrap = "{bootstrap}"
partitions = 2
replication = {replication}
min_insync_replicas = {in_sync}
transaction_timeout = 12
call_timeout = 8
options = {{"reconnect.backoff.max.ms" = 200}}
[registry]
url = "{registry}"
[prepared]
pool = 4
hold = 6
[turn]
idle_progress = 1
[spool]
folder = "{spool}"
[status]
listen = "127.0.0.1:0"
"""


class Lane:
    """Made with its topics; `start` it, and `stop` it before it is judged."""

    def __init__(self, prefix: str, servers: Servers, folder: Path, case: Case, ending: ExitStack) -> None:
        self.prefix = prefix
        self._servers = servers
        self._folder = folder / prefix
        self._folder.mkdir(parents=True)
        self.log = self._folder / "connector.log"
        self._said = 0
        self._file = self._folder / "twofold.toml"
        self._decode = avro(servers.registry.url)
        with psycopg.connect(servers.postgres.dsn(), autocommit=True) as session:
            session.execute(f"CREATE DATABASE {prefix}")
        self.dsn = servers.postgres.dsn(prefix)
        with psycopg.connect(self.dsn, autocommit=True) as session:
            session.execute(SCHEMA)
        self._file.write_text(_configuration(prefix, servers, self._folder / "spool"))
        command = [sys.executable, "-m", "twofold", "-c", str(self._file)]
        subprocess.run([*command, "init"], check=True, capture_output=True, timeout=START_S)
        environment = {"PYTHONUNBUFFERED": "1", "TWOFOLD_FAILPOINT": case.failpoints}
        self.keeper = Keeper(prefix, [*command, "run"], self.log, environment)
        ending.callback(self._close)
        self.clients = Clients(self.dsn, case.pace, prefix)

    def start(self) -> None:
        """Return when the connector has recovered; its clients write."""
        self.keeper.start()
        if not self.keeper.wait_for(lambda: " recovered: " in self.said(), START_S):
            raise TimeoutError(f"it has not recovered: {self.log.read_text()[-3000:]}")
        self.clients.start()

    def said(self) -> str:
        """The connector's log, of all its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def waits_long(self) -> bool:
        """Whether what the log has said since the last call announces a long wait."""
        with self.log.open("rb") as file:
            file.seek(self._said)
            new = file.read()
        self._said += len(new)
        found: list[bytes] = _WAITS.findall(new)
        return bool(found) and float(found[-1]) > PATIENCE_S

    def judge(self, outcomes: Outcomes) -> Verdict:
        """Wait until all is visible that was committed, and compare."""
        self._catch_up(outcomes)
        bootstrap = self._servers.kafka.bootstrap
        tables = [f"{self.prefix}.public.{table}" for table in TABLES]
        rows = read_all(bootstrap, self._decode, tables)
        commits = read_all(bootstrap, self._decode, [f"{self.prefix}.commits"])
        return judge(self.prefix, outcomes, rows, commits, read_ends(bootstrap, self.prefix))

    def _catch_up(self, outcomes: Outcomes) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as session:
            row = session.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            assert row is not None
            with session.transaction():
                insert(session, "the end", 2)
        outcomes.committed["the end"] = 2
        deadline = time.monotonic() + CAUGHT_UP_S
        while time.monotonic() < deadline:
            commits = read_all(self._servers.kafka.bootstrap, self._decode, [f"{self.prefix}.commits"])
            if commits and commits[-1].value["applied_lsn"] > row[0]:
                return
            time.sleep(0.3)
        # What is not there counts as lost; the last words say why.
        print(f"{self.prefix}: not caught up after {CAUGHT_UP_S:.0f} s:\n{self.log.read_text()[-1500:]}", flush=True)

    def _close(self) -> None:
        if self.keeper.is_alive():
            self.keeper.close()
        with psycopg.connect(self._servers.postgres.dsn(), autocommit=True) as session:
            session.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active", (self.prefix,))  # fmt: skip


def _configuration(prefix: str, servers: Servers, spool: Path) -> str:
    brokers = len(servers.kafka.cluster.nodes)
    return _CONFIGURATION.format(
        prefix=prefix,
        dsn=servers.postgres.dsn(prefix),
        bootstrap=servers.kafka.bootstrap,
        registry=servers.registry.url,
        replication=min(3, brokers),
        in_sync=2 if brokers >= 3 else 1,
        spool=spool,
    )
