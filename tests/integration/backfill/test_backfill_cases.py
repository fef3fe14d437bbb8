"""Single cases of a backfill: keys of all kinds, changes of the table while it is loaded, reloads,
and what a person may ask for.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import closing
from typing import Any

import psycopg
import pytest

from fixtures.backfill import Between, initialised, ready, until_chunks
from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import Kafka
from helpers.connector.topics import fold
from helpers.reading import ask_registry
from helpers.topic_changes import delete_records, delete_topic
from twofold.errors import Refused
from twofold.source.table_copier import TableCopier
from twofold_avro.shapes import ColumnShape, TableShape, TypeShape

ACCOUNT = "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)"
KEYS = {
    "bigint": ("id bigint", "(n - 6) * 3000000000"),
    "uuid": ("id uuid", "md5(n::text)::uuid"),
    "text": ('id text COLLATE "{collation}"', "(ARRAY['a','B','b','É','e','Z','z','o''k','ö','_x','-y'])[n]"),
    "numeric": ("id numeric(20, 3)", "n * 1000000000.125 - 5000000000"),
    "timestamptz": (
        "id timestamptz",
        "CASE n WHEN 11 THEN 'infinity' ELSE '2024-02-28 23:59:59.123456+01'::timestamptz + n * interval '7 h' END",
    ),
    "domain": ("id positive", "n"),
    "enum": ("id mood", "(enum_range(NULL::mood))[n]"),
    "bytea": ("id bytea", "sha256(n::text::bytea)"),
    "float8": ("id float8", "n / 3.0"),
    "unbounded": ("id numeric", "CASE n WHEN 11 THEN 'NaN' ELSE ('1e' || (n * 9 - 50))::numeric END"),
    "padded": ("id char(4)", "(ARRAY['a','B','b','é','e','Z','z','o''k','ö','_x','-y'])[n]"),
    "interval": ("id interval", "n * interval '1 month 2 days 3.000004 s' - interval '5 years'"),
    "date": ("id date", "CASE n WHEN 1 THEN '-infinity' WHEN 2 THEN '0044-03-15 BC' ELSE date '2024-02-25' + n END"),
    "inet": ("id inet", "('10.0.' || n || '.1/' || 20 + n % 4)::inet"),
    "pair": ("b text, a int, PRIMARY KEY (a, b)", "n % 3 AS a, 'x' || n"),
}
TYPES = (
    "CREATE DOMAIN positive AS int CHECK (value > 0)",
    "CREATE TYPE mood AS ENUM ('zz', 'aa', 'mm', 'bb', 'yy', 'cc', 'xx', 'dd', 'ww', 'ee', 'vv')",
)


def test_keys_of_all_kinds(connector: Maker) -> None:
    """Eleven rows in chunks of three: each bound is compared by the key's own order."""
    here = connector(init=False, source={"tables": ["public.*"]}, backfill={"chunk_rows": 3, "readers": 4})
    here.sql(ACCOUNT, *TYPES)
    collation = here.ask("SELECT max(collname) FROM pg_collation WHERE collname IN ('default', 'en-x-icu')")
    for kind, (definition, value) in KEYS.items():
        column = definition.format(collation=collation)  # a server that was built without ICU has its default
        primary = "" if "PRIMARY" in column else " PRIMARY KEY"
        here.sql(f'CREATE TABLE "k {kind}" ({column}{primary})')
        columns = "(a, b)" if kind == "pair" else ""
        here.sql(f'INSERT INTO "k {kind}" {columns} SELECT {value} FROM generate_series(1, 11) n')
    here.initialise()
    with here.carrying():
        ready(here, 120)
    topics = here.everything()
    for kind in KEYS:
        name = next(t for t in {s.topic for s in topics.rows} if t.endswith(kind))
        keys = [tuple(s.key.values()) for s in topics.rows if s.topic == name]
        assert len(keys) == len(set(keys)) == 11, kind
    assert {c.value["rows"] for c in topics.commits} <= {0, 2, 3}


