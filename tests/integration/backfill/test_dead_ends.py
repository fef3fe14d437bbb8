"""What PostgreSQL accepts and its stream then contradicts: refused before `init` makes anything,
and in the middle of traffic. What the message names as repair is done, and the topic says what the
table says.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from fixtures.backfill import initialised, ready
from fixtures.connector import START_S, Installation, Maker, wait_until
from helpers.avro.schema_readers import Subject
from helpers.connector.topics import rows_in_the_end
from twofold.doctor import Severity, examine
from twofold.errors import Refused, SetupError

ACCOUNT = "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)"
COLUMNS = """
SELECT a.attname FROM pg_publication_tables p JOIN pg_attribute a ON attrelid = p.tablename::regclass AND a.attname = ANY (attnames)
 WHERE tablename = '{}' AND (attgenerated = '' OR current_setting('server_version_num')::int >= 180000) ORDER BY attnum"""
VIA_ROOT = " WITH (publish_via_partition_root)"


@dataclass(frozen=True)
class DeadEnd:
    """A table that is published well, and what spoils it."""

    tables: tuple[str, ...]
    spoil: tuple[str, ...]
    traffic: tuple[str, ...]
    said: str
    options: str = VIA_ROOT
    other_key: bool = False
    """The repaired table's key has more columns: the registry takes it when a person says so."""
    since: int = 15
    until: int = 99


PARTITIONED = (
    "CREATE TABLE t (a int, b int NOT NULL, v int{key}) PARTITION BY RANGE (a)",
    "CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE q PARTITION OF t FOR VALUES FROM (100) TO (200)",
)
ROWS = "INSERT INTO t (a, b, v) SELECT n, n, 0 FROM generate_series({0}, {1}) n"
CHANGES = (
    "INSERT INTO t (a, b, v) VALUES (31, 31, 1), (131, 131, 1)",
    "UPDATE t SET v = 2 WHERE b % 10 = 2",
    "UPDATE t SET a = a + 50 WHERE b % 10 = 3",
    "UPDATE t SET b = b + 1000 WHERE b % 10 = 4",
    "DELETE FROM t WHERE b % 10 = 5",
)


def partitioned(key: str, *more: str) -> tuple[str, ...]:
    return (*(each.format(key=key) for each in PARTITIONED), *more)


