"""What reading a table leaves in the log of a server on which nothing else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fixtures.connector import wait_until
from twofold.source.catalog import Catalog
from twofold.source.table_copier import RUN_BYTES, TableCopier
from twofold.stack import PostgresServer
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape

ROWS = 20_000
WIDE_ROWS = 2_000
TUPLE_BYTES = 2 + (4 + 4) + (4 + 100)
FLUSHED_WITHIN_S = 5
QUIET = {"wal_log_hints": "on", "bgwriter_delay": "10s", "autovacuum": "off"}


def positions(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Up to where the log is written by sessions, and up to where it is on disk."""
    row = connection.execute(
        "SELECT pg_current_wal_insert_lsn() - '0/0', pg_current_wal_flush_lsn() - '0/0'"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


@pytest.mark.parametrize("taken", [ROWS, ROWS // 2], ids=["all", "stopped early"])
def test_what_reading_wrote_is_flushed_at_its_end(own_postgres: Callable[..., PostgresServer], taken: int) -> None:
    """The next chunk's position lies behind it, and the stream shows only what is flushed.

    After a rollback it waits for the background writer, which comes every 15 s.
    """
    server = own_postgres(settings=QUIET)
    with (
        psycopg.connect(server.dsn(), autocommit=True) as connection,
        closing(Catalog(server.dsn())) as catalog,
    ):
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        connection.execute(f"INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, {ROWS}) n")
        connection.execute("CHECKPOINT")
        _, before = positions(connection)
        with closing(TableCopier(server.dsn(), "p", "public", "t")) as copier:
            with copier.view() as view:
                assert view.described is not None
                shape = catalog.shape(view.described.relation)
                with closing(copier.rows(view.described, shape, mark=taken * TUPLE_BYTES)) as runs:
                    received = 0
                    while received < taken * TUPLE_BYTES:
                        received += len(next(runs))
                assert received == taken * TUPLE_BYTES
            written, _ = positions(connection)
            assert written > before, "reading writes hints into the log"
            wait_until(lambda: positions(connection)[1] >= written, FLUSHED_WITHIN_S, "it is flushed")


def tuples_of(run: bytes) -> list[bytes]:
    """Parse a run: it must begin and end with whole tuples."""
    tuples, at = [], 0
    while at < len(run):
        begun, at = at, at + 2
        for _ in range(int.from_bytes(run[begun:at], "big")):
            at += 4 + max(0, int.from_bytes(run[at : at + 4], "big", signed=True))
        tuples.append(run[begun:at])
    assert at == len(run)
    return tuples


@pytest.fixture
def copier(database: str) -> Iterator[TableCopier]:
    """Reads a table whose rows are empty, as large as a page, and larger than two runs."""
    with psycopg.connect(database, autocommit=True) as connection:
        # So few rows would be sorted, and all of them be read before the first is sent.
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET enable_sort = off").format(sql.Identifier(connection.info.dbname))
        )
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        connection.execute(
            "INSERT INTO t SELECT n, CASE n % 50 WHEN 7 THEN repeat('x', 150000) WHEN 8 THEN NULL ELSE repeat('y', n % 300) END"
            f" FROM generate_series(1, {WIDE_ROWS}) n"
        )
    with closing(TableCopier(database, "p", "public", "t")) as copier:
        yield copier


def table_shape() -> TableShape:
    key = ColumnShape("id", TypeShape(23, "pg_catalog", "int4"), True, True)
    return TableShape(1, "public", "t", (key, ColumnShape("v", TypeShape(25, "pg_catalog", "text"))))


def test_runs_are_whole_tuples_in_order_and_not_large(copier: TableCopier) -> None:
    with copier.view() as view:
        assert view.described is not None
        runs = list(copier.rows(view.described, table_shape()))
        assert list(copier.rows(view.described, table_shape(), after={"id": str(WIDE_ROWS)})) == []
    tuples = [each for run in runs for each in tuples_of(run)]
    assert [int.from_bytes(each[6:10], "big") for each in tuples] == list(range(1, WIDE_ROWS + 1))
    assert len(runs) < WIDE_ROWS / 2, "rows come together"
    for run in runs:
        assert len(run) - len(tuples_of(run)[-1]) < RUN_BYTES


@pytest.mark.parametrize("mark", [1, 10_000, 400_000])
def test_a_run_ends_with_the_tuple_that_reaches_the_mark(copier: TableCopier, mark: int) -> None:
    with copier.view() as view:
        assert view.described is not None
        runs = list(copier.rows(view.described, table_shape(), mark=mark))
    ends = set(accumulate(map(len, runs)))
    tuples = [each for run in runs for each in tuples_of(run)]
    assert len(tuples) == WIDE_ROWS
    assert next(end for end in accumulate(map(len, tuples)) if end >= mark) in ends


def test_an_error_behind_the_first_rows_is_told_and_the_copier_continues(copier: TableCopier) -> None:
    shape = table_shape()
    with copier.view() as view:
        assert view.described is not None
        broken = replace(view.described, row_filter=f"10 / ({WIDE_ROWS} - id) >= 0")
        runs = copier.rows(broken, shape)
        assert next(runs)
        with pytest.raises(psycopg.errors.DivisionByZero):
            list(runs)
        assert sum(len(tuples_of(run)) for run in copier.rows(view.described, shape)) == WIDE_ROWS


TEXT, NUMBER = TypeShape(25, "pg_catalog", "text"), TypeShape(23, "pg_catalog", "int4")
ORDERS = {
    "nondeterministic": ("text COLLATE insensitive", '(k COLLATE "C")'),
    "other_class": ("public.citext", "(k text_ops)"),
    "patterns": ("varchar(20)", "(k varchar_pattern_ops)"),
    "collated": ("text", '(k COLLATE "C")'),
    "usual": ("text", "(k)"),
}


@pytest.mark.parametrize("others", [{}, {"n": "1"}], ids=["alone", "behind another column"])
def test_no_row_is_skipped_whatever_the_order_of_the_index(database: str, others: dict[str, str]) -> None:
    """Read in chunks of three rows, by the index. Equal values of the column are several keys."""
    words = [f"{word}{n}" for n in range(6) for word in ("a", "A", "b", "Zz", "zZ", "Ä", "ä")]
    with psycopg.connect(database, autocommit=True) as asked:
        if asked.execute("SELECT FROM pg_collation WHERE collprovider = 'i'").fetchone() is None:
            pytest.skip("this server was built without ICU")
        asked.execute("CREATE EXTENSION IF NOT EXISTS citext SCHEMA public")
        asked.execute(
            "CREATE COLLATION insensitive (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
        for name, (kind, columns) in ORDERS.items():
            asked.execute(f"CREATE TABLE {name} (n int NOT NULL DEFAULT 1, k {kind} NOT NULL)")
            index = columns if not others else f"(n, {columns[1:]}"
            asked.execute(f"CREATE UNIQUE INDEX i_{name} ON {name} {index}")
            asked.execute(f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX i_{name}")
            asked.execute(f"INSERT INTO {name} (k) SELECT unnest(%s::text[])", (words,))
        asked.execute("CREATE PUBLICATION p FOR ALL TABLES")
    for name in ORDERS:
        with closing(TableCopier(database, "p", "public", name)) as copier:
            assert sorted(chunks(copier, others)) == sorted(words), name


def test_no_row_is_skipped_of_a_key_without_overlaps(own_postgres: Callable[..., PostgresServer]) -> None:
    """Its index is a GiST, which has no order. The rows are read by the order of their types."""
    server = own_postgres(version="18", settings={"fsync": "off"})
    spans = [f"[{n},{n + 3})" for n in range(0, 30, 3)]
    with psycopg.connect(server.dsn(), autocommit=True) as asked:
        asked.execute("CREATE TABLE t (n int4range, k int4range, PRIMARY KEY (n, k WITHOUT OVERLAPS))")
        asked.execute("INSERT INTO t SELECT '[1,2)', unnest(%s::int4range[])", (spans,))
        asked.execute("CREATE PUBLICATION p FOR TABLE t")
    with closing(TableCopier(server.dsn(), "p", "public", "t")) as copier:
        kind = TypeShape(3904, "pg_catalog", "int4range")
        assert chunks(copier, {"n": "[1,2)"}, k=kind, n=kind) == spans


def chunks(copier: TableCopier, others: dict[str, str], k: TypeShape = TEXT, n: TypeShape = NUMBER) -> list[str]:
    """Read the table in chunks of three rows; `others` has the key's first column."""
    number = ColumnShape("n", n, bool(others), bool(others))
    shape = TableShape(1, "public", "t", (ColumnShape("k", k, True, True), number))
    found, after = list[str](), None
    while True:
        with copier.view() as view:
            assert view.described is not None
            runs = b"".join(copier.rows(view.described, shape, after=after, limit=3))
        keys = [each[6 : 6 + int.from_bytes(each[2:6], "big")].decode() for each in tuples_of(runs)]
        if not keys:
            return found
        found += keys
        after = {"k": keys[-1], **others}
