"""Tables of all kinds, loaded by a role that may only read and replicate, from a publication that
others have made: what is loaded is what the stream says of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from fixtures.backfill import initialised, ready, until_chunks
from fixtures.connector import Installation, Maker, wait_until
from fixtures.stack import Kafka, Postgres
from helpers.topic_changes import alter_topic
from twofold.errors import SetupError

ACCOUNT = "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)"
MEGABYTES = 3


@pytest.fixture
def as_reader(connector: Maker) -> Callable[..., Installation]:
    """An installation whose role may SELECT, and has REPLICATION; tables and publication are the
    owner's.
    """

    def made(*statements: str, publication: str, grant: str = "ALL TABLES IN SCHEMA public") -> Installation:
        here = connector(init=False, source={"tables": []}, backfill={"chunk_rows": 7, "notice": 0.3})
        role = here.prefix
        here.sql(f"CREATE ROLE {role} LOGIN REPLICATION", ACCOUNT, *statements)
        here.at_end(here.sql, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
        here.sql(f"CREATE PUBLICATION {role} FOR TABLE account, {publication}", f"GRANT SELECT ON {grant} TO {role}")
        here.configure({"source": {"dsn": make_conninfo(here.conninfo, user=role)}})
        return here

    return made


def rows(here: Installation, table: str, op: str) -> dict[Any, Any]:
    """What the records of this kind say of each key; a key has one."""
    found = [s for s in here.read(table) if s.value is not None and s.value["op"] == op]
    by_key = {tuple(s.key.values()): s.value["after"] for s in found}
    assert len(by_key) == len(found)
    return by_key


def test_filters_lists_generated_columns_and_leaves(as_reader: Callable[..., Installation], postgres: Postgres) -> None:
    """The stream is asked for the same rows afterwards: what was loaded is what it says."""
    here = as_reader(
        "CREATE TABLE filtered (id int PRIMARY KEY, kept text, hidden text)",
        "CREATE TABLE made (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, gone text, b text)",
        "ALTER TABLE made DROP gone",
        "CREATE TABLE whole (id int PRIMARY KEY, part int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF whole FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high (part int, dropped int, id int NOT NULL PRIMARY KEY)",
        "ALTER TABLE high DROP dropped",
        "ALTER TABLE whole ATTACH PARTITION high FOR VALUES FROM (10) TO (100)",
        "INSERT INTO filtered SELECT n, 'k' || n, 'h' FROM generate_series(1, 30) n",
        "INSERT INTO made (id, a, b) SELECT n, n, 'b' FROM generate_series(1, 15) n",
        "INSERT INTO whole SELECT n, n FROM generate_series(1, 20) n",
        publication="filtered (id, kept) WHERE (id % 3 = 0 AND id <> 9), made, whole",
    )
    if postgres.version >= 18:
        here.sql(f"ALTER PUBLICATION {here.prefix} SET (publish_generated_columns = stored)")
    with initialised(here):
        here.sql("UPDATE filtered SET kept = kept", "UPDATE made SET b = 'b'", "UPDATE whole SET part = part")
        here.caught_up()
    for table, count in (("filtered", 9), ("made", 15), ("low", 9), ("high", 11)):
        loaded = rows(here, table, "r")
        assert len(loaded) == count, table
        assert loaded == rows(here, table, "u"), table
    assert ("twice" in rows(here, "made", "r")[1,]) == (postgres.version >= 18)
    assert set(rows(here, "filtered", "r")[3,]) == {"id", "kept"}
    assert not here.reader.read([here.table("whole")])


@pytest.mark.core
def test_a_partitioned_table_by_its_root(as_reader: Callable[..., Installation]) -> None:
    here = as_reader(
        "CREATE TABLE whole (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        "CREATE TABLE north PARTITION OF whole FOR VALUES IN ('n') PARTITION BY HASH (id)",
        "CREATE TABLE north0 PARTITION OF north FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE north1 PARTITION OF north FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "CREATE TABLE south PARTITION OF whole FOR VALUES IN ('s')",
        "INSERT INTO whole SELECT n, (ARRAY['n', 's'])[n % 2 + 1], n FROM generate_series(1, 40) n",
        publication="whole WITH (publish_via_partition_root)",
    )
    with initialised(here):
        here.sql("UPDATE whole SET v = v")
        here.caught_up()
    assert len(loaded := rows(here, "whole", "r")) == 40
    assert loaded == rows(here, "whole", "u")


def test_empty_small_wide_and_large(as_reader: Callable[..., Installation], kafka: Kafka) -> None:
    """Three of them join later, and nothing changes in them: they are noticed and loaded all the
    same.
    """
    wide = ", ".join(f"c{n} int" for n in range(299))
    here = as_reader(
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "CREATE TABLE one (id int PRIMARY KEY)",
        f"CREATE TABLE wide (id int PRIMARY KEY, {wide})",
        "CREATE TABLE large (id int PRIMARY KEY, big text)",
        "INSERT INTO one VALUES (1)",
        f"INSERT INTO wide SELECT n{', n' * 299} FROM generate_series(1, 10) n",
        f"INSERT INTO large SELECT n, (SELECT string_agg(md5((n * m)::text), '') FROM generate_series(1, {MEGABYTES << 15}) m) FROM generate_series(1, 5) n",
        publication="large",
    )
    limit = 8 << 20
    here.configure({"kafka": {"options": {"message.max.bytes": limit}}, "backfill": {"chunk_bytes": 4 << 20}})
    here.initialise()
    alter_topic(kafka.bootstrap, here.table("large"), "max.message.bytes", str(limit))
    with here.carrying():
        until_chunks(here, 1)
        here.sql(f"ALTER PUBLICATION {here.prefix} ADD TABLE nothing, one, wide")
        # All three are noticed at once; a topic is there before its load is entered.
        wait_until(lambda: here.table("wide") in here.reader.topics(here.prefix), what="they are noticed")
        wait_until(lambda: rows(here, "one", "r") and len(rows(here, "wide", "r")) == 10, 90, "they are loaded")
        ready(here)
        commits = here.records("commits")
    assert rows(here, "nothing", "r") == {}
    assert rows(here, "one", "r") == {(1,): {"id": 1}}
    assert {(key, tuple(row.values())) for key, row in rows(here, "wide", "r").items()} == {
        ((n,), (n,) * 300) for n in range(1, 11)
    }
    assert {key: len(row["big"]) for key, row in rows(here, "large", "r").items()} == {
        (n,): MEGABYTES << 20 for n in range(1, 6)
    }
    sizes = [commit["rows"] for commit in commits if any(r["topic"] == here.table("large") for r in commit["ranges"])]
    assert max(sizes) == 2, "a chunk ends when it has enough bytes"
    assert commits[-1]["backfilling"] == []


def test_a_table_that_may_not_be_read(as_reader: Callable[..., Installation]) -> None:
    """The remedy is a statement."""
    here = as_reader(
        "CREATE TABLE secret (id int PRIMARY KEY)",
        "INSERT INTO secret VALUES (1)",
        publication="secret",
        grant="account",
    )
    with pytest.raises(SetupError, match=r'GRANT SELECT ON "public"\."secret" TO'):
        here.initialise()
    here.sql(f"GRANT SELECT ON secret TO {here.prefix}")
    here.initialise()
    here.sql(f"REVOKE SELECT ON secret FROM {here.prefix}")
    assert 'GRANT SELECT ON "public"."secret" TO' in str(here.refusal())
    here.sql(f"GRANT SELECT ON secret TO {here.prefix}")
    with here.carrying():
        ready(here)
    assert here.status().backfilling == ()
    assert [s.key for s in here.read("secret")] == [{"id": 1}]
