"""The bank: two databases with two tables each, and clients that transfer money in them.

A transfer has a number. Its rows say how many lines it has in this database and how many databases
it is in. An account counts its changes, and each line says which of them it made. So plain SQL on a
copy can tell a transfer that is there in part from a whole one.

Transfers are plain or prepared, in one database or in both. Some are rolled back, some are large,
and some change the keys of an earlier transfer's rows. The journal has what clients were told.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import errors

DATABASES: Final = ("east", "west")
"""Each has its tables in a schema of this name, so that one destination can have both."""
TABLES: Final = ("account", "entry")
COLUMNS: Final = {
    "account": ("id", "balance", "version"),
    "entry": ("id", "transfer", "line", "lines", "branches", "account", "version", "amount"),
}
GID_PATTERN: Final = "pay-(?P<global>[0-9]+)-(?P<branch>[0-9]+)"
ACCOUNTS: Final = 200
BALANCE: Final = 1_000_000
TOTAL: Final = len(DATABASES) * ACCOUNTS * BALANCE
LINES: Final = 100_000
"""Above the most lines that a transfer has."""
_CREATE: Final = """
CREATE SCHEMA {0};
CREATE TABLE {0}.account (id bigint PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL);
CREATE TABLE {0}.entry (
  id bigint PRIMARY KEY, transfer bigint NOT NULL, line bigint NOT NULL, lines bigint NOT NULL, branches bigint NOT NULL,
  account bigint, version bigint, amount bigint NOT NULL
);
"""
_INSERT: Final = """
INSERT INTO {0}.entry
SELECT %(n)s::bigint * {1} + line, %(n)s, line, %(lines)s, %(of)s, NULL, NULL, 0
  FROM generate_series(%(from)s::bigint, %(lines)s::bigint) line
"""
CLIENTS: Final = 4
PAUSE_S: Final = 0.1
"""On average between two transfers of a client."""
_KINDS: Final = {"plain": 8, "undone": 2, "prepared": 4, "both": 8, "large": 0.15, "rekeyed": 1}
_LARGE: Final = (1_000, 10_000)
_ROLLED_BACK: Final = 0.2
"""Of the prepared ones."""
_IN_DOUBT_S: Final = 1.0
_RETRY_S: Final = 0.2


def create_tables(session: psycopg.Connection[Any], database: str) -> None:
    """Without rows."""
    session.execute(_CREATE.format(database).encode())


def create(dsn: str, database: str) -> None:
    """With accounts and a first entry, which were there before any system came."""
    with psycopg.connect(dsn) as session:
        create_tables(session, database)
        session.execute(
            f"INSERT INTO {database}.account SELECT n, {BALANCE}, 0 FROM generate_series(1, {ACCOUNTS}) n".encode()
        )
        session.execute(f"INSERT INTO {database}.entry VALUES (0, 0, 1, 1, 1, NULL, NULL, 0)".encode())


@dataclass(slots=True)
class Journal:
    """When clients began to commit a transfer, and when they were told that it is committed; in
    seconds of `time.monotonic`.
    """

    begun: dict[int, float] = field(default_factory=dict)
    """The others were never to be committed."""
    done: dict[int, float] = field(default_factory=dict)
    """Nobody was told of the others: their server was away."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def next_number(self) -> int:
        return next(self._numbers)

    def begin(self, number: int) -> None:
        self.begun[number] = time.monotonic()

    def finish(self, number: int) -> None:
        self.done[number] = time.monotonic()


