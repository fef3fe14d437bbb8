"""What a table may not become under its topic: the connector stops before a row is written with it,
and says what is at stake and what repairs it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from fixtures.connector import START_S, Maker, wait_until
from helpers.connector.evolving import Evolving, is_row
from helpers.reading import ask_registry
from helpers.topic_changes import delete_topic
from twofold.errors import Refused, SetupError, TwofoldError

COLUMNS = "id int PRIMARY KEY, v int NOT NULL, note text, price numeric(10,2)"
ROW = "(1, 10, 'one', 1.25)"
NEXT = "INSERT INTO {0} VALUES (2, 20, 'two', 2.25)"


@pytest.fixture
def evolving(connector: Maker) -> Evolving:
    """A table-to-be of a connector that is not started."""
    here = connector(init=False, source={"tables": ["public.account", "e.*"], "backfill": False})
    here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA e")
    here.initialise()
    return Evolving(here, "t")


def refusal_of(evolving: Evolving, happens: Callable[[], None]) -> TwofoldError:
    """With which the connector ends when this happens to the table and its topic.

    Nothing of it is published.
    """
    with ThreadPoolExecutor(1) as executor:
        run = executor.submit(evolving.here.refusal)
        evolving.made(COLUMNS, ROW)
        happens()
        error = run.result(START_S)
    assert list(evolving.rows()) == [1], "a row was published"
    assert evolving.subject.versions() == [1]
    return error


def test_types_that_old_rows_would_be_misread_under(evolving: Evolving) -> None:
    """One after the other; of a table that is dropped then nobody is asked."""
    for number, (change, column) in enumerate(
        (
            ("ALTER price TYPE numeric(12,4)", "price"),
            ("ALTER price TYPE numeric", "price"),
            ("ALTER v TYPE date USING date '2000-01-01' + v", "v"),
        )
    ):
        table = Evolving(evolving.here, f"t{number}")
        statements = (
            f"ALTER TABLE {table.name} {change}",
            f"INSERT INTO {table.name} (id, v) SELECT 2, v FROM {table.name}",
        )
        error = refusal_of(table, partial(table.sql, *statements))
        assert isinstance(error, Refused)
        assert f"table {table.name}: the type of {column} has changed" in error.what
        assert f"twofold backfill start {table.name}" in error.repair
        table.sql(f"DROP TABLE {table.name}")


@pytest.mark.core
def test_a_type_changes_in_a_prepared_transaction(evolving: Evolving) -> None:
    """Nobody is stopped by what may be rolled back; at COMMIT PREPARED it is refused, and each time
    again, for undoing it does not undo the row. The repair that it names brings the row.
    """

    def happens() -> None:
        change = "ALTER TABLE e.t ALTER price TYPE numeric(12,4)"
        evolving.prepare("a", change, NEXT.format("e.t"))
        evolving.sql("ROLLBACK PREPARED 'a'")
        evolving.prepare("b", change, NEXT.format("e.t"))
        evolving.sql("COMMIT PREPARED 'b'", "ALTER TABLE e.t ALTER price TYPE numeric(10,2)")

    assert "the type of price has changed" in str(refusal_of(evolving, happens))
    here = evolving.here
    assert "the type of price has changed" in str(here.refusal())
    delete_topic(here.reader.bootstrap, evolving.topic)
    ask_registry(here.reader.registry_url, f"subjects/{evolving.topic}-value", "DELETE")
    here.twofold("backfill", "start", evolving.name, ok=True)
    with here.carrying():
        wait_until(lambda: evolving.topic in here.reader.topics(here.prefix), 90, "the topic is there again")
        # The topic is made before the load is entered.
        wait_until(lambda: evolving.rows().keys() == {1, 2}, 90, "its rows")
        evolving.sql("INSERT INTO e.t VALUES (3, 30, 'three', 3.25)")
        here.caught_up()
    assert {number: str(row["price"]) for number, row in evolving.rows().items()} == {1: "1.25", 2: "2.25", 3: "3.25"}


@pytest.mark.core
def test_a_column_comes_back_as_something_else(evolving: Evolving) -> None:
    """The latest version does not have it, the topic's older rows do."""

    def happens() -> None:
        evolving.sql(
            "ALTER TABLE e.t DROP price", "INSERT INTO e.t VALUES (1, 10, 'one') ON CONFLICT (id) DO UPDATE SET v = 11"
        )
        wait_until(lambda: evolving.subject.versions() == [1, 2])
        evolving.sql("ALTER TABLE e.t ADD price numeric(12,4)", NEXT.format("e.t"))

    with ThreadPoolExecutor(1) as executor:
        run = executor.submit(evolving.here.refusal)
        evolving.made(COLUMNS, ROW)
        happens()
        assert "the type of price has changed" in str(run.result(START_S))
    assert evolving.rows()[1]["v"] == 11
    assert evolving.subject.versions() == [1, 2]


