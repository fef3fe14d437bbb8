"""The cast of the demo with two banks: a database and a connector for each, one mirror of both, and
an auditor who adds up all accounts of each global cut that the mirror publishes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from twofold.demo.cast import OPENING_BALANCE, Bank, mirror_command, run_twofold, twofold_command, write_config
from twofold.demo.teller import StoryFailed, Teller
from twofold.stack import LocalStack
from twofold.stack.process import GuardedProcess
from twofold_common.java import spark_java_home

BANKS: Final = ("east", "west")
ACCOUNTS_EACH: Final = 3
_DEBTOR, _CREDITOR = 5, 6
"""Two accounts of west that no transaction in doubt locks."""

_GROUP = """
[group]
name = "banks"
members = ["east", "west"]
"""
_PATTERN = r"gid_patterns = ['(?P<global>transfer-\d+)-(?P<branch>\w+)']" + "\n"

_AUDITOR = """\
import json, sys, time
from twofold_spark import TwofoldError, read_cut
from twofold_spark.session import open_member_catalogs, open_session

warehouse, java_home, kind, *banks = sys.argv[1:]
spark = open_session(warehouse, java_home=java_home, name="auditor")
open_member_catalogs(spark, warehouse, "twofold", banks)
seen = 0
while True:
    try:
        cut = read_cut(spark)
        if cut.number > seen:
            if kind == "shards":
                rows = cut["public.accounts"].collect()
                accounts = {bank: [row for row in rows if row["_member"] == bank] for bank in banks}
            else:
                accounts = {bank: cut[f"{bank}.public.accounts"].collect() for bank in banks}
            balances = {bank: {row["id"]: row["balance"] for row in rows} for bank, rows in accounts.items()}
            print(json.dumps({"cut": cut.number, "balances": balances}), flush=True)
            seen = cut.number
    except (TwofoldError, KeyError):
        pass  # no global cut yet, or one without a row of a bank
    time.sleep(0.2)
"""


@dataclass(frozen=True, slots=True)
class AuditedCut:
    """The auditor's view of one global cut: the balance of each account, by bank."""

    balances: dict[str, dict[str, int]]

    def sum_of(self, bank: str) -> int:
        return sum(self.balances[bank].values())

    @property
    def accounts(self) -> list[int]:
        """The accounts of all banks."""
        return sorted(int(account) for balances in self.balances.values() for account in balances)

    @property
    def total(self) -> int:
        return sum(map(self.sum_of, self.balances))

    def __str__(self) -> str:
        return f"{' + '.join(f'{bank} {self.sum_of(bank)}' for bank in self.balances)} = {self.total}"


@dataclass(slots=True)
class GroupCast:
    """The processes beside the servers."""

    stack: LocalStack
    folder: Path
    is_sharded: bool = False
    """Whether the mirror has the accounts of both in one table."""
    banks: dict[str, Bank] = field(default_factory=dict)
    configs: dict[str, Path] = field(default_factory=dict)
    _running: list[GuardedProcess] = field(default_factory=list)
    _auditor: GuardedProcess | None = None

    @property
    def config(self) -> Path:
        return self.configs["west"]

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def found_banks(self) -> None:
        """Make the databases, and what the connectors need in them."""
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as session:
            for bank in BANKS:
                session.execute(f"CREATE DATABASE {bank}".encode())
        for bank in BANKS:
            dsn = self.stack.postgres.dsn(bank)
            self.banks[bank] = Bank(dsn)
            self.banks[bank].found()
            self.configs[bank] = write_config(self.stack, self.folder, bank, dsn, prepared=_PATTERN, sections=_GROUP)
            run_twofold(self.configs[bank], "init")

    def start(self) -> None:
        """Start the connectors, the mirror and the auditor."""
        for bank, config in self.configs.items():
            self._start(f"connector-{bank}", [*twofold_command(config), "run"])
        sharded = ["--sharded", "public.accounts"] if self.is_sharded else []
        self._start("mirror", [*mirror_command(self.stack, self.warehouse, BANKS), *sharded])
        script = self.folder / "auditor.py"
        script.write_text(_AUDITOR)
        kind = "shards" if self.is_sharded else "banks"
        self._auditor = self._start(
            "auditor", [sys.executable, str(script), str(self.warehouse), str(spark_java_home()), kind, *BANKS]
        )

    def audited(self) -> list[AuditedCut]:
        """Return what the auditor has read, in its order."""
        for process in self._running:
            if not process.running():
                raise StoryFailed(f"the {process.name} ended: {process.last_words()} (log: {process.log})")
        assert self._auditor is not None
        lines = [line for line in self._auditor.log.read_text().splitlines(keepends=True) if line.startswith('{"cut"')]
        return [AuditedCut(json.loads(line)["balances"]) for line in lines if line.endswith("\n")]

    def stop(self) -> None:
        for process in reversed(self._running):
            process.stop()
        for bank in self.banks.values():
            bank.close()

    def _start(self, name: str, command: list[str]) -> GuardedProcess:
        process = GuardedProcess(name, command, log=self.folder / f"{name}.log")
        self._running.append(process)
        return process


class GroupStory:
    """What the stories of two banks have in common."""

    def __init__(self, teller: Teller, cast: GroupCast) -> None:
        self.t = teller
        self.cast = cast

    @property
    def last(self) -> AuditedCut:
        return self.cast.audited()[-1]

    def run(self, bank: str, sql: str) -> None:
        self.t.sql(f"{bank}: {sql}")
        self.cast.banks[bank].run(sql)

    def open_accounts(self) -> None:
        for number, bank in enumerate(self.cast.banks.values()):
            bank.open_accounts(number * ACCOUNTS_EACH + 1, (number + 1) * ACCOUNTS_EACH)

    def west_goes_on(self) -> None:
        """Transfer something within west, and wait until the mirror shows it."""
        self.cast.banks["west"].transfer(_DEBTOR, _CREDITOR, 1)
        credited = OPENING_BALANCE + 1
        self.t.wait(
            "the mirror to show a transfer within west",
            lambda: self.last.balances["west"][str(_CREDITOR)] == credited,
            seconds=120,
        )
