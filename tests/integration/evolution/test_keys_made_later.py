"""A table whose key is made after its rows (as a dump is restored, and `CREATE TABLE ...

AS SELECT` has it) or changes, while nobody carries: the catalog is ahead of the stream, in which
rows of the former key come first.

Its topic starts over, by itself while the table has not been loaded to its end: rows of the former
key are void, for the truncate with which that begins comes behind them.
"""

from __future__ import annotations

import pytest

from fixtures.backfill import ask_to_load
from fixtures.connector import Maker, wait_until
from helpers.connector.evolving import Evolving
from helpers.source.streaming import force, streamed

COLUMN_MORE = ("v int, note text", "ADD COLUMN id serial PRIMARY KEY", "(v) VALUES ({})")
NONE_BEFORE = ("v int, note text, id int", "ALTER id TYPE text, ADD PRIMARY KEY (id)", "VALUES ({0}, '', '{0}')")
ANOTHER_TYPE = ("v int, note text, id int PRIMARY KEY", "ALTER id TYPE bigint", "VALUES ({0}, '', {0})")
ANOTHER_COLUMN = ("v int, note text, id int PRIMARY KEY", "DROP id, ADD PRIMARY KEY (v)", "VALUES ({}, '')")
CHANGES = {"a column more": COLUMN_MORE, "none before": NONE_BEFORE, "type": ANOTHER_TYPE, "column": ANOTHER_COLUMN}
ROWS = 200


@pytest.mark.parametrize(
    ("change", "how", "asked"),
    [
        ("a column more", "prepared", False),
        ("none before", "each by itself", False),
        ("type", "each by itself", False),
        ("column", "each by itself", True),
        *(
            pytest.param(change, how, False, marks=pytest.mark.slow)
            for change, how in (
                *(("a column more", how) for how in ("each by itself", "in one", "streamed")),
                *(("column", how) for how in ("each by itself", "in one", "streamed", "prepared")),
            )
        ),
    ],
)
def test_a_key_that_changes_while_nobody_carries(connector: Maker, change: str, how: str, asked: bool) -> None:
    here = connector(init=False, source={"tables": ["public.account", "e.*"]})
    here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA e")
    if how == "streamed":
        force(here)
    here.initialise()
    evolving = Evolving(here, "t")
    columns, changes, row = CHANGES[change]
    statements = [
        f"CREATE TABLE e.t ({columns})",
        f"INSERT INTO e.t SELECT n, repeat('x', 1000){', n' if ' id ' in columns else ''} FROM generate_series(1, {ROWS}) n",
        f"ALTER TABLE e.t {changes}",
        f"INSERT INTO e.t {row.format(ROWS + 1)}",
    ]
    match how:
        case "each by itself":
            evolving.sql(*statements)
        case "prepared":
            here.prepare("it", *statements)
            evolving.sql("COMMIT PREPARED 'it'")
        case _:
            evolving.sql("; ".join(["BEGIN", *statements, "COMMIT"]))
    if asked:
        ask_to_load(here, "e.t")
    with here.carrying():
        wait_until(lambda: behind_the_truncate(evolving) == [*range(1, ROWS + 2)], what="it is loaded")
        evolving.sql(f"INSERT INTO e.t {row.format(ROWS + 2)}")
        here.caught_up()
        if how == "streamed":
            wait_until(lambda: streamed(here), what="it is streamed")
    assert behind_the_truncate(evolving) == [*range(1, ROWS + 3)]


def test_keys_of_two_tables_change_while_nobody_carries(connector: Maker) -> None:
    """Each needs a recovery, and none undoes the one before."""
    here = connector(init=False, source={"tables": ["public.account", "e.*"]})
    here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA e")
    here.initialise()
    tables = [Evolving(here, name) for name in ("t", "u")]
    columns, changes, row = ANOTHER_COLUMN
    for statement in (
        f"CREATE TABLE {{}} ({columns})",
        "INSERT INTO {} VALUES (1, '', 1)",
        f"ALTER TABLE {{}} {changes}",
    ):
        here.sql(*(statement.format(table.name) for table in tables))
    here.sql(*(f"INSERT INTO {table.name} {row.format(2)}" for table in tables))
    with here.carrying():
        wait_until(lambda: all(behind_the_truncate(each) == [1, 2] for each in tables), what="both are loaded")
        here.caught_up()


def behind_the_truncate(evolving: Evolving) -> list[int]:
    """Each row's `v`, as its key has it last."""
    seen = (
        evolving.here.reader.read([evolving.topic])
        if evolving.topic in evolving.here.reader.topics(evolving.here.prefix)
        else []
    )
    emptied = {s.partition: s.offset for s in seen if s.value["op"] == "t"}
    if emptied.keys() != {s.partition for s in seen}:
        return []
    last = {str(s.key): s.value["after"]["v"] for s in seen if s.offset > emptied[s.partition]}
    return sorted(last.values())
