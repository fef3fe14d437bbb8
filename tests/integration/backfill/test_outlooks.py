"""What people are told of hundreds of tables that wait for their load: in one session, in
seconds.
"""

from __future__ import annotations

import time

import psycopg

from twofold.source.load_estimates import LOCKED_MAX, estimate_loads

TABLES = 600
WITHIN_S = 30.0
"""One question a table took 43 s for 580 of them on a quiet machine."""


def test_six_hundred_tables(database: str) -> None:
    names = [("public", f"t{n}") for n in range(TABLES)]
    with psycopg.connect(database, autocommit=True) as connection:
        for first in range(0, TABLES, 50):
            connection.execute(
                ";".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, note text)" for n in range(first, first + 50))
            )
        connection.execute("INSERT INTO t7 SELECT n, 'x' FROM generate_series(1, 5000) n")
        connection.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (100)")
        connection.execute("CREATE PUBLICATION many FOR ALL TABLES WITH (publish_via_partition_root = true)")
    with psycopg.connect(database) as writer, psycopg.connect(database) as holder:
        writer.execute("INSERT INTO t3 VALUES (1, 'x')")
        writer.execute("INSERT INTO parts VALUES (1)")
        for n in range(100, 100 + 2 * LOCKED_MAX):
            holder.execute(f"LOCK TABLE t{n} IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        found = estimate_loads(database, "many", [*names, ("public", "parts"), ("public", "gone")])
        took_s = time.monotonic() - began
        written = {name: [each.pid for each in holders] for name, (_, holders) in found.items() if holders}
        assert written.pop(("public", "t3")) == [writer.info.backend_pid]
        assert written.pop(("public", "parts")) == [writer.info.backend_pid]
        assert written == {("public", f"t{n}"): [holder.info.backend_pid] for n in range(100, 100 + 2 * LOCKED_MAX)}
    assert found["public", "t7"][0] > 1000
    assert found["public", "gone"] == (0, ())
    assert len(found) == TABLES + 2
    assert took_s < WITHIN_S
