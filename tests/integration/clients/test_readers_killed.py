"""The readers' own chaos: a bank whose transfers touch three tables, and five programs that read it
as whole transactions, each into a database of its own. The same with two banks, between which money
goes in two phases.

Readers, connectors and the broker are killed. After each kill the reader's database is the bank as
of its bookmark: no transfer is lost, counted twice or torn.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import fresh_prefix
from helpers.connector import bank_reader
from twofold.stack import KafkaCluster

KILLS = int(os.environ.get("TWOFOLD_TEST_READER_KILLS", "200"))
READERS = 5
ACCOUNTS = {1: range(1, 21), 2: range(21, 31), 3: range(31, 41)}
"""Of each teller. The first one's transfers are plain, the others prepare theirs: they share no
row, so that several may be in doubt.
"""

_SCHEMA = (
    "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE teller (id int PRIMARY KEY, transfers int NOT NULL, turnover bigint NOT NULL)",
    "CREATE TABLE transfer (id int PRIMARY KEY, debit int NOT NULL, credit int NOT NULL, amount int NOT NULL)",
    "INSERT INTO account SELECT i, 1000 FROM generate_series(1, 40) i",
    "INSERT INTO teller SELECT i, 0, 0 FROM generate_series(1, 3) i",
)


class Transfer(NamedTuple):
    """A transfer, as one bank has it."""

    id: int
    debit: int
    """The account; 0: one of another bank."""
    credit: int
    amount: int
    teller: int
    behind: int = 0
    """Where the source was behind its COMMIT."""

    @property
    def statements(self) -> Iterator[str]:
        yield "BEGIN"
        yield f"UPDATE account SET balance = balance - {self.amount} WHERE id = {self.debit}"
        yield f"INSERT INTO transfer VALUES ({self.id}, {self.debit}, {self.credit}, {self.amount})"
        yield f"UPDATE teller SET transfers = transfers + 1, turnover = turnover + {self.amount} WHERE id = {self.teller}"
        yield f"UPDATE account SET balance = balance + {self.amount} WHERE id = {self.credit}"


class State(NamedTuple):
    """The three tables, each as its rows in their order."""

    account: list[tuple[int, ...]]
    teller: list[tuple[int, ...]]
    transfer: list[tuple[int, ...]]


class Bank:
    """One database. One session makes all transfers, so their order is known."""

    def __init__(self, here: Installation) -> None:
        self.here = here
        self.session = psycopg.connect(here.conninfo, autocommit=True)
        here.at_end(self.session.close)
        self.done: list[Transfer] = []
        """In the order of their commits."""

    def execute(self, *statements: str) -> None:
        for each in statements:
            self.session.execute(each.encode())

    def note(self, transfer: Transfer) -> None:
        """It is committed."""
        row = self.session.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None
        self.done.append(transfer._replace(behind=int(row[0])))

    def state_behind(self, count: int) -> State:
        """The bank behind so many transfers."""
        balances = dict.fromkeys(range(41), 1000)
        tellers = dict.fromkeys(ACCOUNTS, (0, 0))
        for each in self.done[:count]:
            balances[each.debit] -= each.amount
            balances[each.credit] += each.amount
            transfers, turnover = tellers[each.teller]
            tellers[each.teller] = transfers + 1, turnover + each.amount
        del balances[0]
        return State(
            sorted(balances.items()),
            [(teller, *totals) for teller, totals in tellers.items()],
            sorted(each[:4] for each in self.done[:count]),
        )


class Work:
    """Transfers in one bank, or in several and between them."""

    def __init__(self, banks: Sequence[Bank], choice: random.Random) -> None:
        self._banks = banks
        self._choice = choice
        self._number = 0
        self._in_doubt: dict[int, list[tuple[Bank, Transfer, str]]] = {}
        """The branches of each teller's prepared transfer."""
        self.wanted: SimpleQueue[int] = SimpleQueue()
        """How many plain transfers to make next, with others beside them; 0: no more. Behind them
        none is in doubt.
        """

    def run(self) -> None:
        while count := self.wanted.get():
            for _ in range(count):
                free = [each for each in (2, 3) if each not in self._in_doubt]
                if free and self._choice.random() < 0.25:
                    self._prepare(free[0])
                self._make_plain()
                while self._in_doubt and self._choice.random() < 0.5:
                    self._end_one_branch()
            while self._in_doubt:
                self._end_one_branch()

    def _make_plain(self) -> None:
        bank = self._choice.choice(self._banks)
        transfer = self._transfer(1, *self._choice.sample(ACCOUNTS[1], 2))
        bank.execute(*transfer.statements, "COMMIT")
        bank.note(transfer)

    def _prepare(self, teller: int) -> None:
        one, other = self._choice.sample(ACCOUNTS[teller], 2)
        transfer = self._transfer(teller, one, other)
        if len(self._banks) == 1:
            parts = [(self._banks[0], transfer)]
        else:
            first, second = self._choice.sample([*self._banks], 2)
            parts = [(first, transfer._replace(credit=0)), (second, transfer._replace(debit=0))]
        branches = []
        for bank, part in parts:
            gid = str(bank.session.xid(1, f"{self._banks[0].here.prefix}-{part.id}", bank.here.prefix))
            bank.execute(*part.statements, f"PREPARE TRANSACTION '{gid}'")
            branches.append((bank, part, gid))
        if self._choice.random() < 0.2:
            for bank, _, gid in branches:
                bank.execute(f"ROLLBACK PREPARED '{gid}'")
        else:
            self._choice.shuffle(branches)
            self._in_doubt[teller] = branches

    def _end_one_branch(self) -> None:
        """So two that are in doubt at once are often committed in opposite orders."""
        teller = self._choice.choice([*self._in_doubt])
        bank, part, gid = self._in_doubt[teller].pop()
        bank.execute(f"COMMIT PREPARED '{gid}'")
        bank.note(part)
        if not self._in_doubt[teller]:
            del self._in_doubt[teller]

    def _transfer(self, teller: int, debit: int, credit: int) -> Transfer:
        self._number += 1
        return Transfer(self._number, debit, credit, self._choice.randint(1, 9), teller)


