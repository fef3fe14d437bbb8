"""A program that keeps a bank's three tables in SQLite, with the bookmark of what it has read.

Tests kill it at any moment. Status 4: a server did not answer.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from twofold_reader import Change, Reader, Unreachable

TABLES = {
    "account": ("id", "balance"),
    "teller": ("id", "transfers", "turnover"),
    "transfer": ("id", "debit", "credit", "amount"),
}


def create(file: Path) -> None:
    """Make the program's database. Who looks into it does not hinder the program."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        for name, columns in TABLES.items():
            database.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, {', '.join(columns[1:])})")
        database.execute("CREATE TABLE bookmark (one INTEGER PRIMARY KEY, place, lsn)")


def main(bootstrap: str, registry: str, prefix: str, file: str) -> None:
    database = sqlite3.connect(file, isolation_level=None, timeout=60)
    database.execute("PRAGMA synchronous = OFF")  # a killed process loses nothing that it has written
    found = database.execute("SELECT place FROM bookmark").fetchone()
    names = [f"public.{each}" for each in TABLES]
    with Reader(prefix, {"bootstrap.servers": bootstrap}, registry, tables=names) as reader:
        for transaction in reader.transactions(found[0] if found else "beginning"):
            database.execute("BEGIN IMMEDIATE")
            for change in transaction.changes:
                apply(database, change)
            mark = transaction.bookmark, transaction.commit_lsn
            database.execute("REPLACE INTO bookmark VALUES (1, ?, ?)", mark)
            database.execute("COMMIT")


def apply(database: sqlite3.Connection, change: Change) -> None:
    """An insert of a row that is here, or a change of one that is not, is an error."""
    table = change.table.removeprefix("public.")
    row: dict[str, Any] = change.after or {}
    columns = TABLES[table]
    if change.op == "u":
        changed = database.execute(
            f"UPDATE {table} SET {', '.join(f'{each} = :{each}' for each in columns)} WHERE id = :id", row
        )
        if changed.rowcount != 1:
            raise AssertionError(f"{changed.rowcount} rows have the key of {change}")
    elif change.op in {"c", "r"}:
        database.execute(f"INSERT INTO {table} VALUES ({', '.join(f':{each}' for each in columns)})", row)
    else:
        raise AssertionError(f"nobody did this: {change}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Unreachable as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
