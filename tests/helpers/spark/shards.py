"""The mirror of accounts that move between shards, which `helpers.connector.moving_accounts` has:
each is there once, and their sum stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from helpers.connector import moving_accounts
from helpers.connector.moving_accounts import ACCOUNTS, MARK, Rows, read_sources
from helpers.spark.duckdb_client import DuckdbProcess
from helpers.spark.group_lake import GroupLake
from helpers.spark.verified import verify_members
from readers.catalogs import CatalogOfTables

Program = Callable[[], list[dict[str, Any]]]
"""Reads the one table."""


def read_plainly(lake: GroupLake) -> list[dict[str, Any]]:
    """Read the one table by its name, as a program does that knows nothing of the product."""
    if lake.choice.name == "jdbc":
        with psycopg.connect(lake.choice.address, row_factory=dict_row) as connection:
            return connection.execute("SELECT * FROM public.account").fetchall()
    if lake.choice.name == "delta":
        frame = lake.spark.read.format("delta").load(f"{lake.choice.address}/public/account")
        return [row.asDict() for row in frame.collect()]
    return _read_by_pyiceberg(_open_catalog(lake))


def _open_catalog(lake: GroupLake) -> Catalog:
    choice = lake.catalog_choice
    if choice.kind == "rest":
        return RestCatalog(lake.catalog, uri=choice.uri, **choice.properties)
    return SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.folder}/group/catalog.db")


def _read_by_pyiceberg(catalog: Catalog) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.load_table("public.account").scan().to_arrow().to_pylist()
    return found


def make_pyiceberg(tables: CatalogOfTables) -> Program:
    """Make a program that asks the catalog what it is once, and for the table at each read."""
    catalog = tables.for_pyiceberg()
    return lambda: _read_by_pyiceberg(catalog)


def make_duckdb(tables: CatalogOfTables, ending: ExitStack) -> Program:
    process = DuckdbProcess()
    ending.callback(process.close)
    for statement in tables.duckdb_attaches():
        process.ask(statement)
    columns = ("id", "version", "note", "_member")

    def read() -> list[dict[str, Any]]:
        rows = process.ask(f"SELECT {', '.join(columns)} FROM {tables.duckdb_name('account')}")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    return read


def find_rows(listed: list[dict[str, Any]]) -> Rows:
    """Find each account once."""
    rows = {each["id"]: (each["_member"], each["version"], each["note"]) for each in listed}
    assert len(rows) == len(listed), f"twice: {sorted(each['id'] for each in listed)}"
    return rows


def assert_whole(listed: list[dict[str, Any]], accounts: Collection[int] = ACCOUNTS) -> None:
    """Each account is there once, and nothing of their money is under way."""
    moving_accounts.assert_whole(find_rows(listed), accounts)


def shows_the_sources(lake: GroupLake) -> bool:
    """Run the mirror to the end of what there is."""
    for here in lake.members.values():
        here.caught_up(mark=MARK)
    lake.run()
    return bool(lake.published) and find_rows(read_plainly(lake)) == read_sources(lake.members)


@contextmanager
def reading_all_the_time(*programs: Program, accounts: Collection[int] = ACCOUNTS) -> Iterator[list[int]]:
    """Let each program read the table again and again, side by side; every read is whole.

    Yield how many reads each of them has made. None of them reads after a read that is not whole.
    """
    reads, ending, failures = [0 for _ in programs], threading.Event(), list[BaseException]()

    def read(place: int) -> None:
        try:
            while not ending.is_set() and not failures:
                assert_whole(programs[place](), accounts)
                reads[place] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(place,), name="reader") for place in range(len(programs))]
    for thread in threads:
        thread.start()
    try:
        yield reads
    finally:
        ending.set()
        for thread in threads:
            thread.join(60)
        assert not failures, failures[0]  # in place of what waits for more reads in vain


def assert_verified(lake: GroupLake) -> None:
    """`verify` compares the rows of each member with its source."""
    for here, compared in verify_members(lake):
        found = {table: (each.rows, each.buckets) for table, each in compared.items()}
        assert found["public.account"] == (here.ask("SELECT count(*) FROM account"), 0)