FULL = tuple(f"ALTER TABLE {each} REPLICA IDENTITY FULL" for each in ("t", "p", "q"))
DEAD_ENDS = {
    "a column list without a column of the key": DeadEnd(
        ("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b))",),
        ("ALTER PUBLICATION {publication} DROP TABLE t", "ALTER PUBLICATION {publication} ADD TABLE t (a, v) WHERE (a < 100)"),
        ("INSERT INTO t VALUES (1, 31, 1), (1, 32, 1)",),
        "leaves out a column of its key: b",
        options=" WHERE (a < 100)",
    ),
    "a generated column in the key": DeadEnd(
        ("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a))",),
        (
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD COLUMN g int GENERATED ALWAYS AS (b % 7) STORED",
            "ALTER TABLE t ADD PRIMARY KEY (a, g)",
        ),
        CHANGES,
        "leaves out a column of its key: g",
        options="",
        until=17,
    ),
    "a generated column in the key, which 18 publishes": DeadEnd(
        ("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a))",),
        (
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD COLUMN g int GENERATED ALWAYS AS (b % 7) STORED",
            "ALTER TABLE t ADD PRIMARY KEY (a, g)",
        ),
        ("INSERT INTO t VALUES (31, 31, 1)",),
        "leaves out a column of its key: g",
        options="",
        other_key=True,
        since=18,
    ),
    "a root without a key over a partition with one": DeadEnd(
        partitioned("", *FULL),
        ("ALTER TABLE p ADD PRIMARY KEY (a), REPLICA IDENTITY DEFAULT",),
        CHANGES,
        "partition public.p has a replica identity without the whole old row",
    ),
    "a root with identity full and a key that a partition's identity lacks": DeadEnd(
        partitioned("", "CREATE UNIQUE INDEX by_a ON t (a)", "ALTER TABLE t ALTER a SET NOT NULL", *FULL),
        ("CREATE UNIQUE INDEX pb ON p (b)", "ALTER TABLE p REPLICA IDENTITY USING INDEX pb"),
        CHANGES,
        "partition public.p has a replica identity without the message key (a)",
    ),
    "a partition with another index as identity": DeadEnd(
        partitioned(", PRIMARY KEY (a)", "CREATE UNIQUE INDEX pb ON p (b)"),
        ("ALTER TABLE p REPLICA IDENTITY USING INDEX pb",),
        CHANGES,
        "partition public.p has a replica identity without the message key (a)",
    ),
    "an UNLOGGED partition": DeadEnd(
        partitioned(", PRIMARY KEY (a)"),
        ("ALTER TABLE p SET UNLOGGED",),
        CHANGES,
        "partition public.p is UNLOGGED",
    ),
    "an UNLOGGED partition that is published as itself": DeadEnd(
        ("CREATE TABLE t (a int, b int NOT NULL, v int, PRIMARY KEY (a)) PARTITION BY RANGE (a)", "CREATE TABLE q PARTITION OF t FOR VALUES FROM (0) TO (200)"),
        ("ALTER TABLE q SET UNLOGGED",),
        CHANGES,
        "partition public.q is UNLOGGED",
        options="",
    ),
    "an identity that may be null": DeadEnd(
        ("CREATE TABLE t (a int, b int, v int)", "ALTER TABLE t REPLICA IDENTITY FULL"),
        (
            "INSERT INTO t VALUES (51, NULL, 7), (52, NULL, 7)",
            "CREATE UNIQUE INDEX by_b ON t (b)",
            "ALTER TABLE t ADD CONSTRAINT filled NOT NULL b NOT VALID",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX by_b",
        ),
        ("INSERT INTO t VALUES (31, 31, 1)", "UPDATE t SET v = 2 WHERE b = 31", "DELETE FROM t WHERE a = 3", "UPDATE t SET b = 500 WHERE a = 51"),
        "its replica identity has a column that may be null, because its NOT NULL is NOT VALID: b",
        options="",
        since=18,
    ),
}  # fmt: skip


IN_SHORT = (
    "a column list without a column of the key",
    "a root without a key over a partition with one",
    "a root with identity full and a key that a partition's identity lacks",
    "an UNLOGGED partition",
    "an identity that may be null",
)
MIDST = [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.slow) for name in DEAD_ENDS]
"""One of each message in the middle of traffic, where `make test-slow` has all; `init` is tried
with each.
"""


@pytest.fixture(params=DEAD_ENDS)
def dead_end(request: pytest.FixtureRequest, postgres: Any) -> DeadEnd:
    found = DEAD_ENDS[request.param]
    if not found.since <= postgres.version <= found.until:
        pytest.skip(f"PostgreSQL {postgres.version} does not have it")
    return found


def made(connector: Maker, dead_end: DeadEnd) -> Installation:
    here = connector(init=False, source={"tables": []}, backfill={"notice": 0.3, "chunk_rows": 7})
    here.sql(
        ACCOUNT,
        *dead_end.tables,
        ROWS.format(1, 30),
        *([ROWS.format(101, 130)] if "PARTITION" in dead_end.tables[0] else []),
        f"CREATE PUBLICATION {here.prefix} FOR TABLE account, t{dead_end.options}",
    )
    return here


def spoil(here: Installation, dead_end: DeadEnd) -> None:
    here.sql(*(each.format(publication=here.prefix) for each in dead_end.spoil))


def apply(here: Installation, repair: str) -> None:
    """Do what the message says, as a person would."""
    statements, _, command = repair.partition("twofold backfill start ")
    if statements := statements.removesuffix("then ").strip():
        here.sql(statements)
    if command:
        here.twofold("backfill", "start", *shlex.split(command), ok=True)


def same(here: Installation, published: str) -> None:
    """What is published of the relation is what the topic says."""
    topic, source = here.table(published), Counter[str]()
    columns = ask_all(here, COLUMNS.format(published))
    where = here.ask(
        f"SELECT coalesce('WHERE ' || rowfilter, '') FROM pg_publication_tables WHERE tablename = '{published}'"
    )
    names = ", ".join(column["attname"] for column in columns)
    for row in ask_all(here, f"SELECT {names} FROM {published} {where}"):
        source[json.dumps(row)] += 1
    wait_until(
        lambda: rows_in_the_end(here.reader.read([topic]), json.dumps, each_replaced=True) == source,
        30,
        f"{topic} says what {published} says",
    )
    assert source


