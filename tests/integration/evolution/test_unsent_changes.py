"""Changes of a table that PostgreSQL sends no row of: the catalog tells of them, and a person is
told, or the table is loaded anew.
"""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("change", "what"),
    [
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
    ],
)
def test_what_the_catalog_tells(database: str, change: str, what: str | None) -> None:
    with psycopg.connect(database, autocommit=True) as connection, connect(database) as looking:
        connection.execute(TABLES)
        rows = connection.execute("SELECT 't'::regclass::oid::int, 'root'::regclass::oid::int").fetchone()
        assert rows is not None
        before = storage_of(looking, rows)
        connection.execute(change)
        now = storage_of(looking, rows)
    told = [words for oid in rows if (words := unsent_change(before[oid], now[oid]))]
    assert len(told) == (what is not None)
    assert what is None or what in told[0]
    assert {oid: type(s).from_text(s.to_text()) for oid, s in now.items()} == now


@pytest.fixture
def here(connector: Maker) -> Installation:
    made = connector(init=False, source={"tables": ["public.account", "e.*"]}, backfill={"notice": 0.2})
    made.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA e")
    initialise(load(made.file), print)
    return made


CHANGE = "ALTER TABLE e.t ALTER v TYPE int USING v + 100"


@pytest.mark.parametrize("meanwhile", ["it runs", "it does not run"])
@pytest.mark.parametrize("reloads", [False, True], ids=["told", "loaded anew"])
def test_a_rewrite_is_noticed(
    here: Installation, reloads: bool, meanwhile: str, caplog: pytest.LogCaptureFixture
) -> None:
    here.configure({"source": {"reload_on_rewrite": reloads}})
    table = Evolving(here, "t")

    def is_known() -> bool:
        pins = [r for r in here.records("progress") if isinstance(r, dict) and r.get("table") == "t"]
        return bool(pins) and pins[-1]["stored"] is not None and pins[-1]["backfill"] == "ready"

    def is_done() -> bool:
        """Told, or loaded anew: a stop in between has it told again."""
        told = "e.t: ALTER TABLE rewrote the table" in caplog.text
        return told and (not reloads or table.rows() == {1: {"id": 1, "v": 110}})

    with here.carrying():
        table.made("id int PRIMARY KEY, v int", "(1, 10)")
        wait_until(is_known, 60, "how it is storage_of is in its pin")
        if meanwhile == "it runs":
            here.sql(CHANGE)
            wait_until(is_done, 60, "it is noticed")
            here.caught_up()
    if meanwhile == "it does not run":
        here.sql(CHANGE)
    with here.carrying():
        wait_until(is_done, 60, "it is noticed")
        assert reloads or "run: twofold backfill start e.t" in caplog.text
        here.caught_up()
    assert caplog.text.count("ALTER TABLE rewrote the table") == 1
    assert reloads or table.rows() == {1: {"id": 1, "v": 10}}
