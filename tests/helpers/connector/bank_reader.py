"""A program that keeps the three tables of one or more banks in SQLite, with the bookmark of what
it has read.

Tests kill it at any moment. Status 4: a server did not answer.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from twofold_reader import Change, GroupReader, Reader, Transaction, Unreachable

TABLES = {
    "account": ("id", "balance"),
    "teller": ("id", "transfers", "turnover"),
    "transfer": ("id", "debit", "credit", "amount"),
}
Unit = tuple[str, int, Iterable[tuple[str, Transaction]]]
"""What comes together: the bookmark behind it, its position (0: it has several), transactions."""


def create(file: Path) -> None:
    """Make the program's database. Who looks into it does not hinder the program."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        for name, columns in TABLES.items():
            database.execute(f"CREATE TABLE {name} (prefix, {', '.join(columns)}, PRIMARY KEY (prefix, id))")
        database.execute("CREATE TABLE bookmark (one INTEGER PRIMARY KEY, place, lsn)")


def main(bootstrap: str, registry: str, file: str, *prefixes: str) -> None:
    database = sqlite3.connect(file, isolation_level=None, timeout=60)
    database.execute("PRAGMA synchronous = OFF")  # a killed process loses nothing that it has written
    found = database.execute("SELECT place FROM bookmark").fetchone()
    with ExitStack() as ending:
        start = found[0] if found else "beginning"
        for mark, lsn, transactions in read({"bootstrap.servers": bootstrap}, registry, prefixes, start, ending):
            database.execute("BEGIN IMMEDIATE")
            for prefix, transaction in transactions:
                for change in transaction.changes:
                    apply(database, prefix, change)
            database.execute("REPLACE INTO bookmark VALUES (1, ?, ?)", [mark, lsn])
            database.execute("COMMIT")


def read(
    kafka: dict[str, str], registry: str, prefixes: tuple[str, ...], start: str, ending: ExitStack
) -> Iterator[Unit]:
    tables = [f"public.{each}" for each in TABLES]
    if len(prefixes) > 1:
        group = ending.enter_context(GroupReader(prefixes, kafka, registry, tables=dict.fromkeys(prefixes, tables)))
        for unit in group.transactions(start):
            yield unit.bookmark, 0, unit.branches
        return
    (prefix,) = prefixes
    for each in ending.enter_context(Reader(prefix, kafka, registry, tables=tables)).transactions(start):
        yield each.bookmark, each.commit_lsn, [(prefix, each)]


def apply(database: sqlite3.Connection, prefix: str, change: Change) -> None:
    """An insert of a row that is here, or a change of one that is not, is an error."""
    table = change.table.removeprefix("public.")
    row: dict[str, Any] = {**(change.after or {}), "prefix": prefix}
    columns = TABLES[table]
    if change.op == "u":
        values = ", ".join(f"{each} = :{each}" for each in columns)
        changed = database.execute(f"UPDATE {table} SET {values} WHERE prefix = :prefix AND id = :id", row)
        if changed.rowcount != 1:
            raise AssertionError(f"{changed.rowcount} rows have the key of {change}")
    elif change.op in {"c", "r"}:
        database.execute(f"INSERT INTO {table} VALUES (:prefix, {', '.join(f':{each}' for each in columns)})", row)
    else:
        raise AssertionError(f"nobody did this: {change}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Unreachable as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
