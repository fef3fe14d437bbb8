"""Transactions of which PostgreSQL sends parts before they end: how it is made to do so for small
ones, and transactions that are interesting then.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from fixtures.connector import Installation


def force(here: Installation, streaming: str = "on") -> None:
    """Have this connector's walsender stream as early as its version can."""
    immediate = here.ask("SELECT current_setting('server_version_num')::int >= 160000")
    early = "debug_logical_replication_streaming=immediate" if immediate else "logical_decoding_work_mem=64kB"
    here.configure({"source": {"dsn": make_conninfo(here.conninfo, options=f"-c {early}"), "streaming": streaming}})


def streamed(here: Installation) -> int:
    """How many transactions the slot has streamed.

    The walsender tells it now and then, and when it ends.
    """
    found: int = here.ask(f"SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '{here.prefix}'")
    return found


class SideBySide:
    """Many transactions at once, each in a session of its own, with savepoints within savepoints of
    which about half are rolled back. No two touch the same key.
    """

    def __init__(self, here: Installation, count: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._sessions: list[_Session] = []
        with ExitStack() as opened:
            for number in range(count):
                connection = opened.enter_context(psycopg.connect(here.conninfo, autocommit=True))
                self._sessions.append(_Session(number, connection, self._random))
            here.at_end(opened.pop_all().close)

    def begin(self) -> None:
        for session in self._sessions:
            session.execute("BEGIN")

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self._random.choice(self._sessions).step()

    def end(self) -> None:
        """Of ten, five commit, three are prepared (of them two commit) and two roll back; in no
        order in particular.
        """
        prepared = []
        for session in self._random.sample(self._sessions, len(self._sessions)):
            how = session.number % 10
            if how < 5:
                session.execute("COMMIT")
            elif how < 8:
                session.execute(f"PREPARE TRANSACTION 'side {session.number}'")
                prepared.append((session, "ROLLBACK" if how == 7 else "COMMIT"))
            else:
                session.execute("ROLLBACK")
            session.savepoints = 0
        for session, outcome in prepared:
            session.execute(f"{outcome} PREPARED 'side {session.number}'")


class _Session:
    def __init__(self, number: int, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        self.number = number
        self._connection = connection
        self._random = dice
        self.savepoints = 0

    def execute(self, statement: str) -> None:
        self._connection.execute(statement.encode())

    def step(self) -> None:
        match self._random.random():
            case chance if chance < 0.15 and self.savepoints < 6:
                self.savepoints += 1
                self.execute(f"SAVEPOINT s{self.savepoints}")
            case chance if chance < 0.24 and self.savepoints:
                self.savepoints = self._random.randint(1, self.savepoints)
                self.execute(f"ROLLBACK TO s{self.savepoints}")
            case chance if chance < 0.3 and self.savepoints:
                self.savepoints = self._random.randint(1, self.savepoints) - 1
                self.execute(f"RELEASE s{self.savepoints + 1}")
            case _:
                self._change()

    def _change(self) -> None:
        key = self.number * 1000 + self._random.randint(1, 30)
        match self._random.random():
            case chance if chance < 0.2:
                self.execute(f"DELETE FROM account WHERE id = {key}")
            case chance if chance < 0.3:
                self.execute(
                    f"UPDATE account SET id = id + 100 WHERE id = {key} AND NOT EXISTS (SELECT FROM account WHERE id = {key + 100})"
                )
            case chance if chance < 0.4:
                self.execute(f"INSERT INTO journal VALUES ('of {self.number}')")
            case _:
                self.execute(
                    f"INSERT INTO account VALUES ({key}, 1, repeat('n', {self._random.randint(0, 300)}))"
                    " ON CONFLICT (id) DO UPDATE SET version = account.version + 1"
                )
