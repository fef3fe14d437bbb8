"""What the catalog shows of a table that was changed, also of one that was changed back: each case
against the server, by two descriptions alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from twofold.descriptions.description import Description
from twofold.descriptions.staleness import (
    KeyColumnsChanged,
    LookCloser,
    NeedsReload,
    NewSchema,
    Same,
    Verdict,
    compare,
)
from twofold.source.connection import PlainConnection, connect
from twofold.source.table_descriptions import describe_tables

TABLES = """
DROP SCHEMA IF EXISTS s CASCADE;
DROP SCHEMA IF EXISTS other CASCADE;
DROP SCHEMA IF EXISTS away CASCADE;
DROP PUBLICATION IF EXISTS p;
DROP PUBLICATION IF EXISTS q;
CREATE SCHEMA s;
CREATE SCHEMA other;
SET search_path = s;
CREATE TYPE pair AS (a int, b int);
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN moods AS mood;
CREATE TABLE t (id int PRIMARY KEY, v int, note varchar(10), p pair, ps pair[], m moods, twice int GENERATED ALWAYS AS (v * 2) STORED);
INSERT INTO t SELECT n, n, n, (n, n)::pair, ARRAY[(n, n)::pair], 'sad' FROM generate_series(1, 3) n;
CREATE TABLE u (id int PRIMARY KEY, v int, note text);
CREATE TABLE f (id int NOT NULL, v int);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE UNIQUE INDEX f_id ON f (id);
CREATE TABLE g (id int PRIMARY KEY, v int);
ALTER TABLE g REPLICA IDENTITY FULL;
CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE k (id numeric(40, 2) PRIMARY KEY);
CREATE TABLE loose (id int PRIMARY KEY, v int);
CREATE TABLE joined (id int PRIMARY KEY, v int);
ALTER TABLE root ATTACH PARTITION joined FOR VALUES FROM (20) TO (30);
CREATE TABLE made PARTITION OF root FOR VALUES FROM (30) TO (40);
INSERT INTO root VALUES (1, 1);
CREATE PUBLICATION p FOR TABLE t, u WHERE (id > 0), f, g, k, root WITH (publish_via_partition_root);
CREATE TABLE whole (id int PRIMARY KEY, note text);
CREATE TABLE short (id int PRIMARY KEY, v int);
CREATE PUBLICATION q FOR TABLES IN SCHEMA s;
"""
REWRITTEN = "ALTER TABLE rewrote the table"
RENAMED = "it had another name or schema for a time"
OF_TABLES: list[tuple[str, type[Verdict], str]] = [
    ("ALTER TABLE t RENAME TO x; ALTER TABLE x RENAME TO t", NeedsReload, RENAMED),
    ("ALTER TABLE t SET SCHEMA other; ALTER TABLE other.t SET SCHEMA s", NeedsReload, RENAMED),
    ("ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE t RENAME TO u; ALTER TABLE x RENAME TO t", NeedsReload, RENAMED),
    ("BEGIN; ALTER TABLE t RENAME TO x; UPDATE x SET v = 7; ALTER TABLE x RENAME TO t; COMMIT", NeedsReload, RENAMED),
    ("ALTER TABLE t OWNER TO pg_monitor", LookCloser, "another owner"),
    ("ALTER TABLE t ALTER note TYPE varchar(10) USING note || '!'", NeedsReload, REWRITTEN),
    ("ALTER TABLE t ADD day float DEFAULT random()", NeedsReload, REWRITTEN),
    ("ALTER TABLE root ALTER v TYPE int USING v + 1", NeedsReload, REWRITTEN),
    ("ALTER TABLE k ALTER id TYPE numeric(40, 4)", NeedsReload, REWRITTEN),
    ("ALTER TABLE t ALTER twice DROP EXPRESSION", NeedsReload, "column twice was not sent with earlier rows"),
    ("ALTER TABLE t ADD more int DEFAULT 7", NeedsReload, "column more was added with a default"),
    ("ALTER TABLE t DROP v CASCADE, ADD v int", NeedsReload, "column v was dropped and added again"),
    ("ALTER TABLE t RENAME note TO remark", NeedsReload, "column remark was renamed"),
    ("ALTER TYPE pair DROP ATTRIBUTE b", NeedsReload, "a composite type got other attributes"),
    ("ALTER TYPE pair ADD ATTRIBUTE c int", NeedsReload, "a composite type got other attributes"),
    ("ALTER TYPE pair RENAME ATTRIBUTE b TO c", NeedsReload, "a composite type got other attributes"),
    ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", NeedsReload, "a label of an enum was renamed"),
    ("ALTER TYPE pair RENAME ATTRIBUTE b TO c; ALTER TYPE pair RENAME ATTRIBUTE c TO b", NeedsReload, "a composite type got other attributes"),
    ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'; ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'", NeedsReload, "a label of an enum was renamed"),
    ("DROP INDEX f_id; CREATE UNIQUE INDEX f_id ON f (id)", NeedsReload, "made again"),
    ("ALTER TABLE g DROP CONSTRAINT g_pkey; ALTER TABLE g ADD PRIMARY KEY (id)", NeedsReload, "made again"),
    ("ALTER TABLE u REPLICA IDENTITY FULL; ALTER TABLE u DROP CONSTRAINT u_pkey, ADD PRIMARY KEY (id); ALTER TABLE u REPLICA IDENTITY DEFAULT", LookCloser, "index was made again"),
    ("CREATE UNIQUE INDEX f_v ON f (id, v); ALTER TABLE f ALTER v SET NOT NULL; DROP INDEX f_id", KeyColumnsChanged, ""),
    ("ALTER PUBLICATION p SET TABLE t, u WHERE (id > 1), f, g, k, root", NeedsReload, "row filter is another"),
    ("ALTER PUBLICATION p ADD TABLES IN SCHEMA s", NeedsReload, "row filter is another"),
    ("ALTER PUBLICATION p SET TABLE t (id, v), u WHERE (id > 0), f, g, k, root", NeedsReload, "another entry"),
    ("ALTER PUBLICATION p DROP TABLE t; ALTER PUBLICATION p ADD TABLE t", NeedsReload, "another entry"),
    ("ALTER PUBLICATION p SET (publish = 'insert')", LookCloser, "leaves out operations"),
    ("ALTER PUBLICATION p SET (publish = 'insert'); ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')", LookCloser, "has the same options"),
    ("ALTER TABLE root ATTACH PARTITION loose FOR VALUES FROM (10) TO (20)", NeedsReload, "1 partition was attached"),
    ("ALTER TABLE root DETACH PARTITION leaf", LookCloser, "1 partition was detached or dropped"),
    ("ALTER TABLE root DETACH PARTITION leaf; ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (10)", NeedsReload, "partition"),
    ("ALTER TABLE root DETACH PARTITION joined; INSERT INTO joined VALUES (21, 1); ALTER TABLE root ATTACH PARTITION joined FOR VALUES FROM (20) TO (30)", NeedsReload, "1 partition was attached"),
    ("ALTER TABLE u ADD more int", NewSchema, ""),
    ("ALTER TABLE u DROP note", NewSchema, ""),
    ("ALTER TABLE t ALTER note TYPE varchar(20)", NewSchema, ""),
    ("ALTER TABLE t DROP p, DROP ps", NewSchema, ""),
    ("ALTER TABLE t DROP twice", Same, ""),
    ("ALTER TYPE mood ADD VALUE 'mad' BEFORE 'sad'", Same, ""),
    ("VACUUM FULL t", Same, ""),
    ("CLUSTER t USING t_pkey", Same, ""),
    ("TRUNCATE t", Same, ""),
    ("ANALYZE t", Same, ""),
    ("REINDEX TABLE g", Same, ""),
    ("REINDEX TABLE CONCURRENTLY g", Same, ""),
    ("GRANT SELECT ON t TO pg_monitor", Same, ""),
    ("GRANT USAGE ON SCHEMA s TO pg_monitor", Same, ""),
    ("ALTER TABLE t ALTER note SET DEFAULT 'x'", Same, ""),
    ("CREATE INDEX ON t (v)", Same, ""),
    ("UPDATE t SET v = 7", Same, ""),
    ("ALTER TABLE made RENAME TO made_1", Same, ""),
    ("CREATE TABLE leaf_2 PARTITION OF root FOR VALUES FROM (10) TO (20)", Same, ""),
]  # fmt: skip
OF_A_SCHEMA: list[tuple[str, type[Verdict], str]] = [
    ("ALTER TABLE whole SET UNLOGGED; ALTER TABLE whole SET LOGGED", NeedsReload, REWRITTEN),
    ("ALTER SCHEMA s RENAME TO away; ALTER SCHEMA away RENAME TO s", Same, ""),
    ("ALTER TABLE whole SET SCHEMA other; ALTER TABLE other.whole SET SCHEMA s", NeedsReload, RENAMED),
    ("ALTER PUBLICATION q DROP TABLES IN SCHEMA s; ALTER PUBLICATION q ADD TABLES IN SCHEMA s", NeedsReload, "another entry"),
    ("VACUUM FULL whole", Same, ""),
]  # fmt: skip


UNNOTICED: list[tuple[str, str, type[Verdict], str]] = [
    ("p", "ALTER TABLE t RENAME note TO x; UPDATE t SET x = 'y'; ALTER TABLE t RENAME x TO note", Same, ""),
    ("p", "ALTER TABLE u ADD w int; UPDATE u SET w = 1; ALTER TABLE u DROP w; ALTER TABLE u ADD w int", NewSchema, ""),
    ("p", "TRUNCATE leaf", Same, ""),
    ("p", "BEGIN; CREATE TABLE l (LIKE root); INSERT INTO l VALUES (11, 1); ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (10) TO (20); COMMIT", Same, ""),
    ("q", "ALTER TABLE short SET UNLOGGED; UPDATE short SET v = 1; ALTER TABLE short SET LOGGED", Same, ""),
]  # fmt: skip
"""What docs/use/evolution.md says that nothing reports."""
CASES = [*(("p", *case) for case in OF_TABLES), *(("q", *case) for case in OF_A_SCHEMA), *UNNOTICED]


def run(connection: psycopg.Connection, script: str) -> None:
    for statement in script.split("; "):
        connection.execute(statement)


@pytest.fixture
def looking(database: str) -> Iterator[PlainConnection]:
    with connect(database) as connection:
        yield connection


def described(looking: PlainConnection, publication: str) -> dict[str, Description]:
    query = "SELECT relname::text, c.oid::int FROM pg_class c WHERE relnamespace = 's'::regnamespace AND relname IN ('t', 'u', 'f', 'g', 'k', 'root', 'leaf', 'whole', 'short')"
    oids = dict(looking.execute(query).fetchall())
    found = describe_tables(looking, publication, oids.values())
    return {name: found[oid][1] for name, oid in oids.items()}


def test_what_the_catalog_tells(database: str, looking: PlainConnection) -> None:
    wrong = []
    with psycopg.connect(database, autocommit=True) as connection:
        for publication, change, kind, words in CASES:
            connection.execute(TABLES)
            before = described(looking, publication)
            assert {name: Description.from_text(each.to_text()) for name, each in before.items()} == before
            run(connection, change)
            now = described(looking, publication)
            verdicts = [compare(before[name], now[name]) for name in before]
            said: Verdict = next((v for v in verdicts if not isinstance(v, Same)), Same())
            if not isinstance(said, kind) or words not in getattr(said, "reason", ""):
                wrong.append((change, verdicts))
    assert not wrong
