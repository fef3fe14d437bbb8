"""A bank in a real source, through a real connector: plain and prepared transactions move money
between two tables whose total never changes, while the jobs that read its topics are killed.

The source keeps every change that was committed, in the ledger that triggers write.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from fixtures.connector import Installation, Maker, wait_until
from fixtures.spark import Lake
from helpers.connector import ledger as connector_ledger
from helpers.spark.bank import MONEY
from helpers.worker import Worker

NAMES: Final = ("accounts", "vault", "slips", "transfers")
_PUBLISHED: Final = ("account", *NAMES)
"""A mark in `account` tells when all before it is in Kafka."""
_SCHEMA: Final = """
CREATE SEQUENCE numbers;
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL, change bigint NOT NULL);
CREATE TABLE vault (LIKE accounts INCLUDING ALL);
CREATE TABLE slips (id bigint PRIMARY KEY);
CREATE TABLE transfers (amount int);
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION note('id');
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON vault FOR EACH ROW EXECUTE FUNCTION note('id');
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON slips FOR EACH ROW EXECUTE FUNCTION note('id');
CREATE TRIGGER note AFTER INSERT ON transfers FOR EACH ROW EXECUTE FUNCTION note();
"""
_SESSIONS, _KEYS = 4, 5
_FILL: Final = tuple(
    f"INSERT INTO {name} SELECT n, {MONEY // (2 * _SESSIONS * _KEYS)}, nextval('numbers') "
    f"FROM generate_series(0, {_SESSIONS * _KEYS - 1}) n"
    for name in ("accounts", "vault")
)
_HELD_S: Final = (0.0, 0.0, 0.2, 2.5)
"""How long a transaction stays prepared; the last is longer than the connector holds it open."""
_STARTS_S: Final = 60

Rows = Counter[tuple[Any, ...]]
"""Rows of a table, as tuples of their values; of one without a key, how many of each."""


class _Session(Worker):
    """Moves money between keys of its own, so that sessions do not wait for each other."""

    def __init__(self, here: Installation, number: int, seed: int) -> None:
        super().__init__(f"session {number}")
        self._here = here
        self._number = number
        self._rng = random.Random(seed)
        self._slips: list[int] = []
        self._given = 0
        self.outcomes: Counter[str] = Counter()

    def work(self) -> None:
        with psycopg.connect(self._here.conninfo, autocommit=True) as connection:
            while not self._stopped.wait(self._rng.uniform(0.1, 0.5)):
                self._transfer(connection)

    def _transfer(self, connection: psycopg.Connection[Any]) -> None:
        rng, self._given = self._rng, self._given + 1
        giver, taker = (self._number * _KEYS + rng.randrange(_KEYS) for _ in range(2))
        amount = rng.randrange(50)
        slip = self._number * 1_000_000 + self._given
        paid = rng.choice(self._slips) if len(self._slips) > 5 else None
        move = "UPDATE {} SET balance = balance + %s, change = nextval('numbers') WHERE id = %s"
        connection.execute("BEGIN")
        connection.execute(move.format("accounts").encode(), (-amount, giver))
        connection.execute(move.format("vault").encode(), (amount, taker))
        connection.execute("INSERT INTO transfers VALUES (%s)", (amount,))
        connection.execute("INSERT INTO slips VALUES (%s)", (slip,))
        connection.execute("DELETE FROM slips WHERE id = %s", (paid,))
        if self._end(connection):
            self._slips = [each for each in (*self._slips, slip) if each != paid]

    def _end(self, connection: psycopg.Connection[Any]) -> bool:
        """End the transaction in one of four ways. Return whether it has committed."""
        commits = self._rng.random() < 0.75
        outcome = "COMMIT" if commits else "ROLLBACK"
        if self._number % 2:
            gid = f"{self._here.prefix} {self._number} {self._given}"
            connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
            self._stopped.wait(self._rng.choice(_HELD_S))
            outcome = f"{outcome} PREPARED"
            connection.execute(f"{outcome} '{gid}'".encode())
        else:
            connection.execute(outcome.encode())
        self.outcomes[outcome] += 1
        return commits


class SourceBank:
    """The sessions, and what the source has of them."""

    def __init__(self, here: Installation, rng: random.Random) -> None:
        self.here = here
        self._sessions = [_Session(here, number, rng.getrandbits(32)) for number in range(_SESSIONS)]
        for session in self._sessions:
            session.start()

    @property
    def outcomes(self) -> Counter[str]:
        """How many transactions ended in which way."""
        return sum((session.outcomes for session in self._sessions), Counter[str]())

    def stop(self) -> None:
        for session in self._sessions:
            session.stop()

    def last_sequence(self) -> int:
        """Return the number of the last commit record, once all that was committed is in Kafka."""
        self.here.caught_up(120)
        return int(self.here.records("commits")[-1]["sequence"])

    def read_rows(self) -> dict[str, Rows]:
        """Return what each table has."""
        with psycopg.connect(self.here.conninfo) as connection:
            return {name: Counter(connection.execute(f"SELECT * FROM {name}".encode()).fetchall()) for name in NAMES}

    def read_changes(self) -> Rows:
        """Return each change that was committed: its table, op, key and new row."""
        with psycopg.connect(self.here.conninfo) as connection:
            entries = connector_ledger.entries(connection)
        return Counter(make_change(each.table, each.op, each.key, each.after) for each in entries)


def make_change(table: str, op: str, key: Any, after: Any) -> tuple[Any, ...]:
    """Make the identity of a change from the values of its row: each update has a number."""
    return table, op, *(tuple(sorted(row.items())) if row else None for row in (key, after))


@contextmanager
def opened_bank(lake: Lake, connector: Maker, rng: random.Random) -> Iterator[SourceBank]:
    """A bank at work whose topics the lake's jobs read; the connector runs in this process."""
    here = connector(
        init=False, source={"tables": [f"public.{name}" for name in _PUBLISHED]}, prepared={"hold": 1, "pool": 2}
    )
    here.sql(connector_ledger.SCHEMA, _SCHEMA)
    lake.prefix = here.prefix
    here.initialise()
    with here.carrying():
        wait_until(lambda: not here.status().backfilling, _STARTS_S, "the empty tables are loaded")
        with psycopg.connect(here.conninfo) as connection:
            for statement in _FILL:
                connection.execute(statement.encode())
        here.caught_up()
        bank = SourceBank(here, rng)
        try:
            yield bank
        finally:
            bank.stop()
