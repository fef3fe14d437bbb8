"""The tables of a publication, as the stream describes them; read without a lock on any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from twofold.errors import Refused
from twofold.source import flaws
from twofold.source.connection import PlainConnection, connect
from twofold.source.flaws import find_flaws
from twofold.source.published_tables import DescribedTable, describe_filters, published_tables
from twofold.source.table_descriptions import describe_tables
from twofold.stack import PostgresServer

pytestmark = pytest.mark.core

TABLES = """
CREATE SCHEMA s;
CREATE TABLE plain (id int PRIMARY KEY, a text, b int GENERATED ALWAYS AS (1) STORED, gone int);
ALTER TABLE plain DROP COLUMN gone;
CREATE TABLE s.listed (x int, y int, z int, PRIMARY KEY (y, x));
CREATE TABLE later (id int PRIMARY KEY DEFERRABLE, a int);
CREATE TABLE covered (a int, b int, c int, PRIMARY KEY (b) INCLUDE (a));
CREATE TABLE whole (a int, b int); ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE part_1_1 PARTITION OF part_1 FOR VALUES FROM (0) TO (5);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20);
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
"""
LEAVES = {"part_1_1", "part_2"}


def names(database: str, publication: str) -> set[str]:
    return {relation.table for relation in published_tables(database, publication)}


@pytest.fixture
def connection(database: str) -> Any:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def test_it_is_what_the_view_says(database: str, connection: psycopg.Connection[Any]) -> None:
    for number, scope in enumerate(
        (
            "FOR TABLE plain, s.listed (x, y), part",
            "FOR TABLE part, part_2 WITH (publish_via_partition_root)",
            "FOR ALL TABLES",
            "FOR ALL TABLES WITH (publish_via_partition_root)",
            "FOR TABLES IN SCHEMA s, TABLE whole",
            "FOR TABLES IN SCHEMA public WITH (publish_via_partition_root)",
        )
    ):
        connection.execute(f"CREATE PUBLICATION p{number} {scope}")
        expected = connection.execute(
            "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2",
            [f"p{number}"],
        ).fetchall()
        assert [(r.schema, r.table) for r in published_tables(database, f"p{number}")] == expected, scope


def test_tables_that_a_publication_excepts(own_postgres: Callable[..., PostgresServer]) -> None:
    """PostgreSQL 19: FOR ALL TABLES EXCEPT (TABLE plain, part).

    An older server is given the column in which 19 says so. It does not understand the column, only
    our queries do.
    """
    server = own_postgres(settings={"allow_system_table_mods": "on"})
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(TABLES)
        if server.version < 19:
            _imitate_except(connection)
        else:
            for publication, root in (("leaves", "false"), ("roots", "true")):
                connection.execute(f"CREATE PUBLICATION {publication} FOR ALL TABLES EXCEPT (TABLE plain, part) WITH (publish_via_partition_root = {root})")  # fmt: skip
            connection.execute("CREATE PUBLICATION other FOR TABLE plain")
        remaining = {"listed", "later", "covered", "whole"}
        assert names(server.dsn(), "leaves") == names(server.dsn(), "roots") == remaining
        assert names(server.dsn(), "other") == {"plain"}

        oids: dict[str, int] = dict(connection.execute("SELECT relname, oid FROM pg_class WHERE relname ~ '^(plain|part|part_1_1|whole)$'").fetchall())  # fmt: skip
        asked = connect(server.dsn())
        for publication, expected in (("leaves", {"whole"}), ("roots", {"whole"}), ("other", {"plain"})):
            described = describe_tables(asked, publication, oids.values())
            assert {
                name for name, oid in oids.items() if oid in described and described[oid][1].publication
            } == expected
        asked.close()


def _imitate_except(connection: psycopg.Connection[Any]) -> None:
    for publication, root in (("leaves", "false"), ("roots", "true")):
        connection.execute(f"CREATE PUBLICATION {publication} FOR TABLE plain, part WITH (publish_via_partition_root = {root})")  # fmt: skip
    connection.execute("CREATE PUBLICATION other FOR TABLE plain")
    connection.execute("ALTER TABLE pg_catalog.pg_publication_rel ADD COLUMN prexcept boolean")
    connection.execute("UPDATE pg_publication SET puballtables = true WHERE pubname <> 'other'")
    connection.execute("UPDATE pg_publication_rel SET prexcept = prpubid NOT IN (SELECT oid FROM pg_publication WHERE pubname = 'other')")  # fmt: skip


def test_columns_and_identity(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE PUBLICATION p FOR TABLE plain, later, s.listed (x, y), whole, covered")
    columns = {r.table: [(c.name, c.in_identity) for c in r.columns] for r in published_tables(database, "p")}
    assert columns == {
        "plain": [("id", True), ("a", False)],
        "later": [("id", False), ("a", False)],
        "listed": [("x", True), ("y", True)],
        "covered": [("a", False), ("b", True), ("c", False)],
        "whole": [("a", True), ("b", True)],
    }
    with pytest.raises(Refused, match="'nobody' does not exist in this database"):
        published_tables(database, "nobody")


def test_it_does_not_wait_for_a_table_that_is_locked(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE PUBLICATION p FOR TABLE plain")
    connection.execute("BEGIN; ALTER TABLE plain ADD COLUMN more int; PREPARE TRANSACTION 'locked'")
    try:
        (relation,) = published_tables(f"{database} options='-c lock_timeout=2s'", "p")
    finally:
        connection.execute("ROLLBACK PREPARED 'locked'")
    assert [column.name for column in relation.columns] == ["id", "a"]


def test_a_table_that_is_dropped_while_flaws_are_looked_for(
    database: str, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")

    def dropped_behind(asked: PlainConnection, publication: str) -> tuple[DescribedTable, ...]:
        found = describe_filters(asked, publication)
        connection.execute("DROP TABLE plain, part CASCADE")
        return found

    monkeypatch.setattr(flaws, "describe_filters", dropped_behind)
    with connect(database) as asked:
        assert find_flaws(asked, "p") == ()
    monkeypatch.undo()
    with connect(database) as asked:
        described = describe_filters(asked, "p")
        connection.execute("DROP TABLE whole")
        monkeypatch.setattr(flaws, "describe_filters", lambda *_: described)
        assert find_flaws(asked, "p") == (), "as if it was described from a cache that is behind"
