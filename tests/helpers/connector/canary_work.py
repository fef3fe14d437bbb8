"""Work on tables of which most columns are under a data policy, with canaries in all of these."""

from __future__ import annotations

import random
from contextlib import suppress

import psycopg

from fixtures.connector import Installation
from helpers.connector.canary import NUMBER, TEXT

RULES = {"*email": "hash", "phone": "drop", "salary": "null", "note": "redact", "ssn": "hash", "photo": "hash", "tags": "null", "doc": "drop"}  # fmt: skip
COLUMNS = {
    "email": f"'{TEXT}'",
    "phone": f"'{TEXT}'",
    "salary": str(NUMBER),
    "note": f"repeat('{TEXT}', 200)",
    "ssn": str(NUMBER),
    "photo": f"'{TEXT}'::bytea",
    "tags": f"ARRAY['{TEXT}']",
    "doc": f"""'{{"{TEXT}": {NUMBER}}}'""",
}
TABLES = """
CREATE TABLE person (id bigint PRIMARY KEY, name text, email text, phone text, salary int, note text, ssn bigint, photo bytea, tags text[], doc jsonb);
ALTER TABLE person ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE letter (id bigint PRIMARY KEY, name text, email text, phone text, salary int, note text, ssn bigint, photo bytea, tags text[], doc jsonb);
ALTER TABLE letter ALTER note SET STORAGE EXTERNAL;
CREATE TABLE remark (name text, email text, phone text, salary int, note text, ssn bigint, photo bytea, tags text[], doc jsonb)
"""
KEYS = range(1, 40)
CHANGES = (
    f"ALTER TABLE person ADD COLUMN second_email text DEFAULT '{TEXT}'",
    "ALTER TABLE person ALTER COLUMN salary TYPE bigint",
    "ALTER TABLE person ALTER COLUMN ssn TYPE numeric",
    "ALTER TABLE person ALTER COLUMN email TYPE varchar(500)",
    f"ALTER TABLE person DROP COLUMN doc, ADD COLUMN doc text DEFAULT '{TEXT}'",
    f"ALTER TABLE letter ADD COLUMN work_email text DEFAULT '{TEXT}'",
)


class CanaryWork:
    """One session that changes the tables at random; prepared transactions lock the tables that
    others then do not touch.
    """

    def __init__(self, here: Installation, seed: int) -> None:
        self._random = random.Random(seed)
        self._connection = psycopg.connect(here.conninfo, autocommit=True)
        here.at_end(self._connection.close)
        self._given = 0

    def some(self, steps: int) -> None:
        for _ in range(steps):
            with self._connection.transaction():
                self._change(self._random.randint(1, 4))
                with suppress(_Undone), self._connection.transaction():
                    self._change(1)
                    raise _Undone

    def large(self) -> None:
        """PostgreSQL streams it before it ends."""
        with self._connection.transaction():
            self._connection.execute(insert("remark", "generate_series(1, 300) n", "n::text"))

    def prepare(self, table: str = "remark") -> str:
        self._given += 1
        gid = f"gid {self._given}"
        self._connection.execute("BEGIN")
        self._connection.execute(insert(table, "generate_series(1000, 1020) n", "n::text", f"n + {100 * self._given}"))
        self._connection.execute(f"PREPARE TRANSACTION '{gid}'")
        return gid

    def end(self, gid: str, how: str) -> None:
        self._connection.execute(f"{how} PREPARED '{gid}'")

    def _change(self, count: int) -> None:
        for _ in range(count):
            table, key = self._random.choice(("person", "letter")), self._random.choice(KEYS)
            column, value = self._random.choice(list(COLUMNS.items()))
            with suppress(psycopg.errors.UniqueViolation), self._connection.transaction():
                self._connection.execute(
                    self._random.choice(
                        (
                            f"{insert(table, f'(SELECT {key} n) one', repr('made'), 'n')} ON CONFLICT (id) DO UPDATE SET name = 'again'",
                            f"UPDATE {table} SET name = name || '.' WHERE id = {key}",
                            f"UPDATE {table} SET {column} = {value if column != 'doc' else column} WHERE id = {key}",
                            f"UPDATE {table} SET id = {key + 100} WHERE id = {key}",
                            f"DELETE FROM {table} WHERE id IN ({key}, {key + 100})",
                            insert("remark", "(SELECT 1) one", "'kept'"),
                        )
                    )
                )


class _Undone(Exception):
    """Of a savepoint."""


def insert(table: str, rows: str, name: str, key: str = "") -> str:
    names = [*(["id"] if table != "remark" else []), "name", *COLUMNS]
    values = [*([key] if table != "remark" else []), name, *COLUMNS.values()]
    values = [f"{value}::jsonb" if column == "doc" and table != "person" else value for column, value in zip(names, values, strict=True)]  # fmt: skip
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM {rows}"


def rules(actions: dict[str, str]) -> list[dict[str, str]]:
    return [{"column": f"public.*.{column}", "action": action} for column, action in actions.items()]
