"""What `init` publishes, and that the stream keeps to it: tables, schemas, all tables, row filters,
column lists, partitions, generated columns.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from psycopg.conninfo import make_conninfo

from integration.source.stream import Writer, streaming
from twofold.errors import SetupError, UsageError
from twofold.source import provisioning
from twofold.source.connection import connect
from twofold.source.messages import Delete, Insert, Relation, Text, Truncate, Update
from twofold.source.provisioning import PublicationContent

pytestmark = pytest.mark.core

TABLES = """
CREATE SCHEMA shop;
CREATE TABLE t (id int PRIMARY KEY, v text, secret text);
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE shop.cart (id int PRIMARY KEY);
CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (10) TO (20);
"""


@pytest.fixture
def maker(connections: Callable[[], Writer]) -> Writer:
    connection = connections()
    connection.execute(TABLES)
    return connection


def streamed(
    database: str, prefix: str, writer: Writer, published: PublicationContent | None, *statements: str
) -> list[tuple[str, object]]:
    """Publish, run the statements, and see what comes: the table's name with each row, deleted key
    or "truncated".
    """
    if published is not None:
        assert provisioning.create_publication(database, prefix, published, prefix)
    provisioning.create_slot(database, prefix, two_phase=True, wait_limit_s=20, on_wait=lambda _: None)
    for statement in statements:
        writer.execute(statement)
    with streaming(database, prefix) as stream:
        messages = stream.until_mark(writer)
    tables = {m.oid: f"{m.schema}.{m.table}" for m in messages if isinstance(m, Relation)}
    seen: list[tuple[str, object]] = []
    for message in messages:
        match message:
            case Insert(oid, row) | Update(oid, _, _, row):
                seen.append((tables[oid], tuple(v.data.decode() if isinstance(v, Text) else v for v in row)))
            case Delete(oid, (Text(key), *_)):
                seen.append((tables[oid], f"not {key.decode()}"))
            case Truncate(oids):
                seen += [(tables[oid], "truncated") for oid in oids]
    return seen


def test_a_row_filter_and_a_column_list(database: str, prefix: str, maker: Writer) -> None:
    """A row that begins to fulfil the filter is an insert, one that no longer does is a delete:
    PostgreSQL says so.
    """
    maker.execute(f"CREATE PUBLICATION {prefix} FOR TABLE t (id, v) WHERE (id > 10)")
    seen = streamed(
        database,
        prefix,
        maker,
        None,
        "INSERT INTO t VALUES (1, 'a', 'x'), (11, 'b', 'x')",
        "UPDATE t SET id = 12 WHERE id = 1",
        "UPDATE t SET id = 2 WHERE id = 11",
        "INSERT INTO other VALUES (1)",
    )
    assert seen == [("public.t", ("11", "b")), ("public.t", ("12", "a")), ("public.t", "not 11")]


def test_a_schema_with_a_table_that_joins_later(database: str, prefix: str, maker: Writer) -> None:
    seen = streamed(
        database,
        prefix,
        maker,
        PublicationContent((("public", "other"),), ("shop",)),
        "CREATE TABLE shop.later (id int PRIMARY KEY)",
        "INSERT INTO shop.later VALUES (1)",
        "INSERT INTO shop.cart VALUES (2)",
        "INSERT INTO t VALUES (3)",
        "INSERT INTO other VALUES (4)",
    )
    assert seen == [("shop.later", ("1",)), ("shop.cart", ("2",)), ("public.other", ("4",))]


def test_all_tables(database: str, prefix: str, maker: Writer) -> None:
    seen = streamed(
        database,
        prefix,
        maker,
        PublicationContent(all_tables=True, via_partition_root=False),
        "CREATE TABLE shop.later (id int PRIMARY KEY)",
        "INSERT INTO shop.later VALUES (1)",
        "INSERT INTO other VALUES (2)",
        "TRUNCATE other, shop.cart",
    )
    assert seen[:2] == [("shop.later", ("1",)), ("public.other", ("2",))]
    assert set(seen[2:]) == {("public.other", "truncated"), ("shop.cart", "truncated")}


@pytest.mark.parametrize("root", [True, False])
def test_a_partitioned_table_as_itself_or_as_its_parts(database: str, prefix: str, maker: Writer, root: bool) -> None:
    """A row that moves to another partition is a delete and an insert, within one table where the
    root is published.
    """
    seen = streamed(
        database,
        prefix,
        maker,
        PublicationContent((("public", "part"),), via_partition_root=root),
        "INSERT INTO part VALUES (1)",
        "UPDATE part SET id = 11",
        "TRUNCATE part",
    )
    low, high = ("public.part", "public.part") if root else ("public.part_low", "public.part_high")
    assert seen[:3] == [(low, ("1",)), (low, "not 1"), (high, ("11",))]
    assert set(seen[3:]) == ({("public.part", "truncated")} if root else {(low, "truncated"), (high, "truncated")})


@pytest.mark.parametrize(
    ("postgres", "option", "comes"),
    [("15", "", ("1",)), ("18", "", ("1",)), ("18", "WITH (publish_generated_columns = stored)", ("1", "2"))],
    indirect=["postgres"],
)
def test_a_generated_column(database: str, prefix: str, maker: Writer, option: str, comes: tuple[str, ...]) -> None:
    maker.execute("CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    maker.execute(f"CREATE PUBLICATION {prefix} FOR TABLE made {option}")
    seen = streamed(database, prefix, maker, None, "INSERT INTO made VALUES (1)")
    assert seen == [("public.made", comes)]


def test_what_is_there_is_left_as_it_is(database: str, prefix: str, maker: Writer) -> None:
    assert provisioning.create_publication(database, prefix, PublicationContent((("public", "t"),)), prefix)
    assert not provisioning.create_publication(database, prefix, PublicationContent(all_tables=True), prefix)
    assert maker.execute("SELECT count(*) FROM pg_publication_tables WHERE pubname = %s", [prefix]).fetchone() == (1,)


def test_of_many_that_begin_at_once_each_is_noted(database: str, prefix: str, maker: Writer) -> None:
    published = PublicationContent((("public", "t"),))
    assert provisioning.create_publication(database, prefix, published, f"{prefix}_0")
    slots = [f"{prefix}_{number}" for number in range(12)]
    note = partial(provisioning.note_reader, database, prefix)
    with ThreadPoolExecutor(len(slots)) as pool:
        list(pool.map(note, slots))
    with connect(database) as connection:
        assert provisioning.shared_publication(prefix).users(connection) == {*slots}


def test_a_role_that_may_not_drop_it_gets_the_statement(database: str, prefix: str, maker: Writer) -> None:
    assert provisioning.create_publication(database, prefix, PublicationContent((("public", "t"),)), prefix)
    maker.execute(f"CREATE ROLE {prefix} LOGIN REPLICATION")
    try:
        with pytest.raises(SetupError, match=r"must be owner of publication .*DROP PUBLICATION IF EXISTS"):
            provisioning.drop(make_conninfo(database, user=prefix), prefix, prefix)
    finally:
        maker.execute(f"DROP ROLE {prefix}")


@pytest.mark.parametrize(
    ("published", "words"),
    [
        (PublicationContent((("public", "nobody"),)), 'relation "public.nobody" does not exist'),
        (PublicationContent((), ("nowhere",)), 'schema "nowhere" does not exist'),
        (PublicationContent(), "would be empty"),
    ],
)
def test_what_cannot_be_published(
    database: str, prefix: str, maker: Writer, published: PublicationContent, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        provisioning.create_publication(database, prefix, published, prefix)
    assert maker.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
