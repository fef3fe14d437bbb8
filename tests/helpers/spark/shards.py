"""The mirror of accounts that move between shards, which `helpers.connector.moving_accounts` has:
each is there once, and their sum stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row
from pyiceberg.catalog.sql import SqlCatalog

from helpers.connector import moving_accounts
from helpers.connector.moving_accounts import MARK, Rows, read_sources
from helpers.spark.group_lake import GroupLake
from twofold_spark.sources.postgres_connection import build_jdbc_url
from twofold_spark.sources.source_database import SourceDatabase
from twofold_spark.verify.verification import Verification


def read_plainly(lake: GroupLake) -> list[dict[str, Any]]:
    """Read the one table by its name, as a program does that knows nothing of the product."""
    if lake.choice.name == "jdbc":
        with psycopg.connect(lake.choice.address, row_factory=dict_row) as connection:
            return connection.execute("SELECT * FROM public.account").fetchall()
    if lake.choice.name == "delta":
        frame = lake.spark.read.format("delta").load(f"{lake.choice.address}/public/account")
        return [row.asDict() for row in frame.collect()]
    catalog = SqlCatalog(lake.catalog, uri=f"sqlite:///{lake.folder}/group/catalog.db")
    found: list[dict[str, Any]] = catalog.load_table("public.account").scan().to_arrow().to_pylist()
    return found


def find_rows(listed: list[dict[str, Any]]) -> Rows:
    """Find each account once."""
    rows = {each["id"]: (each["_member"], each["version"], each["note"]) for each in listed}
    assert len(rows) == len(listed), f"twice: {sorted(each['id'] for each in listed)}"
    return rows


def assert_whole(listed: list[dict[str, Any]]) -> None:
    """Each account is there once, and nothing of their money is under way."""
    moving_accounts.assert_whole(find_rows(listed))


def shows_the_sources(lake: GroupLake) -> bool:
    """Run the mirror to the end of what there is."""
    for here in lake.members.values():
        here.caught_up(mark=MARK)
    lake.run()
    return bool(lake.published) and find_rows(read_plainly(lake)) == read_sources(lake.members)


@contextmanager
def reading_all_the_time(*programs: Callable[[], list[dict[str, Any]]]) -> Iterator[list[int]]:
    """Let each program read the table again and again, side by side; every read is whole.

    Yield how many reads each of them has made.
    """
    reads, ending, failures = [0 for _ in programs], threading.Event(), list[BaseException]()

    def read(place: int) -> None:
        try:
            while not ending.is_set() and not failures:
                assert_whole(programs[place]())
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
    assert not failures, failures[0]


def assert_verified(lake: GroupLake) -> None:
    """`verify` compares the rows of each member with its source."""
    for prefix, here in lake.members.items():
        with closing(SourceDatabase(lake.spark, build_jdbc_url(here.conninfo))) as source:
            said: list[str] = []
            verification = Verification(
                source, reader=lake.reader, prefix=prefix, publication=prefix, patience=5, report=said.append
            )
            rows = here.ask("SELECT count(*) FROM account")
            found = {each.table: (each.rows, each.buckets) for each in verification.run()}
            assert found["public.account"] == (rows, 0), said