def ask_all(here: Installation, query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = here.ask(f"SELECT coalesce(json_agg(x), '[]') FROM ({query}) x")
    return rows


def published_name(here: Installation) -> str:
    return str(here.ask("SELECT tablename FROM pg_publication_tables WHERE tablename <> 'account' ORDER BY 1 DESC"))


def test_init_and_doctor_refuse_and_their_remedies_work(connector: Maker, dead_end: DeadEnd) -> None:
    here = made(connector, dead_end)
    spoil(here, dead_end)
    with pytest.raises(SetupError) as refused:
        here.initialise()
    assert dead_end.said in str(refused.value)
    assert here.prefix not in "".join(here.reader.topics(here.prefix)), "nothing was made"
    (found,) = [each for each in examine(here.config) if each.check == "table_flaw"]
    assert found.severity == Severity.MUST
    statements = " ".join(each for each in found.remedy if not each.startswith("--"))
    assert str(refused.value).endswith(f"; remedy: {statements}")
    apply(here, statements)
    with initialised(here):
        here.sql(*dead_end.traffic)
        here.caught_up()
        same(here, published_name(here))


@pytest.mark.parametrize("dead_end", MIDST, indirect=True)
def test_in_the_middle_of_traffic(connector: Maker, dead_end: DeadEnd) -> None:
    """Rows of it are unread when it is refused; the repair replaces what comes of them."""
    here = made(connector, dead_end)
    with initialised(here):
        pass
    spoil(here, dead_end)
    here.sql(*dead_end.traffic)
    assert dead_end.said in str(here.refusal())
    refusal = here.refusal()  # a restart meets it again
    assert isinstance(refusal, Refused)
    assert dead_end.said in refusal.what
    apply(here, refusal.repair)
    if dead_end.other_key:
        subject = Subject(here.reader.registry_url, here.table("t"))
        subject.allow("NONE", "key")
        subject.allow("NONE")
    with here.carrying():
        ready(here)
        here.caught_up()
        same(here, published_name(here))
        here.sql("UPDATE t SET v = v + 1 WHERE b > 20")
        here.caught_up()
        same(here, published_name(here))


DEFAULT, DETACHED = "ALTER TABLE p REPLICA IDENTITY DEFAULT", "ALTER TABLE t DETACH PARTITION p"


@pytest.mark.parametrize(
    ("alive", "afterwards", "told"),
    [
        pytest.param(True, DEFAULT, False, id="while it runs"),
        pytest.param(False, DEFAULT, False, id="while it is down", marks=pytest.mark.slow),
        pytest.param(False, DETACHED, False, id="while it is down, and the partition is detached"),
        pytest.param(False, DETACHED, True, id="detached, with event triggers", marks=pytest.mark.slow),
    ],
)
def test_a_state_that_is_over_when_the_catalog_is_read(
    connector: Maker, *, alive: bool, afterwards: str, told: bool
) -> None:
    """A partition's identity was another one for a moment: the stream says so at its rows."""
    dead_end = DEAD_ENDS["a partition with another index as identity"]
    here = made(connector, dead_end)
    here.configure({"backfill": {"notice": 0}, "source": {"ddl_messages": told}})
    here.initialise()
    run = here.start()
    ready(here)
    if not alive:
        run.kill9()
    here.sql(f"ALTER TABLE p REPLICA IDENTITY USING INDEX pb; UPDATE t SET a = a + 50 WHERE a = 3; {afterwards}")
    here.sql(
        "INSERT INTO account VALUES (5, 5, 'later')", "DELETE FROM t WHERE a = 5", "UPDATE t SET v = 4 WHERE a = 104"
    )
    if alive:
        assert run.ended(START_S) == 5
    here.forget_runs()
    refusal = here.refusal()
    assert isinstance(refusal, Refused)
    assert dead_end.said in refusal.what
    assert refusal.repair == "twofold backfill start public.t"
    apply(here, refusal.repair)
    with here.carrying():
        ready(here)
        here.sql("UPDATE t SET v = 5 WHERE a > 90", "DELETE FROM t WHERE a = 6")
        here.caught_up()
        same(here, "t")
