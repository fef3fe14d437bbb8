"""A table changes by DDL while the connector carries it: what the subject has then, and what
readers read that know only the first schema. docs/use/evolution.md is this in prose.

Each change is made twice: by itself, and inside a prepared transaction that changes all tables,
where no schema must be registered before the COMMIT PREPARED.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg
import pytest
from fastavro.read import SchemaResolutionError

from fixtures.connector import Installation, wait_until
from helpers.connector.evolving import Evolving, RawReader, is_row
from helpers.connector.topics import Seen, Tail

ROW = {"id": 2, "v": 20, "big": 200, "small": 2.5, "note": "two", "price": Decimal("2.25")}
VALUES = "2, 20, 200, 2.5, 'two', 2.25"


@dataclass(frozen=True)
class Change:
    """What happens to a table, and a row that is written after it."""

    ddl: str
    values: str = VALUES
    written: dict[str, Any] = field(default_factory=dict)
    """What the row has other than ROW, as it was written; None: the column is not there."""
    old: dict[str, Any] | None = field(default_factory=dict)
    """The same, as a reader of the first schema reads it; None: it cannot."""
    mode: str = "FULL"
    """The strictest compatibility that lets it pass."""
    registers: bool = True
    first_row_readable: bool = True
    """By a reader that knows only the last schema."""


GONE = object()
CHANGES = {
    "add a column": Change("ALTER TABLE {} ADD more text", VALUES + ", 'more'", {"more": "more"}),
    "add a column with a default": Change("ALTER TABLE {} ADD more int NOT NULL DEFAULT 7", written={"more": 7}),
    "drop a column": Change("ALTER TABLE {} DROP v", "2, 200, 2.5, 'two', 2.25", {"v": GONE}, {"v": None}),
    "rename a column": Change(
        "ALTER TABLE {} RENAME note TO remark", written={"note": GONE, "remark": "two"}, old={"note": None}
    ),
    "a name like an escape": Change(
        'ALTER TABLE {} RENAME note TO "a_x20_b"', written={"note": GONE, "a_x5f_x20_b": "two"}, old={"note": None}
    ),
    "int to bigint": Change(
        "ALTER TABLE {} ALTER v TYPE bigint",
        "2, 20000000000, 200, 2.5, 'two', 2.25",
        {"v": 20000000000},
        None,
        "BACKWARD",
    ),
    "real to double": Change("ALTER TABLE {} ALTER small TYPE double precision", old=None, mode="BACKWARD"),
    "bigint to int": Change("ALTER TABLE {} ALTER big TYPE int", mode="FORWARD", first_row_readable=False),
    "int to text": Change(
        "ALTER TABLE {} ALTER v TYPE text", written={"v": "20"}, old=None, mode="NONE", first_row_readable=False
    ),
    "varchar to text": Change(
        "ALTER TABLE {} ALTER note TYPE text",
        "2, 20, 200, 2.5, 'longer than ten', 2.25",
        {"note": "longer than ten"},
        {"note": "longer than ten"},
        registers=False,
    ),
    "a greater precision": Change(
        "ALTER TABLE {} ALTER price TYPE numeric(12,2)",
        "2, 20, 200, 2.5, 'two', 1234567890.12",
        {"price": Decimal("1234567890.12")},
        {"price": Decimal("1234567890.12")},
    ),
    "replica identity full": Change("ALTER TABLE {} REPLICA IDENTITY FULL", registers=False),
    "replica identity index": Change("ALTER TABLE {0} REPLICA IDENTITY USING INDEX {1}_pkey", registers=False),
}


def expected(difference: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**ROW, **difference}.items() if value is not GONE}


def made_together(shared: Installation, names: Iterable[str]) -> tuple[dict[str, Evolving], Tail]:
    """A table for each name, each with its first row in its topic, and a reader of all topics."""
    tables = {name: Evolving(shared, name) for name in names}
    shared.sql(*(statement for each in tables.values() for statement in each.statements()))
    tail = shared.reader.tail([each.topic for each in tables.values()])
    shared.at_end(tail.close)
    for each in tables.values():
        assert tail.wait_for(each.is_row(1)), each.name
    return tables, tail


@pytest.mark.parametrize("how", [pytest.param("plain", marks=pytest.mark.core), "prepared"])
def test_tables_change(shared: Installation, how: str) -> None:
    """Each table changes in its own way; the prepared transaction changes all of them."""
    changes = {f"{how}_{n}": change for n, change in enumerate(CHANGES.values())}
    tables, tail = made_together(shared, changes)
    firsts: dict[str, list[int]] = {}
    statements: list[str] = []
    for name, change in changes.items():
        table = tables[name]
        table.subject.allow(change.mode)
        firsts[name] = table.subject.versions()
        statements += change.ddl.format(table.name, name).split("; ")
        statements.append(f"INSERT INTO {table.name} VALUES ({change.values})")
    if how == "plain":
        shared.sql(*statements)
    else:
        Evolving(shared, "").prepare("changes", *statements)
        assert {name: tables[name].subject.versions() for name in changes} == firsts
        shared.sql("COMMIT PREPARED 'changes'")
    for name, case in zip(changes, CHANGES, strict=True):
        assert tail.wait_for(tables[name].is_row(2)), case
    records = RawReader(shared.reader.bootstrap, shared.reader.registry_url).read(
        each.topic for each in tables.values()
    )
    for name, (case, change) in zip(changes, CHANGES.items(), strict=True):
        has_changed(tables[name], change, records, case)


def has_changed(table: Evolving, change: Change, records: list[Seen], case: str) -> None:
    first, *later = table.subject.versions()
    assert len(later) == change.registers, case
    assert table.rows(None, records)[2] == expected(change.written), case
    if change.old is None:
        with pytest.raises(SchemaResolutionError):
            table.rows(first, records)
    else:
        assert table.rows(first, records)[2] == expected(change.old), case
    last = later[-1] if later else first
    if change.first_row_readable:
        assert table.rows(last, records)[1]["id"] == 1, case
    else:
        with pytest.raises(SchemaResolutionError):
            table.rows(last, records)


@contextmanager
def traffic(evolving: Evolving) -> Iterator[list[int]]:
    """A thread that inserts rows one by one; the ids of what was committed."""
    committed: list[int] = []
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(evolving.here.conninfo, autocommit=True) as connection:
            while not stop.is_set():
                row = len(committed) + 2
                connection.execute(f"INSERT INTO {evolving.name} (id, big) VALUES ({row}, {row})")
                committed.append(row)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield committed
    finally:
        stop.set()
        thread.join()


def _more_than(committed: list[int], count: int) -> bool:
    return len(committed) > count


@pytest.mark.core
def test_a_table_changes_again_and_again_while_rows_are_written(evolving: Evolving) -> None:
    """Plain and prepared, committed and rolled back: no row is lost or doubled, each has the
    columns of its time, and the first reader reads all.
    """
    tail = evolving.made()
    evolving.subject.allow("FULL")
    name = evolving.name
    with traffic(evolving) as committed:
        for n, statement in enumerate(
            [
                f"ALTER TABLE {name} ADD a int DEFAULT 1",
                f"ALTER TABLE {name} DROP note",
                f"ALTER TABLE {name} RENAME a TO b",
                f"ALTER TABLE {name} REPLICA IDENTITY FULL",
                f"ALTER TABLE {name} ALTER price TYPE numeric(14,2)",
                f"ALTER TABLE {name} ADD note text DEFAULT 'again'",
            ]
        ):
            evolving.sql(statement)
            evolving.prepare(
                f"{name}.{n}", f"ALTER TABLE {name} ADD c{n} int", f"INSERT INTO {name} (id) VALUES (-{n})"
            )
            evolving.sql(f"{'ROLLBACK' if n % 2 else 'COMMIT'} PREPARED '{name}.{n}'")

            wait_until(partial(_more_than, committed, len(committed) + 5))
    assert tail.wait_for(is_row(committed[-1]))
    seen = [s.value["after"] for s in tail.seen if s.value]
    assert sorted(row["id"] for row in seen) == sorted([1, 0, -2, -4, *committed])
    columns = [frozenset(row) for row in seen]
    assert len(set(columns)) == 8, (
        "the first, three of prepared transactions, and four plain ones: two change no column"
    )
    assert not frozenset.union(*columns) & {"c1", "c3", "c5"}, "of those that were rolled back"
    assert {row["id"]: row["big"] for row in evolving.rows(1).values() if row["id"] > 1} == {i: i for i in committed}


@pytest.mark.core
def test_a_table_is_renamed_and_its_old_topic_may_go(evolving: Evolving) -> None:
    evolving.made()
    renamed = Evolving(evolving.here, f"{evolving.table}_2")
    evolving.sql(f"ALTER TABLE {evolving.name} RENAME TO {renamed.table}")
    evolving.prepare(renamed.name, f"INSERT INTO {renamed.name} VALUES ({VALUES})")
    evolving.sql(f"COMMIT PREPARED '{renamed.name}'", f"UPDATE {renamed.name} SET v = 11 WHERE id = 1")
    tail = evolving.here.reader.tail([renamed.topic])
    try:
        assert tail.wait_for(is_row(1))
    finally:
        tail.close()
    assert {key: row["v"] for key, row in evolving.rows().items()} == {1: 10}
    assert {key: row["v"] for key, row in renamed.rows().items()} == {1: 11, 2: 20}
    assert evolving.subject.versions() == renamed.subject.versions() == [1]


@pytest.mark.core
def test_a_table_is_dropped_and_made_again(evolving: Evolving) -> None:
    """Nothing is said of the rows that went with it: PostgreSQL sends nothing of a DROP TABLE."""
    tail = evolving.made()
    evolving.subject.allow("FULL")
    evolving.sql(
        f"DROP TABLE {evolving.name}",
        f"CREATE TABLE {evolving.name} (id int PRIMARY KEY, other text)",
        f"INSERT INTO {evolving.name} VALUES (2, 'new')",
    )
    assert tail.wait_for(is_row(2))
    assert [s.value["op"] for s in tail.seen] == ["c", "c"]
    assert evolving.rows(1)[2] == {**dict.fromkeys(ROW), "id": 2}


@pytest.mark.core
def test_tables_join_the_publication(shared: Installation) -> None:
    """Their first row is a plain transaction's, and a prepared one's."""
    for name in ("plain", "prepared"):
        shared.sql(
            f"CREATE TABLE joins_{name} (id int PRIMARY KEY)",
            f"INSERT INTO joins_{name} VALUES (1)",
            f"ALTER PUBLICATION {shared.prefix} ADD TABLE joins_{name}",
        )
    tail = shared.tail("joins_plain", "joins_prepared")
    shared.sql("INSERT INTO joins_plain VALUES (2)")
    Evolving(shared, "").prepare("joins", "INSERT INTO joins_prepared VALUES (2)")
    shared.sql("COMMIT PREPARED 'joins'")
    assert tail.wait_for(lambda s: s.topic == shared.table("joins_plain") and is_row(2)(s))
    assert tail.wait_for(lambda s: s.topic == shared.table("joins_prepared") and is_row(2)(s))
    assert [s.value["after"]["id"] for s in tail.seen] == [2, 2]


@pytest.mark.core
def test_a_new_identity_is_what_before_has(evolving: Evolving) -> None:
    tail = evolving.made()
    for n, identity in enumerate(["FULL", f"USING INDEX {evolving.table}_pkey", "FULL", "DEFAULT"]):
        evolving.sql(
            f"ALTER TABLE {evolving.name} REPLICA IDENTITY {identity}", f"UPDATE {evolving.name} SET v = {n}, big = {n}"
        )
    assert tail.wait_for(lambda s: s.value["after"]["v"] == 3)
    assert [s.value["before"] and s.value["before"]["v"] for s in tail.seen] == [None, 10, None, 1, None]
    assert len({s.partition for s in tail.seen}) == 1
    assert evolving.subject.versions() == [1]


@pytest.mark.core
def test_with_replica_identity_nothing_there_is_no_key(evolving: Evolving) -> None:
    evolving.sql(
        f"CREATE TABLE {evolving.name} (id int PRIMARY KEY)", f"ALTER TABLE {evolving.name} REPLICA IDENTITY NOTHING"
    )
    tail = evolving.made_of(f"INSERT INTO {evolving.name} VALUES (1)")
    assert [(s.key, s.partition) for s in tail.seen] == [(None, 0)]
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
        evolving.sql(f"DELETE FROM {evolving.name}")


@pytest.mark.core
def test_names_that_differ_in_case_alone_are_two_columns(evolving: Evolving) -> None:
    evolving.made('id int PRIMARY KEY, a int, "A" int', "(1, 2, 3)")
    assert evolving.rows(1) == {1: {"id": 1, "a": 2, "A": 3}}
