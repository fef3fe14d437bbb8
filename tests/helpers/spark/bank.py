"""A bank for the mirror's crash tests: two tables whose total never changes and a keyless one that
always has as many rows; and who reads the mirror meanwhile.

It writes through the tests' writer into its own prefix and reads through `read_cut`, or in one
snapshot of PostgreSQL.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from py4j.protocol import Py4JJavaError

from fixtures.spark import Lake
from helpers.spark.writer import Open, Writer, table
from helpers.worker import Worker
from twofold_spark.errors import SetupError

MONEY, TOKENS = 2 * 20 * 100, 30
"""What the two tables hold together, and how many rows the keyless one has; in every cut."""


class Bank(Worker):
    """Moves money between two tables without a pause, and gives tokens, of which many are alike,
    another colour; until `stop`."""

    def __init__(self, writer: Writer) -> None:
        super().__init__("bank")
        self._writer = writer
        self._busy = threading.Lock()
        self.tokens: dict[int, dict[Any, Any]] = {}
        """The keyless table after each commit record: nothing else shows that a batch was applied
        twice."""
        self._keep_tokens()

    @contextmanager
    def between(self) -> Iterator[None]:
        """Between two of its transactions, as the connector puts those of its producers one after
        another."""
        with self._busy:
            yield

    def work(self) -> None:
        rng = random.Random(1)
        while not self._stopped.wait(0.05):
            amount, giver, taker = rng.randrange(50), rng.randrange(20), rng.randrange(20)
            kind = self._writer.commit() if rng.random() < 0.8 else self._writer.abort()
            with self._busy, kind as tx:
                for name, key, change in (("accounts", giver, -amount), ("vault", taker, amount)):
                    balance = self._writer.model[name][key]["balance"]
                    tx.upsert(name, {"id": key, "balance": balance + change})
                self._recolour(tx, rng)
            self._keep_tokens()

    def _keep_tokens(self) -> None:
        self.tokens[self._writer.sequence] = copy.deepcopy(self._writer.model["tokens"])

    def _recolour(self, tx: Open, rng: random.Random) -> None:
        before = {"colour": rng.choice(sorted(self._writer.model["tokens"]))}
        after = {"colour": rng.randrange(4)}
        match rng.random():
            case chance if chance < 0.05:
                tx.truncate("tokens")
                for _ in range(TOKENS):
                    tx.keyless("tokens", "c", after=after)
            case chance if chance < 0.4:
                tx.keyless("tokens", "c", after=after)
                tx.keyless("tokens", "d", before=before)
            case _:
                tx.keyless("tokens", "u", before=before, after=after)


def opened(w: Writer) -> Bank:
    """A bank with money in it, and at work."""
    for name in ("accounts", "vault"):
        w.table(table(name, {"id": "int8", "balance": "int8"}))
    w.table(table("tokens", {"colour": "int4"}, key=()), partitions=1)
    with w.commit() as tx:
        for i in range(TOKENS):
            tx.keyless("tokens", "c", after={"colour": i % 4})
        for i in range(20):
            tx.upsert("accounts", {"id": i, "balance": 100})
            tx.upsert("vault", {"id": i, "balance": 100})
    bank = Bank(w)
    bank.start()
    return bank


def totals(lake: Lake, **at: int) -> tuple[int, int]:
    cut = lake.cut(**at)
    sums = [
        cut[f"public.{name}"].agg({column: "sum"})
        for name, column in (("accounts", "balance"), ("vault", "balance"), ("tokens", "_copies"))
    ]
    ((one,), (other,), (tokens,)) = sums[0].unionAll(sums[1]).unionAll(sums[2]).collect()
    return one + other, tokens


def _totals_in_one_snapshot(connection: psycopg.Connection[Any], pause: Callable[[], object]) -> tuple[int, int]:
    """As a reader of several tables takes them, with time for a cut to come in between."""

    def value(query: str) -> Any:
        row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None

    with connection.transaction():
        if (
            value("SELECT to_regclass('twofold.cuts')") is None
            or value("SELECT max(sequence) FROM twofold.cuts") is None
        ):
            raise SetupError("no cut yet")
        one = value("SELECT sum(balance) FROM accounts")
        pause()
        other = value("SELECT sum(balance) FROM vault")
        pause()
        return int(one + other), int(value("SELECT sum(_copies) FROM tokens"))


class Reader(Worker):
    """Reads the last cut again and again, while jobs write and are killed: the totals are always
    the same."""

    def __init__(self, lake: Lake) -> None:
        super().__init__("reader")
        self._lake = lake
        self.totals: list[tuple[int, int]] = []
        self.start()

    def work(self) -> None:
        if self._lake.choice.name != "jdbc":
            self._read(lambda: totals(self._lake))
            return
        with psycopg.connect(self._lake.choice.address, autocommit=True) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._read(lambda: _totals_in_one_snapshot(connection, lambda: self._stopped.wait(0.05)))

    def _read(self, look: Callable[[], tuple[int, int]]) -> None:
        last = False
        while not last:
            last = self._stopped.wait(0.2)
            try:
                self.totals.append(look())
            except SetupError:
                pass  # no cut yet
            except Py4JJavaError as error:
                # A job that is stopped in the midst of a commit keeps the test's catalog to itself.
                if "SQLITE_BUSY" not in str(error):
                    raise

    def stop(self) -> None:
        super().stop()
        assert set(self.totals) == {(MONEY, TOKENS)}, self.totals


def assert_cuts_right(lake: Lake, bank: Bank, *, all_of_them: bool = False) -> None:
    """Each cut that is kept has what the bank had then. PostgreSQL has the last one alone.

    A cut takes a second to read: if not `all_of_them`, some are looked at.
    """
    if lake.choice.name == "jdbc":
        return
    cuts = f"delta.`{lake.choice.address}/twofold/cuts`" if lake.choice.address else f"{lake.catalog}.twofold.cuts"
    sequences = [row[0] for row in lake.spark.sql(f"SELECT sequence FROM {cuts} WHERE whole").collect()]
    chosen = sequences if all_of_them else random.Random(4).sample(sequences, min(4, len(sequences)))
    for sequence in chosen:
        assert totals(lake, sequence=sequence) == (MONEY, TOKENS), sequence
        tokens = lake.cut(sequence=sequence)["public.tokens"]
        assert lake.rows("tokens", tokens) == bank.tokens[sequence], sequence
