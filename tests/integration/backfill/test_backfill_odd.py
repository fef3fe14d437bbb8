"""Tables of which the catalog, a copy and the stream could say different things: each row is loaded
once, as the stream says it, and a table that has none of its own gets no topic.
"""

from __future__ import annotations

import pytest

from fixtures.backfill import initialised, ready
from fixtures.connector import Maker, wait_until

ACCOUNT = "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)"
ROWS = "FROM generate_series(1, 20) n"
TABLES = {
    "own_order": ("k public.citext PRIMARY KEY, v int", f"SELECT chr(96 + n - n % 2 * 32), n {ROWS}"),
    "no_operator": ("k public.ltree PRIMARY KEY, v int", f"SELECT ('a.b' || n)::ltree, n {ROWS}"),
    "orders_mixed": (
        "k public.citext, h public.hstore, id int, v int, PRIMARY KEY (k, h, id)",
        f"SELECT chr(97 + n % 3 - n % 2 * 32), hstore('a', (n % 2)::text), n, n {ROWS}",
    ),
    "named_case": ('"case" inet PRIMARY KEY, v int', f"SELECT inet '10.0.0.0' + n, n {ROWS}"),
    "named_like_another": ('"case" int PRIMARY KEY, v int, ip inet', f"SELECT n, n, inet '10.0.0.0' {ROWS}"),
    "under_a_check": ("k a.positive PRIMARY KEY, v int", f"SELECT n, n {ROWS}"),
    "its_own_collation": ('k a.word COLLATE "POSIX" PRIMARY KEY, v int', f"SELECT 'w' || n, n {ROWS}"),
    "filtered": ("id int PRIMARY KEY, v int", f"SELECT n, n {ROWS}"),
    "not_citext": ("id int PRIMARY KEY, v int, c a.citext", f"SELECT n, n, ROW(n, 'x')::a.citext {ROWS}"),
}
BEFORE = (
    ACCOUNT,
    *(f"CREATE EXTENSION {name}" for name in ("citext", "hstore", "ltree")),
    "CREATE SCHEMA a",
    "CREATE DOMAIN a.positive AS int",
    'CREATE DOMAIN a.word AS text COLLATE "C"',
    "CREATE TYPE a.citext AS (a int, b text)",
)


@pytest.fixture(scope="module")
def values(module_connector: Maker) -> dict[str, tuple[list[object], list[object]]]:
    """Of each table what was loaded, and what the stream says of the same rows, in the order of
    `v`.
    """
    here = module_connector(init=False, source={"tables": []}, backfill={"chunk_rows": 7})
    here.sql(*BEFORE)
    for name, (columns, rows) in TABLES.items():
        here.sql(f"CREATE TABLE a.{name} ({columns})", f"INSERT INTO a.{name} {rows}")
    here.sql("ALTER DOMAIN a.positive ADD CHECK (value > 100) NOT VALID")
    here.sql(f"CREATE PUBLICATION {here.prefix} FOR TABLE account, a.filtered WHERE (id > 10), TABLES IN SCHEMA a")
    with initialised(here):
        # A value that its domain forbids may stay, and cannot be written again.
        here.sql(*(f"UPDATE a.{name} SET v = v" for name in TABLES if name != "under_a_check"))
        here.caught_up()
    found: dict[str, tuple[list[object], list[object]]] = {}
    for name in TABLES:
        seen = [s for s in here.reader.read([f"{here.prefix}.a.{name}"]) if s.value]
        loaded, said = (
            sorted((s.value["after"] for s in seen if s.value["op"] == op), key=lambda row: row["v"]) for op in "ru"
        )
        found[name] = loaded, said
    return found


@pytest.mark.parametrize("table", TABLES)
def test_each_row_once_and_as_the_stream_has_it(
    values: dict[str, tuple[list[object], list[object]]], table: str
) -> None:
    loaded, said = values[table]
    assert [row["v"] for row in loaded] == [*range(1, 21)]  # type: ignore[index]
    assert said == ([] if table == "under_a_check" else loaded)


@pytest.mark.core
def test_partitions_that_are_published_as_their_root_have_no_topic_and_stop_nobody(connector: Maker) -> None:
    """The stream describes them too."""
    here = connector(init=False, source={"tables": []})
    here.sql(
        ACCOUNT,
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO (100)",
        f"CREATE PUBLICATION {here.prefix} FOR TABLE account, t WITH (publish_via_partition_root)",
    )
    here.initialise()
    with here.carrying():
        here.sql("INSERT INTO t VALUES (1, 1)")
        here.caught_up()
        here.sql("ALTER TABLE p REPLICA IDENTITY NOTHING", "INSERT INTO t VALUES (2, 2)")
        here.caught_up()
    assert {s.key["id"] for s in here.read("t")} == {1, 2}
    assert f"{here.prefix}.public.p" not in here.reader.topics(here.prefix)


def test_a_copy_that_is_cancelled_is_tried_again(connector: Maker) -> None:
    """Whoever ends the query does not end the connector."""
    here = connector(init=False, source={"tables": ["public.*"]})
    here.sql(ACCOUNT, "CREATE TABLE t (v int, x text)", f"CREATE TABLE u ({TABLES['filtered'][0]})")
    here.sql("INSERT INTO t SELECT n, repeat(md5(n::text), 10) FROM generate_series(1, 100000) n")
    here.initialise()
    run = here.start()
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'twofold backfill' AND query LIKE 'COPY%' AND state = 'active' AND datname = current_database()"
    wait_until(lambda: here.ask(cancel), what="a copy is cancelled")
    run.wait_for("canceling statement due to user request")
    ready(here)
    assert not run.dead
