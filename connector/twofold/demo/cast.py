"""The cast of the demo: the bank's database, the connector and the mirror job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from twofold.demo.teller import StoryFailed
from twofold.errors import SetupError
from twofold.stack import LocalStack
from twofold.stack.process import GuardedProcess
from twofold_common.java import spark_java_home

NAME = "bank"
HOLD_S = 4
ACCOUNTS = 6
OPENING_BALANCE = 1000

_CONFIG = """\
name = "{name}"

[source]
dsn = "{dsn}"
tables = ["public.accounts", "public.transfers"]

[kafka]
bootstrap = "{bootstrap}"
partitions = 3
replication = 1
min_insync_replicas = 1

[registry]
url = "{registry}"

[prepared]
hold = {hold}
{prepared}
[spool]
folder = "{folder}/spool"
{sections}"""

_TABLES = """
CREATE TABLE accounts (id int PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL CHECK (balance >= 0));
CREATE TABLE transfers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, debtor int NOT NULL, creditor int NOT NULL, amount bigint NOT NULL, at timestamptz NOT NULL DEFAULT now());
"""


def check_spark() -> None:
    """Raise `SetupError` unless the mirror can run here. Fetches Spark's jars.

    Called before any server is started, not at the end of the story.
    """
    spark_java_home()
    done = subprocess.run(
        [sys.executable, "-m", "twofold_spark", "jars"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise SetupError(
            f"the demo's mirror cannot run ({why}): install its part with Spark, of the same version: pip install 'twofold[spark]'"
        )


def write_config(
    stack: LocalStack, folder: Path, name: str, dsn: str, *, prepared: str = "", sections: str = ""
) -> Path:
    """Write the configuration of a bank's connector.

    `prepared` is more of that section, and `sections` are more sections.
    """
    file = folder / f"{name}.toml"
    file.write_text(
        _CONFIG.format(
            name=name,
            dsn=dsn,
            bootstrap=stack.kafka.bootstrap,
            registry=stack.registry.url,
            hold=HOLD_S,
            folder=folder / name,
            prepared=prepared,
            sections=sections,
        )
    )
    return file


def twofold_command(config: Path) -> list[str]:
    return [sys.executable, "-m", "twofold", "--config", str(config)]


def run_twofold(config: Path, *arguments: str) -> str:
    """Run a command to its end; return what it printed."""
    done = subprocess.run([*twofold_command(config), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StoryFailed(f"twofold {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def mirror_command(stack: LocalStack, warehouse: Path, prefixes: Sequence[str]) -> list[str]:
    servers = ["--bootstrap", stack.kafka.bootstrap, "--registry", stack.registry.url]
    return _spark_command("mirror", warehouse, prefixes, *servers, "--trigger", "interval=500ms")


def _spark_command(command: str, warehouse: Path, prefixes: Sequence[str], *arguments: str) -> list[str]:
    chosen = [word for prefix in prefixes for word in ("--prefix", prefix)]
    common = [*chosen, "--warehouse", str(warehouse), "--java-home", str(spark_java_home())]
    return [sys.executable, "-m", "twofold_spark", command, *common, *arguments]


class Bank:
    """The source database."""

    def __init__(self, dsn: str) -> None:
        # A statement that waits for a prepared transaction's lock must fail, not hang.
        self._connection = psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=5s")

    def found(self) -> None:
        self.run(_TABLES)

    def open_accounts(self, first: int = 1, last: int = ACCOUNTS) -> None:
        self.run(
            f"INSERT INTO accounts SELECT n, 'customer ' || n, {OPENING_BALANCE} FROM generate_series({first}, {last}) n"  # noqa: S608
        )

    def transfer(self, debtor: int, creditor: int, amount: int, *, prepare: str | None = None) -> None:
        """Write three rows in one transaction; with `prepare` it is prepared under that gid."""
        end = "COMMIT" if prepare is None else f"PREPARE TRANSACTION '{prepare}'"
        self.run(
            f"BEGIN; UPDATE accounts SET balance = balance - {amount} WHERE id = {debtor};"  # noqa: S608  (numbers of the story)
            f" UPDATE accounts SET balance = balance + {amount} WHERE id = {creditor};"
            f" INSERT INTO transfers (debtor, creditor, amount) VALUES ({debtor}, {creditor}, {amount}); {end}"
        )

    def run(self, sql: str) -> None:
        self._connection.execute(sql)

    def balances(self) -> dict[int, int]:
        rows: list[Any] = self._connection.execute("SELECT id, balance FROM accounts").fetchall()
        return dict(rows)

    def close(self) -> None:
        self._connection.close()


@dataclass(slots=True)
class Cast:
    """The processes beside the servers."""

    stack: LocalStack
    folder: Path
    connector: GuardedProcess | None = None
    mirror: GuardedProcess | None = None
    config: Path = field(init=False)

    def __post_init__(self) -> None:
        self.config = write_config(self.stack, self.folder, NAME, self.stack.postgres.dsn())

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def initialise(self) -> str:
        return run_twofold(self.config, "init")

    def start_connector(self) -> None:
        self.connector = GuardedProcess(
            "connector", [*twofold_command(self.config), "run"], log=self.folder / "connector.log"
        )

    def start_mirror(self) -> None:
        self.mirror = GuardedProcess(
            "mirror", mirror_command(self.stack, self.warehouse, [NAME]), log=self.folder / "mirror.log"
        )

    def verify(self) -> subprocess.CompletedProcess[str]:
        """Compare source and mirror; status 0 if they are equal."""
        postgres = self.stack.postgres
        source = f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres?user=postgres"
        with self._verify_log.open("w") as log:
            return subprocess.run(
                _spark_command("verify", self.warehouse, [NAME], "--source", source, "--patience", "180"),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                check=False,
            )

    def last_words_of_verify(self) -> str:
        lines = self._verify_log.read_text().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        for process in (self.mirror, self.connector):
            if process is not None:
                process.stop()

    @property
    def _verify_log(self) -> Path:
        return self.folder / "verify.log"
