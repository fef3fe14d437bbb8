"""Changes of a table that PostgreSQL sends no row of: the catalog tells of them, and a person is
told, or the table is loaded anew.
"""

from __future__ import annotations

from functools import partial

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.evolving import Evolving
from twofold.config import load
from twofold.runner.initialisation import initialise
from twofold.source.connection import connect
from twofold.source.rewrites import storage_of, unsent_change

TABLES = """
CREATE TYPE pair AS (a int, b int);
CREATE TABLE t (id int PRIMARY KEY, v int, note varchar(10), p pair, ps pair[], twice int GENERATED ALWAYS AS (v * 2) STORED);
INSERT INTO t SELECT n, n, n, (n, n)::pair, ARRAY[(n, n)::pair] FROM generate_series(1, 3) n;
CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
INSERT INTO root VALUES (1, 1);
"""
REWRITTEN = "ALTER TABLE rewrote the table"


CHANGES = (
    ("ALTER TABLE t ALTER note TYPE varchar(10) USING note || '!'", REWRITTEN),
    ("ALTER TABLE t ADD day float DEFAULT random()", REWRITTEN),
    ("ALTER TABLE root ALTER v TYPE int USING v + 1", REWRITTEN),
    ("ALTER TABLE t ALTER twice DROP EXPRESSION", "a generated column became a plain one"),
    ("ALTER TYPE pair DROP ATTRIBUTE b", "a composite type lost an attribute"),
    ("ALTER TYPE pair ADD ATTRIBUTE c int", None),
    ("ALTER TABLE t DROP p, DROP ps", None),
    ("ALTER TABLE t DROP twice", None),
    ("ALTER TABLE t ADD more int DEFAULT 7", None),
    ("ALTER TABLE t ALTER note TYPE varchar(20)", None),
    ("VACUUM FULL t", None),
    ("CLUSTER t USING t_pkey", None),
    ("TRUNCATE t", None),
    ("UPDATE t SET v = 7", None),
    ("CREATE TABLE leaf_2 PARTITION OF root FOR VALUES FROM (10) TO (20)", None),
)


def test_what_the_catalog_tells(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection, connect(database) as looking:
        for change, what in CHANGES:
            connection.execute("DROP TABLE IF EXISTS t, root; DROP TYPE IF EXISTS pair")
            connection.execute(TABLES)
            rows = connection.execute("SELECT 't'::regclass::oid::int, 'root'::regclass::oid::int").fetchone()
            assert rows is not None
            before = storage_of(looking, rows)
            connection.execute(change)
            now = storage_of(looking, rows)
            told = [words for oid in rows if (words := unsent_change(before[oid], now[oid]))]
            assert len(told) == (what is not None), change
            assert what is None or what in told[0], change
            assert {oid: type(s).from_text(s.to_text()) for oid, s in now.items()} == now, change


@pytest.fixture
def here(connector: Maker) -> Installation:
    made = connector(init=False, source={"tables": ["public.account", "e.*"]}, backfill={"notice": 0.2})
    made.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA e")
    initialise(load(made.file), print)
    return made


@pytest.mark.parametrize("reloads", [False, True], ids=["told", "loaded anew"])
def test_rewrites_are_noticed(here: Installation, reloads: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Of a table while the connector runs, and of another one while it does not."""
    here.configure({"source": {"reload_on_rewrite": reloads}})
    running, stopped = Evolving(here, "t"), Evolving(here, "u")

    def is_known(table: Evolving) -> bool:
        pins = [r for r in here.records("progress") if isinstance(r, dict) and r.get("table") == table.table]
        return bool(pins) and pins[-1]["stored"] is not None and pins[-1]["backfill"] == "ready"

    def is_done(table: Evolving) -> bool:
        """Told, or loaded anew: a stop in between has it told again."""
        told = f"{table.name}: {REWRITTEN}" in caplog.text
        return told and (not reloads or table.rows() == {1: {"id": 1, "v": 110}})

    def rewrite(table: Evolving) -> None:
        here.sql(f"ALTER TABLE {table.name} ALTER v TYPE int USING v + 100")

    with here.carrying():
        for table in (running, stopped):
            table.made("id int PRIMARY KEY, v int", "(1, 10)")
        for table in (running, stopped):
            wait_until(partial(is_known, table), 60, "how it is stored is in its pin")
        rewrite(running)
        wait_until(partial(is_done, running), 60, "it is noticed")
        here.caught_up()
    rewrite(stopped)
    with here.carrying():
        wait_until(partial(is_done, stopped), 60, "it is noticed")
        here.caught_up()
    for table in (running, stopped):
        assert reloads or f"run: twofold backfill start {table.name}" in caplog.text
        assert caplog.text.count(f"{table.name}: {REWRITTEN}") == 1
        assert reloads or table.rows() == {1: {"id": 1, "v": 10}}
