"""PgDog in front of databases that are shards of one table, and clients that know PgDog alone.

The table is `account` with a column `home`, by whose hash PgDog places a row.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from helpers.connector.moving_accounts import ACCOUNTS, BALANCE
from helpers.worker import Worker
from twofold.stack.process import LOOPBACK, GuardedProcess, LocalServer, choose_port

PROGRAM: Final = os.environ.get("TWOFOLD_PGDOG", "")
HOME: Final = "ALTER TABLE account ADD COLUMN home bigint NOT NULL"
_HOMES: Final = range(1, 100)
STAYING: Final = ACCOUNTS[-4:]
"""Accounts that do not move. One statement pays between them.

PgDog sends it to all shards, and it would miss a row that another transaction moves just then.
"""


class PgDog(LocalServer):
    """A PgDog whose shards are these databases, in their order. After a kill it ends by itself what
    it left prepared: its log has the decisions, and `NODE_ID` keeps its gids.
    """

    def __init__(self, folder: Path, conninfos: Iterable[str]) -> None:
        self._folder = folder
        (folder / "wal").mkdir(parents=True)
        shards = [conninfo_to_dict(each) for each in conninfos]
        port = choose_port(None, "PgDog")
        self.conninfo = make_conninfo(host=LOOPBACK, port=port, user="teller", password="teller", dbname="bank")
        server = {"server_user": shards[0]["user"], "server_password": shards[0].get("password", "none")}
        general = {
            "host": LOOPBACK, "port": port, "two_phase_commit": True, "two_phase_commit_auto": True,
            "two_phase_commit_wal_dir": str(folder / "wal"),
        }  # fmt: skip
        databases = [
            {
                "name": "bank", "shard": number, "host": shard["host"], "port": int(shard["port"] or 5432),
                "database_name": shard["dbname"],
            }
            for number, shard in enumerate(shards)
        ]  # fmt: skip
        table = {"database": "bank", "name": "account", "column": "home", "data_type": "bigint"}
        user = {"name": "teller", "database": "bank", "password": "teller", **server}
        (folder / "pgdog.toml").write_text(
            _section("[general]", general)
            + _section("[rewrite]", {"enabled": True, "shard_key": "rewrite"})
            + "".join(_section("[[databases]]", each) for each in databases)
            + _section("[[sharded_tables]]", table)
        )
        (folder / "users.toml").write_text(_section("[[users]]", user))

    def start(self) -> None:
        options = ("--config", self._folder / "pgdog.toml", "--users", self._folder / "users.toml")
        self._process = GuardedProcess(
            "PgDog", [PROGRAM, *options], log=self._folder / "pgdog.log", environment={"NODE_ID": "pgdog-1"}
        )
        self._process.wait_until(self._answers, seconds=60)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def _section(name: str, settings: dict[str, Any]) -> str:
    return f"{name}\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def fill(pgdog: PgDog, accounts: Sequence[int] = ACCOUNTS) -> None:
    """Make the accounts where PgDog places them. Each has a note longer than what PostgreSQL keeps
    in the row.
    """
    with psycopg.connect(pgdog.conninfo) as connection:
        for each in accounts:
            connection.execute(
                "INSERT INTO account (id, version, note, home) VALUES (%s, %s, %s, %s)",
                (each, BALANCE, random.randbytes(1600).hex(), each),
            )


Work = Callable[[psycopg.Connection, random.Random], None]


class Teller(Worker):
    """A client that does its work again and again until `stop`. It connects again when PgDog was
    killed, and does not learn how its last transaction ended.
    """

    def __init__(self, pgdog: PgDog, work: Work, seed: int, pause_s: float) -> None:
        super().__init__(f"teller {seed}")
        self._conninfo = pgdog.conninfo
        self._work = work
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self.done = 0

    def work(self) -> None:
        while not self._stopped.wait(0.1):
            with suppress(psycopg.OperationalError), _connect(self._conninfo) as connection:
                while not self._stopped.wait(self._pause_s):
                    self._work(connection, self._random)
                    self.done += 1


def _connect(conninfo: str) -> psycopg.Connection:
    """Connect a client that sends values in the statement.

    PgDog 0.1.52 cannot change a shard key to a parameter in the binary format.
    """
    return psycopg.connect(conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor)


def pay(connection: psycopg.Connection, rng: random.Random, accounts: Sequence[int] = ACCOUNTS) -> None:
    """Pay from one account to another, which may be in the same shard."""
    amount = rng.randrange(1, 50)
    homes = _read_homes(connection)
    with connection.transaction():
        # In the order of the accounts: no PostgreSQL would see that two transactions wait for each
        # other in two shards.
        for account, part in zip(sorted(rng.sample(accounts, 2)), (-amount, amount), strict=True):
            paid = connection.execute(
                "UPDATE account SET version = version + %s WHERE id = %s AND home = %s",
                (part, account, homes.get(account)),
            )
            if not paid.rowcount:  # it moved meanwhile
                raise psycopg.Rollback


def move(connection: psycopg.Connection, rng: random.Random, accounts: Sequence[int] = ACCOUNTS) -> None:
    """Change a shard key: PgDog reads the row, deletes it in its shard and inserts it in another.

    PgDog locks no row that it reads. Unlocked it may insert one that another client has just moved
    or changed.
    """
    account = rng.choice([each for each in accounts if each not in STAYING])
    row = (account, _read_homes(connection).get(account))
    with connection.transaction():
        if connection.execute("SELECT FROM account WHERE id = %s AND home = %s FOR UPDATE", row).rowcount:
            connection.execute("UPDATE account SET home = %s WHERE id = %s AND home = %s", (rng.choice(_HOMES), *row))


def pay_in_one_statement(connection: psycopg.Connection, rng: random.Random) -> None:
    here, there = rng.sample(STAYING, 2)
    connection.execute(
        "UPDATE account SET version = version + CASE id WHEN %s THEN %s ELSE %s END WHERE id IN (%s, %s)",
        (here, -(amount := rng.randrange(1, 50)), amount, here, there),
    )


def _read_homes(connection: psycopg.Connection) -> dict[int, int]:
    return dict(connection.execute("SELECT id, home FROM account").fetchall())
