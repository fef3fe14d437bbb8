"""Traffic that a backfill must not be disturbed by, and the comparison of what a consumer has at the end with the source.

Sessions change the keys that are being read, insert before and behind them, delete, change keys, leave TOASTed values unchanged, take savepoints back, and prepare transactions that end in either way,
some of them much later.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from connector_topics import Seen
from fix_connector import Installation

TABLES = """
CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text);
CREATE TABLE item (id bigint PRIMARY KEY, version int NOT NULL, big text);
ALTER TABLE item ALTER big SET STORAGE EXTERNAL;
CREATE TABLE line (said text);
"""
ITEMS, LINES = 4000, 500
FILL = (
    f"INSERT INTO item SELECT n * 10, 0, repeat(md5(n::text), 80) FROM generate_series(1, {ITEMS}) n",
    f"INSERT INTO line SELECT 'before ' || n FROM generate_series(1, {LINES}) n",
)


class Session:
    """One that works on keys of its own, so that sessions do not wait for each other."""

    def __init__(self, conninfo: str, number: int, of: int) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(conninfo, autocommit=True)
        self._random = random.Random(number)
        self._number, self._of = number, of
        self._prepared: dict[str, set[int]] = {}
        self._given = 0

    def run(self, enough: threading.Event) -> None:
        while not enough.wait(0.001):
            if self._random.random() < 0.2:
                self._prepare()
            else:
                self._transaction()
            if len(self._prepared) > 3 or (self._prepared and self._random.random() < 0.1):
                self._resolve()
        while self._prepared:
            self._resolve()
        self._connection.close()

    def _free(self) -> int:
        locked = set().union(*self._prepared.values())
        while (key := self._random.randrange(self._number, ITEMS * 10, self._of)) in locked:
            pass
        return key

    def _transaction(self) -> None:
        with self._connection.transaction():
            self._changes()

    def _changes(self) -> set[int]:
        keys = {key for _ in range(self._random.randint(1, 3)) for key in self._change()}
        execute = self._connection.execute
        execute("SAVEPOINT a")
        execute("UPDATE item SET version = -1 WHERE id = %s", (min(keys),))
        execute("INSERT INTO line VALUES ('never')")
        execute("ROLLBACK TO a")
        if self._random.random() < 0.3:
            execute("INSERT INTO line VALUES (%s)", (f"during {self._number} {self._given}",))
        return keys

    def _change(self) -> set[int]:
        execute, key = self._connection.execute, self._free()
        key -= key % 10 * (self._random.random() < 0.8)  # mostly the rows that are there
        key -= (key - self._number) % self._of
        if key in set().union(*self._prepared.values()) or key < 0:
            return {self._free()}
        match self._random.random():
            case chance if chance < 0.5:
                execute("UPDATE item SET version = version + 1 WHERE id = %s", (key,))
            case chance if chance < 0.6:
                execute(
                    "UPDATE item SET version = version + 1, big = repeat(md5(random()::text), 90) WHERE id = %s", (key,)
                )
            case chance if chance < 0.7:
                execute("DELETE FROM item WHERE id = %s", (key,))
            case chance if chance < 0.85:
                other = self._free()
                taken = execute("SELECT FROM item WHERE id = %s", (other,)).fetchone()
                if taken is None:
                    execute("UPDATE item SET id = %s WHERE id = %s", (other, key))
                    return {key, other}
            case _:
                execute("INSERT INTO item VALUES (%s, 1, repeat('x', 3000)) ON CONFLICT (id) DO NOTHING", (key,))
        return {key}

    def _prepare(self) -> None:
        self._given += 1
        gid = f"s{self._number} {self._given}"
        self._connection.execute("BEGIN")
        keys = self._changes()
        self._connection.execute(f"PREPARE TRANSACTION '{gid}'")
        self._prepared[gid] = keys

    def _resolve(self) -> None:
        gid = self._random.choice(list(self._prepared))
        outcome = "ROLLBACK" if self._random.random() < 0.3 else "COMMIT"
        self._connection.execute(f"{outcome} PREPARED '{gid}'")
        del self._prepared[gid]


@contextmanager
def traffic(here: Installation, sessions: int = 3) -> Iterator[None]:
    """While this lasts; what is in doubt at its end is ended."""
    enough = threading.Event()
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            Session(here.conninfo, number, sessions).run(enough)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(sessions)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def compare(here: Installation) -> None:
    """What a consumer has that folds by key is the source, row by row; of a table without a key, as many of each."""
    topics = here.everything()
    found = fold(topics.rows, topics.commits, here.table("item"))
    with psycopg.connect(here.conninfo) as connection:
        wanted = {row[0]: row for row in connection.execute("SELECT id, version, big FROM item")}
        lines = Counter(connection.execute("SELECT said FROM line").fetchall())
    wrong = {key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)}
    assert not wrong, {key: (_short(found.get(key)), _short(wanted.get(key))) for key in sorted(wrong)[:10]}
    said = Counter((s.value["after"]["said"],) for s in topics.rows if s.topic == here.table("line"))
    assert said == lines, (said - lines, lines - said)
    sequences = [s.value["sequence"] for s in topics.commits]
    assert sequences == list(range(1, len(sequences) + 1))
    assert topics.commits[-1].value["backfilling"] == []


def _short(row: Any) -> Any:
    return row if row is None else tuple(str(value)[:20] for value in row)


def fold(rows: Any, commits: Any, topic: str) -> dict[int, tuple[Any, ...]]:
    """In the order of the source's commits, which the commit records tell; a value that was not sent is the one that the row had, under its former key if that has changed."""
    sequence_of: dict[tuple[str, int, int], int] = {}
    outcomes: dict[str, int] = {}
    for commit in (s.value for s in commits):
        for r in commit["ranges"]:
            sequence_of |= {
                (r["topic"], r["partition"], at): commit["sequence"] for at in range(r["first"], r["last"] + 1)
            }
        outcomes |= {p["id"]: p["commit_lsn"] for p in commit["prepared"]}

    def order(seen: Seen) -> tuple[int, int, int]:
        transaction = seen.value["transaction"]
        if transaction is None:
            return sequence_of[seen.place], 0, seen.offset
        high, low = transaction["id"].split(":")[1].split("/")
        lsn = (int(high, 16) << 32) + int(low, 16)
        return sequence_of[seen.place], outcomes.get(transaction["id"], lsn), transaction["total_order"]

    found: dict[int, tuple[Any, ...]] = {}
    gone: dict[int, tuple[Any, ...]] = {}
    mine = [s for s in rows if s.topic == topic and s.value is not None]
    # A change of a key is two records with one place in their transaction: the delete comes first.
    for seen in sorted(mine, key=lambda s: (*order(s), s.value["op"] != "d")):
        value = seen.value
        if value["op"] == "t":
            found.clear()
            continue
        key = seen.key["id"]
        if value["op"] == "d":
            gone[key] = found.pop(key, (key, None, "unknown"))
            continue
        row = dict(value["after"])
        if "big" in value["unchanged"]:
            before = gone.get(value["before"]["id"]) if value["op"] == "c" else found.get(key)
            row["big"] = before[2] if before else "unknown"
        found[key] = row["id"], row["version"], row["big"]
    return found
