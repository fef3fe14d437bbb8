"""Clients that write numbered rows into PostgreSQL: plain transactions, and prepared ones that stay
in doubt for some tenths of a second before they are committed or rolled back.

PostgreSQL is not disturbed here, so each outcome is known.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Final

import psycopg

SCHEMA: Final = """
CREATE TABLE a (tx text, n int, of int, PRIMARY KEY (tx, n));
CREATE TABLE b (tx text, n int, of int, PRIMARY KEY (tx, n));
CREATE PROCEDURE burst(name text, first int, count int) LANGUAGE plpgsql AS $$
BEGIN
  FOR number IN first .. first + count - 1 LOOP
    INSERT INTO a VALUES (name || '-' || number, 0, 1);
    COMMIT;
  END LOOP;
END $$;
"""
TABLES: Final = ("a", "b")


@dataclass(slots=True)
class Outcomes:
    """What PostgreSQL did, by the transactions' names; names with their number of rows."""

    committed: dict[str, int] = field(default_factory=dict)
    rolled_back: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between transactions, and how many write prepared ones side by side."""

    plain: float = 0.08
    plain_rows: int = 6
    bursts: int = 0
    """Beside them so many transactions of one row a second."""
    preparers: int = 3
    in_doubt: tuple[float, float] = (0.2, 0.7)
    rollbacks: float = 0.5
    """The share of prepared transactions that are rolled back."""


class Clients:
    """Threads, each with a session of its own."""

    def __init__(self, dsn: str, pace: Pace, seed: str) -> None:
        self.outcomes = Outcomes()
        self.failure: BaseException | None = None
        self._dsn = dsn
        self._pace = pace
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(f"{seed}-plain", True), daemon=True)]
        for number in range(pace.preparers):
            name = f"{seed}-prepared{number}"
            self._threads.append(threading.Thread(target=self._write, args=(name, False), daemon=True))
        if pace.bursts:
            self._threads.append(threading.Thread(target=self._burst, args=(f"{seed}-burst",), daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> Outcomes:
        """No transaction is in doubt when this returns."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return self.outcomes

    def _write(self, name: str, is_plain: bool) -> None:
        drawn, number = random.Random(name), 0
        try:
            with psycopg.connect(self._dsn, autocommit=True) as session:
                while not self._over.is_set():
                    number += 1
                    if is_plain:
                        self._plain(session, f"{name}-{number}", drawn)
                        self._over.wait(drawn.expovariate(1 / self._pace.plain))
                    else:
                        self._prepared(session, f"{name}-{number}", drawn)
        except BaseException as error:  # `stop` raises it: nobody else sees a thread's exception
            self.failure = error

    def _burst(self, name: str) -> None:
        """As many transactions a second as wanted, if the server can."""
        begun, number = time.monotonic(), 0
        try:
            with psycopg.connect(self._dsn, autocommit=True) as session:
                session.execute("SET synchronous_commit = off")
                while not self._over.wait(0.05):
                    wanted = int((time.monotonic() - begun) * self._pace.bursts) - number
                    count = min(wanted, self._pace.bursts)
                    session.execute(f"CALL burst('{name}', {number}, {count})")
                    self.outcomes.committed.update((f"{name}-{n}", 1) for n in range(number, number + count))
                    number += count
        except BaseException as error:  # `stop` raises it: nobody else sees a thread's exception
            self.failure = error

    def _plain(self, session: psycopg.Connection, name: str, drawn: random.Random) -> None:
        count = drawn.randint(1, 2 * self._pace.plain_rows)
        with session.transaction():
            insert(session, name, count)
        self.outcomes.committed[name] = count

    def _prepared(self, session: psycopg.Connection, name: str, drawn: random.Random) -> None:
        count = drawn.randint(1, 8)
        session.execute("BEGIN")
        insert(session, name, count)
        session.execute(f"PREPARE TRANSACTION '{name}'")
        self._over.wait(drawn.uniform(*self._pace.in_doubt))
        rolls_back = drawn.random() < self._pace.rollbacks
        session.execute(f"{'ROLLBACK' if rolls_back else 'COMMIT'} PREPARED '{name}'")
        (self.outcomes.rolled_back if rolls_back else self.outcomes.committed)[name] = count


def insert(session: psycopg.Connection, name: str, count: int) -> None:
    """Rows 0 to count - 1, the even ones into one table and the odd ones into the other."""
    for first, table in enumerate(TABLES):
        session.execute(
            f"INSERT INTO {table} SELECT %s, n, %s FROM generate_series(%s::int, %s::int, 2) n",
            (name, count, first, count - 1),
        )