OTHER_KEYS = {
    "drop": ("ALTER TABLE {0} DROP CONSTRAINT {1}_pkey",),
    "drop, full": ("ALTER TABLE {0} DROP CONSTRAINT {1}_pkey", "ALTER TABLE {0} REPLICA IDENTITY FULL"),
    "index": ("CREATE UNIQUE INDEX by_v ON {0} (v)", "ALTER TABLE {0} REPLICA IDENTITY USING INDEX by_v"),
    "nothing": ("ALTER TABLE {0} REPLICA IDENTITY NOTHING",),
    "retype": ("ALTER TABLE {0} ALTER id TYPE bigint",),
    "rename": ("ALTER TABLE {0} RENAME id TO number",),
}


def test_other_keys(evolving: Evolving) -> None:
    """The same for the message key."""
    for number, (case, statements) in enumerate(OTHER_KEYS.items()):
        table = Evolving(evolving.here, f"t{number}")
        made = [each.format(table.name, table.table) for each in (*statements, NEXT)]
        error = refusal_of(table, partial(table.sql, *made))
        assert isinstance(error, Refused), case
        assert error.what == f"the message key of table {table.name} is not what it was", case
        assert f"twofold backfill start {table.name}" in error.repair, case
        table.sql(f"DROP TABLE {table.name}")


@pytest.mark.core
def test_what_the_registry_refuses_and_how_it_goes_on(evolving: Evolving) -> None:
    here = evolving.here
    run = here.start()
    tail = evolving.made(COLUMNS, ROW)
    evolving.subject.allow("FULL")
    evolving.sql("ALTER TABLE e.t ALTER v TYPE bigint", NEXT.format("e.t"))
    assert run.ended() == 5
    assert f"the registry refuses the new schema of {evolving.topic}-value: " in run.said()
    assert "at stake: readers of the topic could no longer read it; no row was written" in run.said()
    assert list(evolving.rows()) == [1]
    evolving.subject.allow("BACKWARD")
    with here.carrying():
        assert tail.wait_for(is_row(2))


@pytest.mark.core
def test_a_renamed_tables_old_topic_may_be_deleted(evolving: Evolving) -> None:
    here, renamed = evolving.here, Evolving(evolving.here, "u")
    with here.carrying():
        evolving.made(COLUMNS, ROW)
        renamed.made_of("ALTER TABLE e.t RENAME TO u", "UPDATE e.u SET note = 'renamed'")
    delete_topic(here.reader.bootstrap, evolving.topic)
    with here.carrying():
        here.caught_up()
        evolving.sql("ALTER TABLE e.u RENAME TO t", "UPDATE e.t SET note = 'back'")
        here.caught_up()
    assert evolving.rows() == {1: {"id": 1, "v": 10, "note": "back", "price": renamed.rows()[1]["price"]}}


@pytest.mark.core
def test_two_topics_that_kafka_takes_for_one(evolving: Evolving) -> None:
    def happens() -> None:
        evolving.sql("CREATE SCHEMA e_t", "CREATE TABLE e.t_y (id int)", "CREATE TABLE e_t.y (id int)")
        evolving.sql(
            f"ALTER PUBLICATION {evolving.here.prefix} ADD TABLE e_t.y",
            "INSERT INTO e.t_y VALUES (1)",
            "INSERT INTO e_t.y VALUES (1)",
        )

    error = refusal_of(evolving, happens)
    assert isinstance(error, SetupError)
    assert "rename one of the two tables" in str(error)
    assert f"{evolving.here.prefix}.e_t.y" in str(error)
