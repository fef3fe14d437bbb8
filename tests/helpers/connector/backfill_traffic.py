"""Traffic that a backfill must not be disturbed by, and the comparison of what a consumer has at
the end with the source.

Sessions change the keys that are being read, insert before and behind them, delete, change keys,
leave TOASTed values unchanged, take savepoints back, and prepare transactions that end in either
way, some of them much later. They do so at a given rate, and what they did is counted.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from fixtures.connector import Installation
from helpers.connector.topics import Seen

TABLES = """
CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text);
CREATE TABLE item (id bigint PRIMARY KEY, version int NOT NULL, big text);
ALTER TABLE item ALTER big SET STORAGE EXTERNAL;
CREATE TABLE line (said text);
"""
ITEMS, LINES = 4000, 500
SESSIONS = 3


def fill(items: int = ITEMS) -> tuple[str, ...]:
    return (
        f"INSERT INTO item SELECT n * 10, 0, repeat(md5(n::text), 80) FROM generate_series(1, {items}) n",
        f"INSERT INTO line SELECT 'before ' || n FROM generate_series(1, {LINES}) n",
    )


class Session:
    """One that works on keys of its own, so that sessions do not wait for each other."""

    def __init__(self, conninfo: str, number: int, *, items: int, per_second: float) -> None:
        """A statement changes about as many rows as make the rate a matter of a hundred
        transactions a second.
        """
        self._connection: psycopg.Connection[Any] = psycopg.connect(conninfo, autocommit=True)
        self._random = random.Random(number)
        self._number, self._items, self._per_second = number, items, per_second
        self._width = max(1, round(per_second / 60))
        self._prepared: dict[str, tuple[set[int], int]] = {}
        self._given = 0
        self._made = 0
        self.changes = 0
        """Of transactions that have committed."""

    def run(self, enough: threading.Event) -> None:
        begun = time.monotonic()
        while not enough.wait(max(0.001, begun + self.changes / self._per_second - time.monotonic())):
            if self._random.random() < 0.2:
                self._prepare()
            else:
                self._transaction()
            if len(self._prepared) > 3 or (self._prepared and self._random.random() < 0.1):
                self._resolve()
        while self._prepared:
            self._resolve()
        self._connection.close()

    def _locked(self) -> set[int]:
        return set().union(*(keys for keys, _ in self._prepared.values()))

    def _free(self) -> int:
        """Mostly of a row that was there."""
        locked = self._locked()
        while True:
            key = self._random.randrange(self._items * 10)
            key -= key % 10 * (self._random.random() < 0.8)
            key -= (key // 10 - self._number) % SESSIONS * 10
            if key >= 0 and key not in locked:
                return key

    def _execute(self, statement: str, *values: Any) -> None:
        self._made += max(0, self._connection.execute(statement, values).rowcount)

    def _transaction(self) -> None:
        self._made = 0
        with self._connection.transaction():
            self._changes()
        self.changes += self._made

    def _changes(self) -> set[int]:
        keys = {key for _ in range(self._random.randint(1, 3)) for key in self._change()}
        execute = self._connection.execute
        execute("SAVEPOINT a")
        execute("UPDATE item SET version = -1 WHERE id = %s", (min(keys),))
        execute("INSERT INTO line VALUES ('never')")
        execute("ROLLBACK TO a")
        if self._random.random() < 0.3:
            self._execute("INSERT INTO line VALUES (%s)", f"during {self._number} {self._given}")
        return keys

    def _change(self) -> set[int]:
        keys = sorted({self._free() for _ in range(self._width)})
        match self._random.random():
            case chance if chance < 0.5:
                self._execute("UPDATE item SET version = version + 1 WHERE id = ANY (%s)", keys)
            case chance if chance < 0.6:
                self._execute(
                    "UPDATE item SET version = version + 1, big = repeat(md5(random()::text), 90) WHERE id = ANY (%s)",
                    keys,
                )
            case chance if chance < 0.7:
                self._execute("DELETE FROM item WHERE id = ANY (%s)", keys)
            case chance if chance < 0.85:
                return self._change_key(keys[0])
            case _:
                self._execute(
                    "INSERT INTO item SELECT id, 1, repeat('x', 3000) FROM unnest(%s::bigint[]) id ON CONFLICT (id) DO NOTHING",
                    keys,
                )
        return set(keys)

    def _change_key(self, key: int) -> set[int]:
        other = self._free()
        if self._connection.execute("SELECT FROM item WHERE id = %s", (other,)).fetchone() is None:
            self._execute("UPDATE item SET id = %s WHERE id = %s", other, key)
        return {key, other}

    def _prepare(self) -> None:
        self._given += 1
        self._made = 0
        gid = f"s{self._number} {self._given}"
        self._connection.execute("BEGIN")
        keys = self._changes()
        self._connection.execute(f"PREPARE TRANSACTION '{gid}'")
        self._prepared[gid] = keys, self._made

    def _resolve(self) -> None:
        gid = self._random.choice(list(self._prepared))
        outcome = "ROLLBACK" if self._random.random() < 0.3 else "COMMIT"
        self._connection.execute(f"{outcome} PREPARED '{gid}'")
        _, made = self._prepared.pop(gid)
        self.changes += made * (outcome == "COMMIT")


class Traffic:
    """What it came to."""

    def __init__(self, sessions: list[Session]) -> None:
        self._sessions = sessions
        self._begun = time.monotonic()
        self.per_second = 0.0

    def ended(self) -> None:
        self.per_second = sum(session.changes for session in self._sessions) / (time.monotonic() - self._begun)


@contextmanager
def traffic(here: Installation, *, per_second: float = 300, items: int = ITEMS) -> Iterator[Traffic]:
    """While this lasts; what is in doubt at its end is ended."""
    enough = threading.Event()
    failures: list[BaseException] = []
    each = per_second / SESSIONS
    sessions = [Session(here.conninfo, number, items=items, per_second=each) for number in range(SESSIONS)]

    def run(session: Session) -> None:
        try:
            session.run(enough)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(session,)) for session in sessions]
    told = Traffic(sessions)
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        enough.set()
        told.ended()
        for thread in threads:
            thread.join()
    assert not failures, failures


def compare(here: Installation) -> None:
    """What a consumer has that folds by key is the source, row by row; of a table without a key, as
    many of each.
    """
    topics = here.everything(300)
    found = fold(topics.rows, topics.commits, here.table("item"))
    newest = newest_by_offset(topics.rows, here.table("item"))
    with psycopg.connect(here.conninfo) as connection:
        wanted = {row[0]: row for row in connection.execute("SELECT id, version, big FROM item")}
        lines = Counter(connection.execute("SELECT said FROM line").fetchall())
    wrong = {key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)}
    assert not wrong, {key: (_short(found.get(key)), _short(wanted.get(key))) for key in sorted(wrong)[:10]}
    assert newest == {key: row[1] for key, row in wanted.items()}, "the last offset of a key is not its last change"
    said = Counter((s.value["after"]["said"],) for s in topics.rows if s.topic == here.table("line"))
    assert said == lines, (said - lines, lines - said)
    sequences = [s.value["sequence"] for s in topics.commits]
    assert sequences == list(range(1, len(sequences) + 1))
    assert topics.commits[-1].value["backfilling"] == []


def _short(row: Any) -> Any:
    return row if row is None else tuple(str(value)[:20] for value in row)


def newest_by_offset(rows: Any, topic: str) -> dict[int, int]:
    """Each key's version as its last record has it: what a consumer has that knows no commit
    records. Of one key, the order of offsets is the order of commits.
    """
    found: dict[int, int] = {}
    for seen in sorted((s for s in rows if s.topic == topic and s.value is not None), key=lambda s: s.offset):
        if seen.value["op"] == "d":
            found.pop(seen.key["id"], None)
        else:
            found[seen.key["id"]] = seen.value["after"]["version"]
    return found


def fold(rows: Any, commits: Any, topic: str) -> dict[int, tuple[Any, ...]]:
    """In the order of the source's commits, which the commit records tell; a value that was not
    sent is the one that the row had, under its former key if that has changed.
    """
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