@pytest.fixture
def small(connector: Maker) -> Installation:
    """In chunks of a hundred rows, four a second: there is time for things to happen."""
    here = connector(
        init=False,
        source={"tables": ["public.account"], "reload_up_to": 0},
        backfill={"chunk_rows": 100, "rows_per_second": 400},
    )
    here.sql(ACCOUNT, "CREATE TABLE other (id int PRIMARY KEY)")
    return here


@pytest.mark.core
def test_the_table_changes_while_it_is_loaded(small: Installation) -> None:
    """A truncate empties what was read; a new column is in all rows that are read behind it."""
    here = small
    here.sql("INSERT INTO account SELECT n, 0, 'before' FROM generate_series(1, 1500) n")
    here.initialise()
    with here.carrying(), psycopg.connect(here.conninfo, autocommit=True) as connection:
        wait_until(lambda: here.records("commits"), what="the first chunk")
        connection.execute("ALTER TABLE account ADD COLUMN extra text DEFAULT 'new'")
        wait_until(lambda: len(here.records("commits")) > 3, what="more chunks")
        assert here.read("account")[-1].value["op"] == "r"
        connection.execute("TRUNCATE account")
        connection.execute("INSERT INTO account SELECT n, 1, 'after' FROM generate_series(1400, 1600) n")
        ready(here)
        here.caught_up()
    topics = here.everything()
    assert {s.value["after"].get("extra") for s in topics.rows if s.value["op"] == "r"} == {None, "new"}
    truncated = {s.partition: s.offset for s in topics.rows if s.value["op"] == "t"}
    left = {s.key["id"] for s in topics.rows if s.key is not None and s.offset > truncated[s.partition]}
    assert left == {0, *range(1400, 1601)}


def test_the_key_is_recreated_in_another_order(connector: Maker, between: Between) -> None:
    """Of the same columns, so nothing else tells: what lies behind the last row is another part of
    the table now. It is read from the beginning. So is one whose key has another collation, or
    another type that is the same in Kafka.
    """
    tables = {"tables": ["public.account", "public.pair", "public.word", "public.number"]}
    here = connector(init=False, source=tables, backfill={"chunk_rows": 100, "readers": 4})
    collation = here.ask("SELECT max(collname) FROM pg_collation WHERE collname IN ('default', 'en-x-icu')")
    here.sql(
        ACCOUNT,
        "CREATE TABLE pair (a int, b int, PRIMARY KEY (a, b))",
        "INSERT INTO pair SELECT a, b FROM generate_series(1, 30) a, generate_series(1, 10) b",
        'CREATE TABLE word (k text COLLATE "C" PRIMARY KEY)',
        "INSERT INTO word SELECT chr(65 + n % 26 + n % 2 * 32) || n FROM generate_series(1, 300) n",
        "CREATE TABLE number (k numeric PRIMARY KEY)",
        "INSERT INTO number SELECT n FROM generate_series(1, 300) n",
    )
    here.initialise()
    with here.carrying():
        until_chunks(here, 3)
        here.sql("ALTER TABLE pair DROP CONSTRAINT pair_pkey, ADD PRIMARY KEY (b, a)")
        here.sql(f'ALTER TABLE word ALTER k TYPE text COLLATE "{collation}"', "ALTER TABLE number ALTER k TYPE text")
        between.further(10_000)
        ready(here)
        here.caught_up()
    read = {(s.key["a"], s.key["b"]) for s in here.read("pair")}
    assert read == {(a, b) for a in range(1, 31) for b in range(1, 11)}
    assert len({s.key["k"] for s in here.read("word")}) == 300
    assert len({s.key["k"] for s in here.read("number") if s.key}) == 300