class Client(threading.Thread):
    """Makes transfers until told. `failure` is an error that is no server's."""

    def __init__(self, dsns: Mapping[str, str], journal: Journal, seed: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._dsns = dsns
        self._journal = journal
        self._rng = random.Random(seed)
        self._over = over
        self._open: dict[str, psycopg.Connection[Any]] = {}
        self._earlier: list[tuple[str, int]] = []
        """Own transfers whose keys were not changed."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(self._rng.expovariate(1 / PAUSE_S)):
                kind = self._rng.choices(list(_KINDS), list(_KINDS.values()))[0]
                self._undisturbed(self.transfer, kind)
        except BaseException as error:  # the trial asks for it: nobody else sees a thread's exception
            self.failure = error
        finally:
            for session in self._open.values():
                session.close()

    def transfer(self, kind: str) -> None:
        number, database = self._journal.next_number(), self._rng.choice(DATABASES)
        match kind:
            case "prepared":
                self._prepared(number, (database,))
            case "both":
                self._prepared(number, DATABASES)
            case "rekeyed" if self._earlier:
                database, earlier = self._earlier.pop(self._rng.randrange(len(self._earlier)))
                self._session(database).execute(
                    f"UPDATE {database}.entry SET id = -id WHERE transfer = {earlier}".encode()
                )
            case _:
                self._plain(number, database, kind)

    def load(self, database: str, rows: int, rows_of_one: int) -> list[int]:
        """Make transfers of so many rows each as fast as the server takes them."""
        numbers = [self._journal.next_number() for _ in range(rows // rows_of_one)]
        for number in numbers:
            values = {"n": number, "from": 1, "lines": rows_of_one, "of": 1}
            self._journal.begin(number)
            self._session(database).execute(_INSERT.format(database, LINES).encode(), values)
            self._journal.finish(number)
        return numbers

    def _plain(self, number: int, database: str, kind: str) -> None:
        session, extra = self._session(database), self._rng.randint(*_LARGE) if kind == "large" else 0
        amount = self._rng.randint(1, 100)
        with session.transaction() as transaction:
            lines = dict(zip(sorted(self._rng.sample(range(1, ACCOUNTS + 1), 2)), (-amount, amount), strict=True))
            self._write(session, database, number, lines, branches=1, extra=extra)
            if kind == "undone":
                raise psycopg.Rollback(transaction)
            self._journal.begin(number)
        if kind != "undone":
            self._journal.finish(number)
            self._earlier.append((database, number))

    def _prepared(self, number: int, databases: tuple[str, ...]) -> None:
        """As a coordinator does: prepare all, decide, and end all, however often that must be
        tried.
        """
        amount = self._rng.randint(1, 100) if len(databases) > 1 else 0
        prepared = self._undisturbed(self._prepare, number, databases, amount)
        commits = prepared and self._rng.random() > _ROLLED_BACK
        if self._rng.random() < 0.2:
            self._over.wait(self._rng.uniform(0, _IN_DOUBT_S))
        if commits:
            self._journal.begin(number)
        for branch in self._rng.sample(range(len(databases)), len(databases)):
            outcome = f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED 'pay-{number}-{branch}'"
            while not self._undisturbed(self._end, databases[branch], outcome):
                time.sleep(_RETRY_S)
        if commits:
            self._journal.finish(number)

    def _prepare(self, number: int, databases: tuple[str, ...], amount: int) -> None:
        for branch, database in enumerate(databases):
            session, lines = self._session(database), {self._rng.randint(1, ACCOUNTS): (-amount, amount)[branch]}
            session.execute("BEGIN")
            self._write(session, database, number, lines, branches=len(databases), extra=1)
            session.execute(f"PREPARE TRANSACTION 'pay-{number}-{branch}'".encode())

    def _end(self, database: str, outcome: str) -> None:
        try:
            self._session(database).execute(outcome.encode())
        except errors.UndefinedObject:
            # It was never prepared, or an answer was lost and it has ended already.
            return

    @staticmethod
    def _write(
        session: psycopg.Connection[Any],
        database: str,
        number: int,
        amounts: Mapping[int, int],
        *,
        branches: int,
        extra: int,
    ) -> None:
        """A line for each account, and `extra` lines that belong to none."""
        lines = len(amounts) + extra
        for line, (account, amount) in enumerate(amounts.items(), 1):
            update = f"UPDATE {database}.account SET balance = balance + %s, version = version + 1 WHERE id = %s RETURNING version"
            changed = session.execute(update.encode(), [amount, account]).fetchone()
            assert changed is not None, "no account is ever deleted"
            insert = f"INSERT INTO {database}.entry VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
            values = [number * LINES + line, number, line, lines, branches, account, changed[0], amount]
            session.execute(insert.encode(), values)
        if extra:
            values_of_all = {"n": number, "from": len(amounts) + 1, "lines": lines, "of": branches}
            session.execute(_INSERT.format(database, LINES).encode(), values_of_all)

    def _session(self, database: str) -> psycopg.Connection[Any]:
        session = self._open.get(database)
        if session is None or session.closed:
            session = self._open[database] = psycopg.connect(self._dsns[database], autocommit=True, connect_timeout=5)
            session.execute("SET lock_timeout = '1s'")
        return session

    def _undisturbed(self, work: Callable[..., None], *arguments: object) -> bool:
        """Whether no server was away and no lock was missing; else no session stays."""
        try:
            work(*arguments)
        except psycopg.Error:
            for session in self._open.values():
                session.close()
            self._open.clear()
            return False
        return True


def roll_back_the_rest(dsns: Mapping[str, str]) -> None:
    """End what no client knows of: its PREPARE was carried out after its client had given it up."""
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as session:
            listed = session.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'pay-%'"
            )
            for (gid,) in listed.fetchall():
                session.execute(f"ROLLBACK PREPARED '{gid}'".encode())
