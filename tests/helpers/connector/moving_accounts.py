"""Accounts in two databases that are shards of one table: a coordinator moves them from one to the
other and pays between them, so that each is there once and their sum stays.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import psycopg

from fixtures.connector import Installation
from helpers.worker import Worker

ACCOUNTS = range(1, 13)
BALANCE = 100
_NOTE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100))"
"""Longer than what PostgreSQL keeps in the row: an update that leaves it does not send it."""

MARK = "INSERT INTO transfer VALUES ('a mark') ON CONFLICT (id) DO UPDATE SET amount = transfer.amount + 1"
"""Changes no sharded table."""

Rows = dict[int, tuple[str, int, str]]
"""By account: the shard, the balance, the note."""


def fill(members: Mapping[str, Installation]) -> None:
    """Make the accounts, one after the other in the next shard."""
    for number, here in enumerate(members.values()):
        listed = ", ".join(f"({each}, {BALANCE}, {_NOTE})" for each in ACCOUNTS if each % len(members) == number)
        here.sql(f"INSERT INTO account VALUES {listed}")


def read_sources(members: Mapping[str, Installation]) -> Rows:
    found: Rows = {}
    for prefix, here in members.items():
        with psycopg.connect(here.conninfo) as connection:
            rows = connection.execute("SELECT id, version, note FROM account").fetchall()
        assert not found.keys() & {row[0] for row in rows}, "the sources have a row twice"
        found |= {row[0]: (prefix, row[1], row[2]) for row in rows}
    return found


def assert_whole(rows: Rows, accounts: Collection[int] = ACCOUNTS) -> None:
    """Each account is there, and nothing of their money is under way."""
    assert rows.keys() == {*accounts}, f"missing: { {*accounts} - rows.keys() }"
    assert sum(balance for _, balance, _ in rows.values()) == len(accounts) * BALANCE


class Branch(NamedTuple):
    """A branch that is prepared."""

    here: Installation
    gid: str


class Change(NamedTuple):
    """A statement in a shard."""

    prefix: str
    statement: str
    values: tuple[Any, ...]


class Mover(Worker):
    """Moves accounts and pays between them until `stop`, by two-phase commit with PgDog's gids.

    As PgDog does, it prepares on every shard, also where nothing changes. The outcomes come late
    and in any order, and some are rolled back.
    """

    def __init__(self, members: Mapping[str, Installation], *, pause_s: float = 0.1) -> None:
        super().__init__("mover")
        self._members = dict(members)
        self._pause_s = pause_s
        self._random = random.Random(11)
        self._waiting: list[tuple[bool, list[Branch], dict[int, str]]] = []
        self._busy: set[int] = set()
        self._places = {each: place for each, (place, _, _) in read_sources(members).items()}
        self._number = 0
        self.moves = 0

    def work(self) -> None:
        while not self._stopped.wait(self._pause_s):
            self._begin()
            while len(self._waiting) > 3 or (self._waiting and self._random.random() < 0.4):
                self._end_a_branch()
        while self._waiting:
            self._end_a_branch()

    def _begin(self) -> None:
        free = [each for each in ACCOUNTS if each not in self._busy]
        here, there = self._random.sample(free, 2)
        self._number += 1
        if self._random.random() < 0.6:
            self._move(here, self._random.choice([place for place in self._members if place != self._places[here]]))
        else:
            self._pay(here, there, self._random.randrange(1, 50))

    def _pay(self, here: int, there: int, amount: int) -> None:
        pay = "UPDATE account SET version = version + %s WHERE id = %s"
        parts = ((here, -amount), (there, amount))
        changes = [Change(self._places[account], pay, (part, account)) for account, part in parts]
        self._wait(self._prepare(changes), {account: self._places[account] for account, _ in parts})

    def _move(self, account: int, to: str) -> None:
        old = self._places[account]
        with psycopg.connect(self._members[old].conninfo) as connection:
            row = connection.execute("SELECT id, version, note FROM account WHERE id = %s", (account,)).fetchone()
        assert row is not None
        changes = [
            Change(old, "DELETE FROM account WHERE id = %s", (account,)),
            Change(to, "INSERT INTO account VALUES (%s, %s, %s)", row),
        ]
        self._wait(self._prepare(changes), {account: to})

    def _prepare(self, changes: list[Change]) -> list[Branch]:
        return [
            self._prepare_branch(shard, prefix, [each for each in changes if each.prefix == prefix])
            for shard, prefix in enumerate(self._members)
        ]

    def _prepare_branch(self, shard: int, prefix: str, changes: list[Change]) -> Branch:
        gid = f"__pgdog_2pc_a1b2_{self._number}_{shard}"
        with psycopg.connect(self._members[prefix].conninfo, autocommit=True) as connection:
            connection.execute("BEGIN")
            for each in changes:
                connection.execute(each.statement.encode(), each.values)
            connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        return Branch(self._members[prefix], gid)

    def _wait(self, branches: list[Branch], places: dict[int, str]) -> None:
        self._random.shuffle(branches)
        self._busy |= places.keys()
        self._waiting.append((self._random.random() < 0.8, branches, places))

    def _end_a_branch(self) -> None:
        commits, left, places = ended = self._random.choice(self._waiting)
        branch = left.pop()
        branch.here.sql(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{branch.gid}'")
        if not left:
            self._waiting.remove(ended)
            self._busy -= places.keys()
            if commits:
                self.moves += any(self._places[each] != place for each, place in places.items())
                self._places |= places