def test_a_label_of_an_enum_in_the_key_is_renamed(connector: Maker, between: Between) -> None:
    """The last key that was read is none any more: the table is read from the beginning."""
    tables = {"tables": ["public.account", "public.felt"], "reload_up_to": 0}
    here = connector(init=False, source=tables, backfill={"chunk_rows": 100})
    here.sql(ACCOUNT, *TYPES, "CREATE TABLE felt (m mood, n int, PRIMARY KEY (m, n))")
    here.sql("INSERT INTO felt SELECT 'aa', n FROM generate_series(1, 300) n")
    here.initialise()
    with here.carrying():
        until_chunks(here, 1)
        here.sql("ALTER TYPE mood RENAME VALUE 'aa' TO 'good'")
        between.further(10_000)
        ready(here)
    assert {s.key["n"] for s in here.read("felt") if s.key["m"] == "good"} == {*range(1, 301)}


def test_a_key_that_its_type_does_not_take_any_more(database: str) -> None:
    """It is to be read again, so it stays in the load's place."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('a')")
        connection.execute("CREATE TABLE felt (m mood PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION p FOR TABLE felt")
    column = ColumnShape("m", TypeShape(25, "pg_catalog", "text"), in_key=True, in_identity=True)
    shape = TableShape(7, "public", "felt", (column,))

    def read() -> None:
        with closing(TableCopier(database, "p", "public", "felt")) as copier, copier.view() as view:
            assert view.described
            list(copier.rows(view.described, shape, among=[{"m": "gone"}]))

    with pytest.raises(Refused) as refused:
        read()
    assert "filter" not in str(refused.value)
    assert refused.value.repair == "twofold backfill start public.felt"


@pytest.mark.parametrize("told", [False, True])
def test_a_table_has_another_name_while_it_is_loaded(connector: Maker, between: Between, *, told: bool) -> None:
    """Its rows go to another topic meanwhile, and the load has read a part of it before."""
    here = connector(
        init=False, source={"tables": [], "ddl_messages": told}, backfill={"chunk_rows": 100, "notice": 0.3}
    )
    here.sql(
        ACCOUNT,
        "CREATE TABLE pair (id int PRIMARY KEY, v int)",
        "INSERT INTO pair SELECT n, n FROM generate_series(1, 300) n",
        f"CREATE PUBLICATION {here.prefix} FOR TABLE account, pair",
    )
    here.initialise()

    def rows() -> dict[str, int]:
        state: dict[tuple[int, str], Any] = {}
        for seen in here.read("pair"):
            fold(state, seen)
        return {str(row["id"]): row["v"] for row in state.values()}

    with here.carrying():
        wait_until(rows, 90, "the first chunk")
        here.sql(
            "ALTER TABLE pair RENAME TO other",
            "UPDATE other SET v = v + 1000 WHERE id % 3 = 0",
            "DELETE FROM other WHERE id % 7 = 0",
            "ALTER TABLE other RENAME TO pair",
        )
        between.further(10_000)
        here.caught_up()
        table = here.ask("SELECT jsonb_object_agg(id, v) FROM pair")
        wait_until(lambda: rows() == table, 90, "the topic has the table's rows")


@pytest.mark.core
def test_a_reload_begins_with_a_truncate(small: Installation, kafka: Kafka) -> None:
    """What was deleted long ago does not survive it, though the topic has the delete no more; a
    prepared transaction that was open is parked, and comes behind the rows.
    """
    here = small
    here.initialise()
    with here.carrying():
        here.sql(
            "INSERT INTO account SELECT n, 0, '' FROM generate_series(1, 150) n", "DELETE FROM account WHERE id = 150"
        )
        here.prepare("open", "UPDATE account SET version = 7 WHERE id = 7")
        here.caught_up()
        wait_until(lambda: here.status().in_doubt[0].in_kafka == "open")
        delete_records(kafka.bootstrap, here.table("account"))
        assert "requested start" in here.twofold("backfill", "start", "public.account", ok=True).stdout
        wait_until(
            lambda: "prepared transaction 'open'" in here.twofold("backfill", "status", ok=True).stdout,
            60,
            "it is waited for",
        )
        wait_until(lambda: here.status().in_doubt[0].in_kafka == "parked")
        here.sql("COMMIT PREPARED 'open'")
        ready(here)
        here.caught_up()
    rows = here.read("account")
    kinds = [c["kind"] for c in here.records("commits")]
    assert kinds.count("reload") == 1
    assert kinds.count("backfill") == 2
    truncated = {s.partition: s.offset for s in rows if s.value is not None and s.value["op"] == "t"}
    after = [s for s in rows if s.value is not None and s.offset > truncated[s.partition]]
    assert len(truncated) == 3
    assert all(s.offset >= truncated[s.partition] for s in rows), (
        "what a consumer had before is emptied by what is left"
    )
    assert {s.key["id"] for s in after} == set(range(150))
    assert [s.value["after"]["version"] for s in after if s.key["id"] == 7][-1] == 7
    assert "all tables are ready" in here.twofold("backfill", "status", ok=True).stdout


def test_a_load_is_paused_and_resumed(small: Installation) -> None:
    """Over a restart. What was read before is not read again."""
    here = small
    here.configure({"backfill": {"rows_per_second": 3}})
    here.sql("INSERT INTO account SELECT n, 0, '' FROM generate_series(1, 350) n")
    here.sql("ANALYZE account")
    here.initialise()
    with here.carrying():
        until_chunks(here, 1)
        assert "running, 100 rows of about 350, " in here.twofold("backfill", "status", ok=True).stdout
        assert "rows a second" in here.twofold("status", ok=True).stdout
        here.twofold("backfill", "pause", "public.account", ok=True)
        wait_until(lambda: "paused" in here.twofold("backfill", "status", ok=True).stdout, 90, "paused")
    here.configure({"backfill": {"rows_per_second": 0}})
    with here.carrying():
        here.sql("UPDATE account SET version = 1 WHERE id % 100 = 0")
        here.caught_up()
        assert {c["rows"] for c in here.records("commits") if c["kind"] == "backfill"} == {0, 100}
        here.twofold("backfill", "resume", "public.account", ok=True)
        ready(here)
        here.caught_up()
    rows = [s for s in here.read("account") if s.key["id"]]
    assert len([s for s in rows if s.value["op"] == "r"]) == 350
    assert {s.key["id"]: s.value["after"]["version"] for s in rows} == {n: int(n % 100 == 0) for n in range(1, 351)}


def test_a_load_is_cancelled(small: Installation, between: Between) -> None:
    """What is not read yet comes when it changes, and only then, over a restart too; a load from
    the beginning is still to be had.
    """
    here = small
    here.sql("INSERT INTO account SELECT n, 0, '' FROM generate_series(1, 350) n")
    here.initialise()
    with here.carrying():
        until_chunks(here, 1)
        here.twofold("backfill", "cancel", "public.account", ok=True)
        ready(here)
        assert "all tables are ready" in here.twofold("backfill", "status", ok=True).stdout
        assert here.status().two_phase == "enabled"
        between.further(10_000)
    with here.carrying():
        here.sql("UPDATE account SET version = 1 WHERE id IN (7, 307)")
        here.caught_up()
        rows = [s for s in here.read("account") if s.key["id"]]
        assert {s.key["id"] for s in rows} == {*range(1, 101), 307}
        assert sorted(s.value["after"]["version"] for s in rows if s.key["id"] in {7, 307}) == [0, 1, 1]
        here.twofold("backfill", "start", "public.account", ok=True)
        wait_until(lambda: "reload" in [c["kind"] for c in here.records("commits")], 90, "it starts over")
        ready(here)
    assert {s.key["id"] for s in here.read("account") if s.key and s.value["op"] == "r"} == set(range(351))


def test_cancelled_with_rows_that_are_held(connector: Maker) -> None:
    """A table without a key, its one chunk waiting for a transaction in doubt, and rows that go on
    coming: those that were held are still ahead of them.
    """
    here = connector(init=False, source={"tables": ["public.account", "public.line"]})
    here.sql(ACCOUNT, "CREATE TABLE line (n int)")
    here.initialise()
    cancelled = threading.Event()

    def write() -> None:
        with psycopg.connect(here.conninfo, autocommit=True) as connection:
            for n in itertools.count(1):
                connection.execute("INSERT INTO line VALUES (%s)", [n])
                if cancelled.is_set():
                    return

    with here.carrying():
        here.prepare("in doubt", "INSERT INTO line VALUES (0)")
        here.twofold("backfill", "start", "public.line", ok=True)
        wait_until(
            lambda: "prepared transaction 'in doubt'" in here.twofold("backfill", "status", ok=True).stdout,
            60,
            "it is waited for",
        )
        wait_until(lambda: here.read("line"), what="the command is executed: the truncate is there")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_until(lambda: here.ask("SELECT count(*) FROM line") > 100, what="rows that are held")
            waited = here.twofold("wait", here.ask("SELECT pg_current_wal_lsn()::text"), ok=True).stdout
            assert "without the rows of public.line: no key" in waited
            assert [s.value["op"] for s in here.read("line")] == ["t"]
            here.twofold("backfill", "cancel", "public.line", ok=True)
            ready(here)
        finally:
            cancelled.set()
            writer.join()
        here.sql("COMMIT PREPARED 'in doubt'")
        here.caught_up()
        assert "without the rows" not in here.twofold("wait", "0/1", ok=True).stdout
        written = here.ask("SELECT max(n) FROM line")
    assert [s.value["after"]["n"] for s in here.read("line")[1:]] == [*range(1, written + 1), 0]


def test_a_type_that_old_rows_would_be_misread_under(connector: Maker, kafka: Kafka) -> None:
    """A reload keeps the subject, for the rows of before are still there: refused again. With topic
    and subject deleted it is loaded.
    """
    here = connector(init=False, source={"tables": ["public.account", "public.priced"]})
    here.sql(
        ACCOUNT, "CREATE TABLE priced (id int PRIMARY KEY, price numeric(9, 2))", "INSERT INTO priced VALUES (1, 1.25)"
    )
    with initialised(here):
        here.caught_up()
    here.sql("ALTER TABLE priced ALTER price TYPE numeric(9, 4)", "INSERT INTO priced VALUES (2, 0.0625)")
    assert "twofold backfill start public.priced" in str(here.refusal())
    here.twofold("backfill", "start", "public.priced", ok=True)
    assert "delete the table's topic" in str(here.refusal())
    topic = here.table("priced")
    delete_topic(kafka.bootstrap, topic)
    ask_registry(here.reader.registry_url, f"subjects/{topic}-value", "DELETE")

    def prices() -> dict[int, str]:
        rows = [s.value["after"] for s in here.read("priced") if s.key is not None]
        return {row["id"]: str(row["price"]) for row in rows}

    with here.carrying():
        wait_until(lambda: topic in here.reader.topics(here.prefix), 90, "the topic is there again")
        # The topic is made before the load is entered.
        wait_until(lambda: prices() == {1: "1.2500", 2: "0.0625"}, 90, "its rows")


def test_a_start_repairs_a_topic_that_is_gone(connector: Maker, kafka: Kafka) -> None:
    """Recovery refuses, and names this command."""
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, ''), (2, 1, '')")
        here.caught_up()
    topic = here.table("account")
    delete_topic(kafka.bootstrap, topic)
    assert "twofold backfill start public.account" in str(here.refusal())
    here.twofold("backfill", "start", "public.account", ok=True)
    with here.carrying():
        wait_until(lambda: topic in here.reader.topics(here.prefix), 90, "the topic is there again")
        # The topic is made before the load is entered.
        wait_until(
            lambda: {s.key["id"] for s in here.read("account") if s.key is not None} == {0, 1, 2}, 60, "its rows"
        )
