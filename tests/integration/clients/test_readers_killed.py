"""The readers' own chaos: a bank whose transfers touch three tables, and five programs that read it
as whole transactions, each into a database of its own.

Readers, the connector and the broker are killed. After each kill the reader's database is the bank
as of its bookmark: no transfer is lost, counted twice or torn.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector import bank_reader
from twofold.config import load
from twofold.run.initialisation import initialise
from twofold.stack import KafkaCluster

KILLS = int(os.environ.get("TWOFOLD_TEST_READER_KILLS", "200"))
READERS = 5
ACCOUNTS = {1: range(1, 21), 2: range(21, 31)}
"""Of each teller. The second one prepares his transfers: no row is touched by both."""

_SCHEMA = (
    "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE teller (id int PRIMARY KEY, transfers int NOT NULL, turnover bigint NOT NULL)",
    "CREATE TABLE transfer (id int PRIMARY KEY, debit int NOT NULL, credit int NOT NULL, amount int NOT NULL)",
    "INSERT INTO account SELECT i, 1000 FROM generate_series(1, 30) i",
    "INSERT INTO teller SELECT i, 0, 0 FROM generate_series(1, 2) i",
)


class Transfer(NamedTuple):
    """A transfer that was committed."""

    id: int
    debit: int
    credit: int
    amount: int
    teller: int
    behind: int
    """Where the source was behind its COMMIT."""


class State(NamedTuple):
    """The three tables, each as its rows in their order."""

    account: list[tuple[int, ...]]
    teller: list[tuple[int, ...]]
    transfer: list[tuple[int, ...]]


class Bank:
    """One session makes all transfers, so their order is known."""

    def __init__(self, here: Installation, choice: random.Random) -> None:
        self._conninfo = here.conninfo
        self._gids = here.prefix
        self._choice = choice
        self._number = 0
        self.done: list[Transfer] = []
        """In the order of their commits."""
        self.wanted: SimpleQueue[int] = SimpleQueue()
        """How many transfers to make next; 0: no more."""

    def work(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            while count := self.wanted.get():
                prepared: Transfer | None = None
                for _ in range(count):
                    if prepared is None and self._choice.random() < 0.2:
                        prepared = self._transfer(connection, 2, "PREPARE TRANSACTION '{}'")
                        continue
                    self._note(connection, self._transfer(connection, 1, "COMMIT"))
                    if prepared is not None and self._choice.random() < 0.3:
                        self._end(connection, prepared)
                        prepared = None
                if prepared is not None:
                    self._end(connection, prepared)

    def _transfer(self, connection: psycopg.Connection[Any], teller: int, ending: str) -> Transfer:
        debit, credit = self._choice.sample(ACCOUNTS[teller], 2)
        amount = self._choice.randint(1, 9)
        self._number += 1
        # fmt: off
        for statement in (
            "BEGIN",
            f"UPDATE account SET balance = balance - {amount} WHERE id = {debit}",
            f"INSERT INTO transfer VALUES ({self._number}, {debit}, {credit}, {amount})",
            f"UPDATE teller SET transfers = transfers + 1, turnover = turnover + {amount} WHERE id = {teller}",
            f"UPDATE account SET balance = balance + {amount} WHERE id = {credit}",
            ending.format(self._gid(self._number)),
        ):
            connection.execute(statement.encode())
        # fmt: on
        return Transfer(self._number, debit, credit, amount, teller, 0)

    def _end(self, connection: psycopg.Connection[Any], prepared: Transfer) -> None:
        ending = self._choice.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        connection.execute(f"{ending} PREPARED '{self._gid(prepared.id)}'".encode())
        if ending == "COMMIT":
            self._note(connection, prepared)

    def _gid(self, number: int) -> str:
        return f"{self._gids}-{number}"

    def _note(self, connection: psycopg.Connection[Any], transfer: Transfer) -> None:
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None
        self.done.append(transfer._replace(behind=int(row[0])))

    def state_behind(self, count: int) -> State:
        """The bank behind so many transfers."""
        balances = dict.fromkeys(range(1, 31), 1000)
        tellers = {1: (0, 0), 2: (0, 0)}
        for each in self.done[:count]:
            balances[each.debit] -= each.amount
            balances[each.credit] += each.amount
            transfers, turnover = tellers[each.teller]
            tellers[each.teller] = transfers + 1, turnover + each.amount
        return State(
            sorted(balances.items()),
            [(teller, *totals) for teller, totals in tellers.items()],
            sorted(each[:4] for each in self.done[:count]),
        )


class ReadingProgram:
    """One of the five, with its database."""

    def __init__(self, here: Installation, file: Path) -> None:
        registry = load(here.file).registry.url
        self._line = [sys.executable, bank_reader.__file__, here.reader.bootstrap, registry, here.prefix, str(file)]
        self._file = file
        self._log = file.with_suffix(".log")
        self.away = 0
        """How often it ended because a server did not answer."""
        bank_reader.create(file)
        self.start()

    def start(self) -> None:
        self.count_at_start = self.count()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._line, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def count(self) -> int:
        """How many transfers it has."""
        return len(self._select("SELECT id FROM transfer"))

    def has(self, count: int) -> bool:
        """Whether it has so many transfers; it is started again if no server answered."""
        if (status := self._process.poll()) is not None:
            assert status == 4, f"ended with {status}: {self._log.read_text()}"
            self.away += 1
            self.start()
        return self.count() >= count

    def check(self, bank: Bank) -> None:
        """Its database is the bank as of its bookmark."""
        state = State(*(self._select(f"SELECT * FROM {table} ORDER BY id") for table in State._fields))
        if (len(state.account), len(state.teller)) != (30, 2):
            assert not state.transfer, "the loads come first"
            return
        count, ((lsn,),) = len(state.transfer), self._select("SELECT lsn FROM bookmark")
        wait_until(lambda: len(bank.done) >= count, 30, "the transfers are noted")
        assert state == bank.state_behind(count)
        if count:
            assert (bank.done[count - 2].behind if count > 1 else 0) <= lsn < bank.done[count - 1].behind

    def _select(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self._file, timeout=60)) as database:
            return database.execute(query).fetchall()


@pytest.fixture
def bank_of(connector: Maker, own_kafka: Callable[..., KafkaCluster]) -> tuple[Installation, KafkaCluster]:
    cluster = own_kafka()
    tables = [f"public.{each}" for each in State._fields]
    here = connector(kafka_server=cluster, init=False, source={"tables": tables}, prepared={"hold": 0.2})
    here.sql(*_SCHEMA)
    initialise(load(here.file), print)
    return here, cluster


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(15, marks=pytest.mark.long),
        pytest.param(KILLS, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_each_reader_is_the_bank_as_of_its_bookmark(
    bank_of: tuple[Installation, KafkaCluster], kills: int, tmp_path: Path
) -> None:
    """With every fifth kill of a reader the connector is killed, with every tenth the broker."""
    here, cluster = bank_of
    choice = random.Random(kills)
    bank = Bank(here, random.Random(kills + 1))
    run = here.start()
    wait_until(lambda: len(here.read("account")) == 30 and len(here.read("teller")) == 2, 60, "both are loaded")
    programs = [ReadingProgram(here, tmp_path / f"{number}.db") for number in range(READERS)]
    with ThreadPoolExecutor(1) as executor, ended(programs):
        working = executor.submit(bank.work)
        try:
            for kill in range(kills):
                bank.wanted.put(choice.randint(3, 20))
                program = choice.choice(programs)
                if choice.random() < 0.7:
                    count = program.count_at_start + choice.randint(1, 3)
                    wait_until(lambda: program.has(count), 120, "it reads on")  # noqa: B023
                program.kill()
                program.check(bank)
                program.start()
                if kill % 5 == 2:
                    run.kill9()
                    run = here.start(ready=False)
                if kill % 10 == 7:
                    cluster.kill()
                    cluster.start()
        finally:
            bank.wanted.put(0)
        working.result(60)
        for program in programs:
            wait_until(lambda: program.has(len(bank.done)), 120, "it has all")  # noqa: B023
            program.kill()
            program.check(bank)
    with psycopg.connect(here.conninfo) as connection:
        source = [connection.execute(f"SELECT * FROM {each} ORDER BY id".encode()).fetchall() for each in State._fields]
    assert State(*source) == bank.state_behind(len(bank.done))
    assert any(each.teller == 2 for each in bank.done), "a prepared transfer was committed"
    print(f"{len(bank.done)} transfers; a server was away {[each.away for each in programs]}")


@contextmanager
def ended(programs: list[ReadingProgram]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in programs:
            each.kill()
