"""Clients that write into PostgreSQL whatever happens to it, each with a journal of what it did and
what it was told.

A transaction is a few pieces of work (a transfer, an append, a change of a definition, a
truncate...), some of them taken back by savepoints, and an end: COMMIT, ROLLBACK, or PREPARE with
an outcome that comes at once, soon, or long after. What rows and outbox events it must show
downstream is what PostgreSQL itself returned of each statement.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from chaos.events import event_op
from chaos.journal import Op, Writer

SCHEMA: Final = """
CREATE TABLE marks (id text PRIMARY KEY);
CREATE TABLE bank_a (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE bank_b (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE register (id int PRIMARY KEY, version bigint NOT NULL, writer text);
CREATE TABLE lists (id int PRIMARY KEY, items text NOT NULL);
CREATE TABLE docs (id int PRIMARY KEY, n int NOT NULL, body text);
ALTER TABLE docs ALTER body SET STORAGE EXTERNAL;
CREATE TABLE scratch (id int PRIMARY KEY, v int);
CREATE TABLE shapes (id int PRIMARY KEY, a text);
CREATE TABLE bulk (id bigint PRIMARY KEY, filler text);
CREATE TABLE notes (line text);
CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, type text, payload jsonb);
CREATE SCHEMA hidden;
CREATE TABLE hidden.nothing (id text);
"""
OUTBOX: Final = """
[[outbox]]
table = "public.outbox"

[[outbox]]
messages = 'outbox:(?P<topic>[a-z]+)/(?P<key>.*)'
"""
"""What the connector is told of it."""
KEYS: Final = {"bank_a": 60, "bank_b": 60, "register": 40, "lists": 30, "docs": 40, "scratch": 30, "shapes": 25}
BALANCE: Final = 1000
LONG_ROWS: Final = 1500
LONG_EVENTS: Final = 10
THINK_S: Final = 0.05


def create(dsn: str, journal: Writer) -> None:
    """Tables, and rows that were there before the connector."""
    rows: dict[str, list[dict[str, Any]]] = {
        "bank_a": [{"id": n, "balance": BALANCE} for n in range(KEYS["bank_a"])],
        "bank_b": [{"id": n, "balance": BALANCE} for n in range(KEYS["bank_b"])],
        "register": [{"id": n, "version": 0, "writer": None} for n in range(KEYS["register"])],
        "docs": [{"id": n, "n": 0, "body": f"{n}" * 3000} for n in range(0, KEYS["docs"], 2)],
        "bulk": [{"id": -n, "filler": "f" * 50} for n in range(1, 1001)],
        "notes": [{"line": f"before {n}"} for n in range(300)],
    }
    with psycopg.connect(dsn) as connection:
        connection.execute(SCHEMA)
        for table, values in rows.items():
            names = ", ".join(values[0])
            places = ", ".join(f"%({name})s" for name in values[0])
            connection.cursor().executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", values)
    for table, values in rows.items():
        journal.seed(table, (({"id": row["id"]} if "id" in row else {}, row) for row in values))


class Client(threading.Thread):
    """One session at a time, a new one whenever the old one is lost."""

    def __init__(self, number: int, seed: int, dsn: Callable[[], str], folder: Path, until: threading.Event) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.number = number
        self.told: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._rng = random.Random(f"{seed} client {number}")
        self._dsn = dsn
        self._journal = Writer(folder / f"client-{number}.jsonl")
        self._until = until
        self._given = 0
        self._said = 0
        self._ops: list[Op] = []
        self._prepares = False
        self._may_truncate = True
        self._in_doubt: list[tuple[float, str, str, bool]] = []
        """When to end it, id, gid, whether to commit."""

    def run(self) -> None:
        try:
            while not self._until.is_set():
                try:
                    with psycopg.connect(self._dsn(), autocommit=True, row_factory=dict_row) as connection:
                        connection.execute(
                            "SET lock_timeout = '300ms'; SET idle_in_transaction_session_timeout = '30s'"
                        )
                        self._work(connection)
                except (psycopg.OperationalError, psycopg.InterfaceError):
                    # The server is away: what was not yet told is in the journal as unknown.
                    self._until.wait(0.2)
        except BaseException as error:  # the trial asks for it: nobody else sees a thread's exception
            self.failure = error
        finally:
            self._journal.close()

    def _work(self, connection: psycopg.Connection[Any]) -> None:
        while not self._until.wait(self._rng.expovariate(1 / THINK_S)):
            now = time.monotonic()
            for each in [each for each in self._in_doubt if each[0] <= now]:
                self._end_prepared(connection, *each[1:])
                self._in_doubt.remove(each)
            self._transaction(connection)

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        self._given += 1
        name, chance = f"{self.number}-{self._given}", self._rng.random()
        gid = self._gid(chance, name)
        if any(gid == other for _, _, other, _ in self._in_doubt):
            return
        self._ops = []
        self._prepares = gid is not None
        try:
            connection.execute("BEGIN")
            for _ in range(self._rng.choice([1, 1, 2, 3])):
                self._piece(connection)
            if self._ops or self._rng.random() < 0.5:  # else nothing that is published: an empty transaction
                connection.execute("INSERT INTO marks VALUES (%s)", (name,))
                self._ops.append(("marks", "c", {"id": name}, {"id": name}))
        except psycopg.Error as error:
            # A lock that was not given, a duplicate key, a deadlock, a lost server: nothing was
            # asked to be committed.
            self.errors[type(error).__name__] += 1
            self._begun(name, gid, rolled_back=True)
            if connection.closed:
                raise
            connection.execute("ROLLBACK")
            return
        if gid is not None:
            self._prepare(connection, name, gid)
        elif self._rng.random() < 0.1:
            self._begun(name, None, rolled_back=True)
            connection.execute("ROLLBACK")
        else:
            self._begun(name, None)
            self._ask(connection, name, "COMMIT", "committed")

    def _gid(self, chance: float, name: str) -> str | None:
        """Of a transaction that is to be prepared; some are used over and over."""
        if chance >= 0.25:
            return None
        return f"again {self.number}" if chance < 0.05 else f"gid {name} é'"

    def _begun(self, name: str, gid: str | None, *, rolled_back: bool = False) -> None:
        self._journal.begun(name, gid, self._ops)
        if rolled_back:
            self._tell(name, "rolled back")

    def _tell(self, name: str, what: str) -> None:
        self.told[what] += 1
        self._journal.told(name, what)

    def _ask(self, connection: psycopg.Connection[Any], name: str, statement: str, answer: str) -> bool:
        """Ask for an end. Told nothing: unknown, and the session is lost."""
        try:
            connection.execute(statement.encode())
        except psycopg.Error:
            self._tell(name, "unknown")
            if connection.closed:
                raise
            connection.execute("ROLLBACK")
            return False
        if answer:
            self._tell(name, answer)
        return True

    def _prepare(self, connection: psycopg.Connection[Any], name: str, gid: str) -> None:
        self._begun(name, gid)
        kind = self._rng.random()
        wait_s = 0.0 if kind < 0.4 else self._rng.uniform(0.05, 2) if kind < 0.85 else self._rng.uniform(2, 15)
        doubt = (time.monotonic() + wait_s, name, gid, self._rng.random() < 0.7)
        self._in_doubt.append(doubt)  # if no answer comes as well: a coordinator asks again when the server is back
        if not self._ask(connection, name, f"PREPARE TRANSACTION {_quoted(gid)}", ""):
            self._in_doubt.remove(doubt)
        elif wait_s == 0.0:
            self._end_prepared(connection, *doubt[1:])
            self._in_doubt.remove(doubt)

    def _end_prepared(self, connection: psycopg.Connection[Any], name: str, gid: str, commit: bool) -> None:
        self._ask(
            connection,
            name,
            f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED {_quoted(gid)}",
            "committed" if commit else "rolled back",
        )

    # What a transaction is made of

    def _piece(self, connection: psycopg.Connection[Any]) -> None:
        (piece,) = self._rng.choices(list(_PIECES), list(_PIECES.values()))
        taken_back = self._rng.random() < 0.12
        before = len(self._ops)
        if taken_back:
            connection.execute("SAVEPOINT a")
        # A prepared transaction that truncates within a savepoint, and is rolled back before it is
        # decoded, leaves a slot that PostgreSQL cannot decode: its own bug, refused with a repair.
        self._may_truncate = not (taken_back and self._prepares)
        getattr(self, piece)(connection)
        if taken_back:
            connection.execute("ROLLBACK TO SAVEPOINT a")
            del self._ops[before:]

    def _one(self, connection: psycopg.Connection[Any], table: str, op: str, statement: str, *values: Any) -> bool:
        """Carry it out and remember what it returned. False: there was no such row."""
        rows = connection.execute(statement.encode(), values).fetchall()
        for row in rows:
            self._ops.append((table, op, {"id": row["id"]} if "id" in row else None, None if op == "d" else row))
        return bool(rows)

    def _key(self, table: str) -> int:
        return self._rng.randrange(KEYS[table])

    def _transfer(self, connection: psycopg.Connection[Any]) -> None:
        amount = self._rng.randint(1, 50)
        for table, change in (("bank_a", -amount), ("bank_b", amount)):
            self._one(connection, table, "u", f"UPDATE {table} SET balance = balance + %s WHERE id = %s RETURNING *", change, self._key(table))  # fmt: skip

    def _register(self, connection: psycopg.Connection[Any]) -> None:
        for _ in range(self._rng.randint(1, 3)):
            key = self._key("register")
            if self._one(connection, "register", "u", "UPDATE register SET version = version + 1, writer = %s WHERE id = %s RETURNING *", f"{self.number}-{self._given}", key):  # fmt: skip
                row = self._ops[-1][3]
                assert row is not None
                self._say(connection, str(key), row["version"], by_message=self._rng.random() < 0.3)

    def _say(self, connection: psycopg.Connection[Any], key: str, version: int, *, by_message: bool) -> None:
        """An event of what was changed, under the lock of its row; now and then its row in the
        outbox is removed or changed, which is no event.
        """
        self._said += 1
        name, number, topic = f"{self.number}-{self._given}", self._said, self._rng.choice(("changed", "audit"))
        value, headers = json.dumps({"tx": name, "n": number, "version": version}), {}
        if by_message:
            connection.execute("SELECT pg_logical_emit_message(true, %s, %s::text)", (f"outbox:{topic}/{key}", value))
        else:
            headers = {"id": f"{name}-{number}", "type": f"version {version}"}
            inserted = connection.execute(
                "INSERT INTO outbox VALUES (%s, %s, %s, %s, %s) RETURNING payload::text",
                (headers["id"], topic, key, headers["type"], value),
            ).fetchone()
            assert inserted is not None
            value = inserted["payload"]
            if self._rng.random() < 0.2:
                statement = self._rng.choice(("DELETE FROM outbox", "UPDATE outbox SET type = 'another'"))
                connection.execute(f"{statement} WHERE id = %s".encode(), (headers["id"],))
        self._ops.append(event_op(name, number, topic, key, version, value, headers))

    def _append(self, connection: psycopg.Connection[Any]) -> None:
        key, item = self._key("lists"), f"{self.number}-{self._given}-{len(self._ops)}"
        if not self._one(connection, "lists", "u", "UPDATE lists SET items = items || ' ' || %s WHERE id = %s AND length(items) < 6000 RETURNING *", item, key):  # fmt: skip
            self._one(connection, "lists", "d", "DELETE FROM lists WHERE id = %s RETURNING id", key)
            self._one(connection, "lists", "c", "INSERT INTO lists VALUES (%s, %s) RETURNING *", key, item)

    def _note(self, connection: psycopg.Connection[Any]) -> None:
        line = f"{self.number}-{self._given}-{len(self._ops)}"
        self._one(connection, "notes", "c", "INSERT INTO notes VALUES (%s) RETURNING *", line)

    def _doc(self, connection: psycopg.Connection[Any]) -> None:
        """A large value that is mostly left alone, also while the key changes."""
        key, chance = self._key("docs"), self._rng.random()
        if chance < 0.2 and self._one(connection, "docs", "d", "DELETE FROM docs WHERE id = %s RETURNING id", key):
            return
        if chance < 0.4:
            rows = connection.execute("UPDATE docs SET id = -id - 1, n = n + 1 WHERE id = %s RETURNING *", (key,)).fetchall()  # fmt: skip
            for row in rows:
                self._ops += [("docs", "d", {"id": key}, None), ("docs", "c", {"id": row["id"]}, row)]
            if rows:
                self._one(connection, "docs", "d", "DELETE FROM docs WHERE id = %s RETURNING id", -key - 1)
                return
        body = ", body = md5(random()::text) || repeat('b', 4000)" if chance > 0.8 else ""
        if not self._one(connection, "docs", "u", f"UPDATE docs SET n = n + 1{body} WHERE id = %s RETURNING *", key):
            self._one(connection, "docs", "c", "INSERT INTO docs VALUES (%s, 0, repeat(%s, 3000)) RETURNING *", key, f"{self._given}")  # fmt: skip

    def _scratch(self, connection: psycopg.Connection[Any]) -> None:
        key = self._key("scratch")
        if self._rng.random() < 0.06 and self._may_truncate:
            connection.execute("TRUNCATE scratch")
            self._ops.append(("scratch", "t", None, None))
        if not self._one(connection, "scratch", "u", "UPDATE scratch SET v = v + 1 WHERE id = %s RETURNING *", key):
            self._one(connection, "scratch", "c", "INSERT INTO scratch VALUES (%s, 0) RETURNING *", key)

    def _shape(self, connection: psycopg.Connection[Any]) -> None:
        """A definition that changes, and rows under it."""
        chance, new = self._rng.random(), f"c{self.number}_{self._given}_{len(self._ops)}"
        if chance < 0.05:
            connection.execute(f"ALTER TABLE shapes ADD COLUMN {new} text".encode())
        elif chance < 0.08:
            found = connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'shapes'::regclass AND attname ~ '^c[0-9]' AND NOT attisdropped"
            ).fetchall()
            if found:
                connection.execute(f"ALTER TABLE shapes DROP COLUMN {self._rng.choice(found)['attname']}".encode())
        key = self._key("shapes")
        if not self._one(connection, "shapes", "u", "UPDATE shapes SET a = a || 'x' WHERE id = %s AND length(a) < 50 RETURNING *", key):  # fmt: skip
            self._one(connection, "shapes", "d", "DELETE FROM shapes WHERE id = %s RETURNING id", key)
            self._one(connection, "shapes", "c", "INSERT INTO shapes (id, a) VALUES (%s, 'x') RETURNING *", key)

    def _message(self, connection: psycopg.Connection[Any]) -> None:
        text = f"{self.number}-{self._given}-{len(self._ops)}"
        connection.execute("SELECT pg_logical_emit_message(true, 'chaos', %s::text)", (text,))
        self._ops.append(("messages", "m", None, {"content": text}))

    def _nothing(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("INSERT INTO hidden.nothing VALUES ('x')")

    def _bulk(self, connection: psycopg.Connection[Any]) -> None:
        """Large enough to be streamed before its end, or, where it is not streamed, to go to Kafka
        before it.
        """
        first = (self.number * 1_000_000 + self._given) * 10_000
        rows = self._rng.randint(300, LONG_ROWS)
        width = self._rng.choice([60, 60, 2000])
        insert = f"INSERT INTO bulk SELECT n, repeat('x', {width}) FROM generate_series(%s::bigint, %s::bigint) n RETURNING *"
        self._one(connection, "bulk", "c", insert, first, first + rows)
        for version in range(LONG_EVENTS):
            self._say(connection, f"bulk {first}", version, by_message=False)
        before = len(self._ops)
        connection.execute("SAVEPOINT b")
        self._one(connection, "bulk", "c", insert, first + rows + 1, first + 2 * rows)
        for version in range(LONG_EVENTS, 2 * LONG_EVENTS):
            self._say(connection, f"bulk {first}", version, by_message=False)
        if self._rng.random() < 0.5:
            connection.execute("ROLLBACK TO SAVEPOINT b")
            del self._ops[before:]
        if self._rng.random() < 0.5:
            self._one(connection, "bulk", "d", "DELETE FROM bulk WHERE id >= %s AND id < %s RETURNING id", first, first + rows // 2)  # fmt: skip


_PIECES: Final = {
    "_transfer": 6, "_register": 5, "_append": 4, "_note": 2, "_doc": 4, "_scratch": 4, "_shape": 3, "_message": 1, "_nothing": 1, "_bulk": 0.12,
}  # fmt: skip


def settle(dsn: str, seed: int) -> None:
    """Every transaction that is still in doubt ends, one way or the other."""
    rng = random.Random(f"{seed} settle")
    with psycopg.connect(dsn, autocommit=True) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts ORDER BY gid").fetchall():
            outcome = rng.choice(["COMMIT", "ROLLBACK"])
            connection.execute(f"{outcome} PREPARED {_quoted(gid)}".encode())


def source_tables(dsn: str, tables: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """What the source holds now."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return {table: connection.execute(f"SELECT * FROM {table}".encode()).fetchall() for table in tables}


def _quoted(gid: str) -> str:
    return "'" + gid.replace("'", "''") + "'"