class ReadingProgram:
    """One of the five, with its database."""

    def __init__(self, banks: Sequence[Bank], file: Path) -> None:
        here, prefixes = banks[0].here, [each.here.prefix for each in banks]
        registry = here.config.registry.url
        self._line = [sys.executable, bank_reader.__file__, here.reader.bootstrap, registry, str(file), *prefixes]
        self._banks = banks
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

    def check(self) -> None:
        """Its database is each bank as of its bookmark."""
        counts = []
        for bank in self._banks:
            state = State(
                *(
                    self._select(
                        f"SELECT {', '.join(bank_reader.TABLES[table])} FROM {table} WHERE prefix = ? ORDER BY id",
                        bank.here.prefix,
                    )
                    for table in State._fields
                )
            )
            count = len(state.transfer)
            counts.append(count)
            if (len(state.account), len(state.teller)) != (40, 3):
                assert not count, "the loads come first"
                continue
            wait_until(lambda: len(bank.done) >= count, 90, "the transfers are noted")  # noqa: B023
            assert state == bank.state_behind(count)
        if counts[0] and len(counts) == 1:
            ((lsn,),) = self._select("SELECT lsn FROM bookmark")
            places = [0, *(each.behind for each in self._banks[0].done)]
            assert places[counts[0] - 1] <= lsn < places[counts[0]]
        between = self._select("SELECT id FROM transfer WHERE debit = 0 OR credit = 0 GROUP BY id HAVING count(*) = 1")
        assert not between, "a transfer between banks is torn"

    def _select(self, query: str, *values: str) -> list[Any]:
        with closing(sqlite3.connect(self._file, timeout=60)) as database:
            return database.execute(query, values).fetchall()


@pytest.mark.parametrize("number", [1, 2], ids=["one bank", "two banks"])
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(15, marks=pytest.mark.long),
        pytest.param(KILLS, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_each_reader_is_the_bank_as_of_its_bookmark(
    connector: Maker, own_kafka: Callable[..., KafkaCluster], number: int, kills: int, tmp_path: Path
) -> None:
    """With every fifth kill of a reader a connector is killed, with every tenth the broker."""
    cluster, choice = own_kafka(), random.Random(kills)
    banks = open_banks(connector, cluster, number)
    work = Work(banks, random.Random(kills + 1))
    programs = [ReadingProgram(banks, tmp_path / f"{each}.db") for each in range(READERS)]
    with ThreadPoolExecutor(1) as executor, ended(programs):
        working = executor.submit(work.run)
        try:
            for kill in range(kills):
                work.wanted.put(choice.randint(3, 20))
                program = choice.choice(programs)
                if choice.random() < 0.7:
                    count = program.count_at_start + choice.randint(1, 3)
                    wait_until(lambda: program.has(count), 120, "it reads on")  # noqa: B023
                program.kill()
                program.check()
                program.start()
                if kill % 5 == 2:
                    here = choice.choice(banks).here
                    here.runs[-1].kill9()
                    here.start(ready=False)
                if kill % 10 == 7:
                    cluster.kill()
                    cluster.start()
        finally:
            work.wanted.put(0)
        working.result(60)
        total = sum(len(bank.done) for bank in banks)
        for program in programs:
            wait_until(lambda: program.has(total), 120, "it has all")  # noqa: B023
            program.kill()
            program.check()
    for bank in banks:
        source = [
            bank.session.execute(f"SELECT * FROM {each} ORDER BY id".encode()).fetchall() for each in State._fields
        ]
        assert State(*source) == bank.state_behind(len(bank.done))
        assert any(each.teller > 1 for each in bank.done), "a prepared transfer was committed"
    print(f"{total} transfers; a server was away {[each.away for each in programs]}")


def open_banks(connector: Maker, cluster: KafkaCluster, number: int) -> list[Bank]:
    """The banks, each with its connector, when all rows are loaded."""
    names = [fresh_prefix() for _ in range(number)]
    options: dict[str, Any] = {
        "source": {"tables": [f"public.{each}" for each in State._fields]},
        "prepared": {"hold": 0.2},
    }
    if number > 1:
        options["group"] = {"name": "bank", "members": names}
    banks = []
    for name in names:
        here = connector(kafka_server=cluster, name=name, init=False, **options)
        here.sql(*_SCHEMA)
        here.initialise()
        banks.append(Bank(here))
    for bank in banks:  # a member's connector wants the topics of all
        bank.here.start()
    for bank in banks:
        rows = {"account": 40, "teller": 3}
        wait_until(lambda: all(len(bank.here.read(each)) == n for each, n in rows.items()), 90, "all is loaded")  # noqa: B023
    return banks


@contextmanager
def ended(programs: list[ReadingProgram]) -> Iterator[None]:
    with ExitStack() as ending:
        for each in programs:
            ending.callback(each.kill)
        yield
