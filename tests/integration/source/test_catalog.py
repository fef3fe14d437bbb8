"""What a table looks like: its key and its types, from a Relation message and the catalog
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from integration.source.stream import Writer, make_slot, streaming
from twofold.errors import Unreachable
from twofold.source.catalog import Catalog
from twofold.source.messages import Relation, Type
from twofold_avro.shapes import TableShape, TypeShape

pytestmark = pytest.mark.core


class Looker:
    """Streams on, and has a catalog that lives as long."""

    def __init__(self, database: str, name: str, writer: Writer) -> None:
        self.database, self.name, self.writer = database, name, writer
        self.catalog = Catalog(database)

    def after(self, *statements: str, before_reading: str = "SELECT") -> TableShape:
        """The table of the last Relation message that the statements bring; the last one runs
        before it is resolved.
        """
        for statement in statements:
            self.writer.execute(statement)
        with streaming(self.database, self.name) as stream:
            messages = stream.until_mark(self.writer)
            stream.confirm(stream.keepalives[-1] if stream.keepalives else stream.seen[-1][0])
        self.writer.execute(before_reading)
        shape = None
        for message in messages:
            if isinstance(message, Type):
                self.catalog.note_type(message)
            elif isinstance(message, Relation):
                shape = self.catalog.shape(message)
        assert shape is not None
        return shape


@pytest.fixture
def looker(database: str, prefix: str, connections: Callable[[], Writer]) -> Iterator[Looker]:
    make_slot(database, prefix)
    looker = Looker(database, prefix, connections())
    with closing(looker.catalog):
        yield looker


def key(shape: TableShape) -> set[str]:
    return {column.name for column in shape.key}


def type_of(shape: TableShape, column: str) -> TypeShape:
    return next(c.type for c in shape.columns if c.name == column)


def test_a_domain_of_a_domain_keeps_the_modifier_of_its_base(looker: Looker) -> None:
    shape = looker.after(
        "CREATE DOMAIN money2 AS numeric(12,2)",
        "CREATE DOMAIN price AS money2 CHECK (VALUE >= 0)",
        "CREATE TABLE t (id int PRIMARY KEY, p price, many price[])",
        "INSERT INTO t VALUES (1, 2.50, '{1,2}')",
    )
    price = type_of(shape, "p")
    assert (price.kind, price.name) == ("domain", "price")
    assert price.element is not None
    assert (price.element.kind, price.element.name) == ("domain", "money2")
    assert price.element.element is not None
    assert (price.element.element.name, price.element.element.typmod) == ("numeric", (12 << 16 | 2) + 4)
    many = type_of(shape, "many")
    assert many.kind == "array"
    assert many.element is not None
    assert (many.element.kind, many.element.name) == ("domain", "price")


def test_an_enum_has_its_labels_in_order_and_new_ones_with_the_next_relation(looker: Looker) -> None:
    statements = (
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TABLE t (id int PRIMARY KEY, m mood)",
        "INSERT INTO t VALUES (1, 'sad')",
    )
    assert type_of(looker.after(*statements), "m").labels == ("sad", "happy")
    shape = looker.after("ALTER TYPE mood ADD VALUE 'so, so' BEFORE 'happy'", "INSERT INTO t VALUES (2, 'so, so')")
    assert type_of(shape, "m").labels == ("sad", "so, so", "happy")


def test_composites_and_ranges_are_resolved_into_their_parts(looker: Looker) -> None:
    shape = looker.after(
        "CREATE TYPE pair AS (a int, b varchar(7), gone int)",
        "ALTER TYPE pair DROP ATTRIBUTE gone",
        "CREATE TABLE t (id int PRIMARY KEY, p pair, r tstzrange, m int4multirange, v varchar(5)[])",
        "INSERT INTO t VALUES (1)",
    )
    fields = [(name, part.name, part.typmod) for name, part in type_of(shape, "p").fields]
    assert fields == [("a", "int4", -1), ("b", "varchar", 11)]
    spans, multi, array = type_of(shape, "r"), type_of(shape, "m"), type_of(shape, "v")
    assert spans.element is not None
    assert (spans.kind, spans.element.name) == ("range", "timestamptz")
    assert multi.element is not None
    assert multi.element.element is not None
    assert (multi.kind, multi.element.name, multi.element.element.name) == ("multirange", "int4range", "int4")
    assert array.element is not None
    assert (array.kind, array.element.name, array.element.typmod) == ("array", "varchar", 9)


def test_columns_that_an_index_only_includes_are_not_in_the_key(looker: Looker) -> None:
    shape = looker.after(
        "CREATE TABLE t (a int, b int, c int, PRIMARY KEY (b) INCLUDE (a))",
        "INSERT INTO t VALUES (1, 2, 3)",
    )
    assert key(shape) == {"b"}
    shape = looker.after("ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (2, 3, 4)")
    assert (key(shape), shape.replica_identity) == ({"b"}, "full")


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("CREATE UNIQUE INDEX i ON t (b, a)", {"a", "b"}),
        ("CREATE UNIQUE INDEX i ON t (a) WHERE a > 0", set()),
        ("CREATE UNIQUE INDEX i ON t ((a + 1))", set()),
        ("CREATE UNIQUE INDEX i ON t (maybe)", set()),
        ("CREATE INDEX i ON t (a)", set()),
        ("ALTER TABLE t ADD CONSTRAINT i UNIQUE (a) DEFERRABLE", set()),
        ("CREATE UNIQUE INDEX i ON t (a, b); ALTER TABLE t ADD PRIMARY KEY (b, a, c)", {"a", "b", "c"}),
    ],
)
def test_the_key_of_a_table_with_replica_identity_full(looker: Looker, index: str, expected: set[str]) -> None:
    """Only an index that always tells rows apart will do."""
    shape = looker.after(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, c int NOT NULL, maybe int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        index,
        "INSERT INTO t VALUES (1, 2, 3, 4)",
    )
    assert key(shape) == expected


def test_replica_identity_index_and_nothing(looker: Looker) -> None:
    shape = looker.after(
        "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)",
        "CREATE UNIQUE INDEX i ON t (a)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
        "INSERT INTO t VALUES (1, 2)",
    )
    assert (key(shape), shape.replica_identity) == ({"a"}, "index")
    shape = looker.after("ALTER TABLE t REPLICA IDENTITY NOTHING", "INSERT INTO t VALUES (2, 3)")
    assert (key(shape), shape.replica_identity) == (set(), "nothing")


def test_a_type_that_is_gone_is_called_what_its_message_called_it(looker: Looker) -> None:
    shape = looker.after(
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TABLE t (id int PRIMARY KEY, m mood)",
        "INSERT INTO t VALUES (1, 'sad')",
        before_reading="DROP TABLE t; DROP TYPE mood",
    )
    gone = type_of(shape, "m")
    assert (gone.kind, gone.namespace, gone.name) == ("base", "public", "mood")
    assert key(shape) == {"id"}


def test_a_type_that_was_seen_before_it_went_is_what_it_was(looker: Looker) -> None:
    looker.after(
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TABLE t (id int PRIMARY KEY, m mood)",
        "INSERT INTO t VALUES (1, 'sad')",
    )
    shape = looker.after("INSERT INTO t VALUES (2, 'sad')", before_reading="DROP TABLE t; DROP TYPE mood")
    assert (type_of(shape, "m").kind, type_of(shape, "m").labels) == ("enum", ("sad",))


def test_a_table_that_is_gone_keeps_the_key_that_was_seen(looker: Looker) -> None:
    statements = (
        "CREATE TABLE t (a int NOT NULL, b int)",
        "CREATE UNIQUE INDEX i ON t (a)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 2)",
    )
    assert key(looker.after(*statements)) == {"a"}
    assert key(looker.after("INSERT INTO t VALUES (2, 3)", before_reading="DROP TABLE t")) == {"a"}


def test_a_table_that_went_before_it_was_seen_has_no_key(looker: Looker) -> None:
    shape = looker.after(
        "CREATE TABLE t (a int NOT NULL, b int)",
        "CREATE UNIQUE INDEX i ON t (a)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 2)",
        before_reading="DROP TABLE t",
    )
    assert key(shape) == set()


def test_the_catalog_is_asked_again_after_its_connection_was_lost(looker: Looker) -> None:
    """It is asked about types that are not PostgreSQL's own."""
    looker.after("CREATE DOMAIN d AS int", "CREATE TABLE t (id int PRIMARY KEY, v d)", "INSERT INTO t VALUES (1)")
    end_others = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'twofold' AND datname = current_database()"
    with pytest.raises(Unreachable, match=r"PostgreSQL at .* went away: "):
        looker.after("INSERT INTO t VALUES (2)", before_reading=end_others)
    assert key(looker.after("INSERT INTO t VALUES (3)")) == {"id"}
