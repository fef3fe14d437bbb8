"""What people do with PostgreSQL 19, end to end. Older servers do not have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import Postgres
from twofold.stack import PostgresServer


@pytest.fixture(autouse=True)
def _of_19(postgres: Postgres) -> None:
    if postgres.version < 19:
        pytest.skip(f"PostgreSQL {postgres.version} does not have it")


@pytest.fixture
def here(connector: Maker) -> Iterator[Installation]:
    """It follows all tables but one."""
    here = connector(init=False, source={"publication": "everything", "tables": []})
    here.sql(
        "CREATE TABLE account (id int PRIMARY KEY, version int)",
        "CREATE TABLE hidden (id int PRIMARY KEY, version int)",
        "CREATE TABLE halves (id int PRIMARY KEY, version int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF halves FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF halves FOR VALUES FROM (10) TO (20)",
        "INSERT INTO halves SELECT n, 1 FROM generate_series(0, 19) n",
        "INSERT INTO account SELECT n, 1 FROM generate_series(0, 19) n",
        "INSERT INTO hidden VALUES (1, 1)",
        "CREATE PUBLICATION everything FOR ALL TABLES EXCEPT (TABLE hidden) WITH (publish_via_partition_root = true)",
    )
    here.initialise()
    with here.carrying():
        yield here


def test_an_excepted_table_is_neither_loaded_nor_carried(here: Installation) -> None:
    here.sql("INSERT INTO hidden VALUES (2, 1)", "INSERT INTO account VALUES (20, 1)")
    wait_until(lambda: _rows(here, "account") == _source(here, "account"))
    assert here.table("hidden") not in here.reader.topics(here.prefix)


def test_a_prepared_transaction_is_carried(here: Installation) -> None:
    here.prepare("later", "UPDATE account SET version = 2")
    here.prepare("never", "DELETE FROM halves")
    here.sql("ROLLBACK PREPARED 'never'", "COMMIT PREPARED 'later'")
    wait_until(lambda: _rows(here, "account") == dict.fromkeys(range(20), 2))
    assert _rows(here, "halves") == _source(here, "halves")


def test_a_table_is_repacked_under_changes(here: Installation) -> None:
    wait_until(lambda: _rows(here, "account") == _source(here, "account"))
    here.sql("DELETE FROM account WHERE id < 5", "REPACK account", "UPDATE account SET version = 2 WHERE id = 6")
    here.sql("REPACK (CONCURRENTLY) account", "UPDATE account SET version = 3 WHERE id = 7")
    wait_until(lambda: _rows(here, "account") == _source(here, "account"))


def test_the_first_slot_turns_decoding_on(own_postgres: Callable[..., PostgresServer], connector: Maker) -> None:
    """With wal_level = replica."""
    server = own_postgres(settings={"wal_level": "replica"})
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        assert session.execute("SHOW effective_wal_level").fetchone() == ("replica",)
        session.execute("CREATE DATABASE bank")
        here = connector(conninfo=server.dsn("bank"))
        assert session.execute("SHOW effective_wal_level").fetchone() == ("logical",)
    with here.carrying():
        here.prepare("one", "INSERT INTO account (id, version) VALUES (1, 1)")
        here.sql("COMMIT PREPARED 'one'")
        here.check()


def _rows(here: Installation, table: str) -> dict[int, int]:
    """The rows that the topic has in the end."""
    rows: dict[int, int] = {}
    if here.table(table) not in here.reader.topics(here.prefix):
        return rows
    for seen in here.read(table):
        if seen.value is None:
            continue
        if (row := seen.value["after"]) is not None:
            rows[row["id"]] = row["version"]
        elif seen.value["op"] == "d":
            rows.pop(seen.key["id"], None)
        else:
            rows.clear()  # a truncate, or a topic that begins again
    return rows


def _source(here: Installation, table: str) -> dict[int, int]:
    with psycopg.connect(here.conninfo) as session:
        return dict(session.execute(f"SELECT id, version FROM {table}".encode()).fetchall())
