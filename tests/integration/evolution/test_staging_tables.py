"""Tables that are filled, keyed, used and dropped where whole schemas are published: nobody is
asked, and nothing else stands still for it.

Of a table that is there the topic says in the end what the table says; of one that is gone rows
that its topic cannot have are passed over.
"""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from fixtures.backfill import ask_to_load
from fixtures.connector import START_S, Installation, Maker, wait_until
from helpers.connector.evolving import Evolving
from helpers.connector.topics import rows_in_the_end
from helpers.source.streaming import force, streamed
from helpers.topic_changes import delete_topic

ROWS = 200
STAGE = (
    f"CREATE TABLE {{0}} AS SELECT n AS id, rpad('row ' || n, 500, '.') AS v FROM generate_series(1, {ROWS}) n",
    "ALTER TABLE {0} ADD PRIMARY KEY (id)",
    "UPDATE {0} SET v = 'used ' || id WHERE id <= 10",
)
DROP = "DROP TABLE {0}"
KEYED_BY_TEXT = (
    f"CREATE TABLE {{0}} AS SELECT n AS id, rpad('row ' || n, 500, '.') AS v FROM generate_series(1, {ROWS}) n",
    "ALTER TABLE {0} ADD PRIMARY KEY (v)",
    "UPDATE {0} SET id = -id WHERE id <= 10",
)
KEYED_FROM_THE_START = (
    "CREATE TABLE {0} (id int PRIMARY KEY, v text)",
    f"INSERT INTO {{0}} SELECT n, 'new ' || n FROM generate_series(1, {ROWS}) n",
    "UPDATE {0} SET v = 'used ' || id WHERE id <= 10",
)
NEVER_KEYED = (
    f"CREATE TABLE {{0}} AS SELECT n AS id, rpad('row ' || n, 500, '.') AS v FROM generate_series(1, {ROWS}) n",
)


def made(connector: Maker) -> Installation:
    """One that publishes a whole schema, and is not started."""
    here = connector(init=False, source={"tables": ["public.account", "e.*"]}, backfill={"notice": 0.3})
    here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)", "CREATE SCHEMA e")
    return here


@pytest.fixture
def here(connector: Maker) -> Installation:
    made_ = made(connector)
    made_.initialise()
    return made_


@pytest.fixture(scope="module")
def running(module_connector: Maker) -> Iterator[Installation]:
    """One that runs while the module's tests do."""
    installation = made(module_connector)
    installation.initialise()
    with installation.carrying():
        yield installation


def of(table: Evolving, *statements: str) -> list[str]:
    return [statement.format(table.name) for statement in statements]


def state(table: Evolving) -> Counter[tuple[int, str]]:
    """The rows that whoever reads the topic from its beginning has in the end."""
    return rows_in_the_end(table.here.reader.read([table.topic]), lambda row: (row["id"], row["v"]))


def at_source(table: Evolving) -> Counter[tuple[int, str]]:
    rows = table.here.ask(f"SELECT coalesce(json_agg(json_build_array(id, v)), '[]') FROM {table.name}")
    return Counter((i, v) for i, v in rows)


def until_equal(table: Evolving) -> None:
    wait_until(lambda: state(table) == at_source(table), 90, f"{table.topic} says what {table.name} says")


@pytest.mark.parametrize(
    "paced", [pytest.param(True, marks=pytest.mark.slow, id="each published"), pytest.param(False, id="at once")]
)
def test_beside_a_connector_that_runs(running: Installation, paced: bool) -> None:
    """Night after night, each time with another key, while it is there and when it is gone before
    its rows are read.
    """
    table = Evolving(running, f"nightly_{paced}".lower())
    table.subject.allow("NONE", "key")  # another key's columns are a person's decision
    for statements in (
        STAGE,
        STAGE,
        KEYED_FROM_THE_START,
        KEYED_FROM_THE_START,
        KEYED_BY_TEXT,
        KEYED_FROM_THE_START,
        STAGE,
        NEVER_KEYED,
    ):
        for statement in of(table, *statements):
            table.sql(statement)
            if paced:
                running.caught_up()
        if paced:
            until_equal(table)
        table.sql(DROP.format(table.name))
    table.sql(*of(table, *KEYED_BY_TEXT))
    until_equal(table)
    running.caught_up()


WAYS = {"whole": ("each by itself", "in one", "prepared"), "streamed": ("streamed",)}


def carried_out(here: Installation, how: str, account: int, *statements: str) -> None:
    """In transactions of their own, or in one of a kind, with a row of another table."""
    beside = f"INSERT INTO account VALUES ({account}, 7, 'beside it')"
    match how:
        case "each by itself":
            here.sql(*statements, beside)
        case "prepared":
            here.prepare("it", *statements, beside)
            here.sql("COMMIT PREPARED 'it'")
        case _:
            here.sql("; ".join(["BEGIN", *statements, beside, "COMMIT"]))


@pytest.mark.slow
@pytest.mark.parametrize("ways", WAYS)
def test_lives_that_nobody_has_seen(connector: Maker, ways: str) -> None:
    """All of it in the WAL that is unread: several tables of one name with several keys, each gone
    when it is read, or the last of them still there. The topic is empty of what does not fit, and
    the name is free for the next table.
    """
    here = made(connector)
    if ways == "streamed":
        force(here)
    here.initialise()
    gone = [Evolving(here, f"gone_{n}") for n in range(len(WAYS[ways]))]
    there = [Evolving(here, f"there_{n}") for n in range(len(WAYS[ways]))]
    numbers = itertools.count(1)
    for how, table, last in zip(WAYS[ways], gone, there, strict=True):
        for statements in (STAGE, KEYED_BY_TEXT, KEYED_FROM_THE_START):
            carried_out(here, how, next(numbers), *of(table, *statements))
            table.sql(DROP.format(table.name))
        carried_out(here, how, next(numbers), *of(last, *KEYED_BY_TEXT))
        last.sql(DROP.format(last.name))
        carried_out(here, how, next(numbers), *of(last, *STAGE))
    with here.carrying():
        here.caught_up()
        if ways == "streamed":
            wait_until(lambda: streamed(here), what="it is streamed")
        beside = [s for s in here.read("account") if s.value and s.value["after"]["note"] == "beside it"]
        assert len(beside) == next(numbers) - 1
        for table in gone:
            table.sql(*of(table, *KEYED_BY_TEXT))
        for table in (*gone, *there):
            until_equal(table)
        for last in there:
            last.sql(f"UPDATE {last.name} SET v = 'later' WHERE id = 20")
        for last in there:
            until_equal(last)
        here.caught_up()


def test_renamed_away_and_back(here: Installation) -> None:
    """Whose rows were passed over, and which is there again with the key that its topic has, starts
    again: it does not go on as if nothing had been missed.
    """
    table = Evolving(here, "t")
    with here.carrying():
        table.sql(*of(table, *KEYED_FROM_THE_START))
        until_equal(table)
        here.caught_up()
    table.sql(
        f"ALTER TABLE {table.name} DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)",
        f"UPDATE {table.name} SET id = 1000 WHERE id = 1",
        f"ALTER TABLE {table.name} RENAME TO u",
        "ALTER TABLE e.u DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
    )
    with here.carrying():
        here.caught_up()
        assert (1000, "used 1") not in state(table)
        here.sql("ALTER TABLE e.u RENAME TO t")
        until_equal(table)


def test_two_tables_change_names(here: Installation) -> None:
    """As a table is replaced by another one that was filled beside it."""
    table, beside = Evolving(here, "t"), Evolving(here, "beside")
    table.subject.allow("NONE", "key")
    with here.carrying():
        table.sql(*of(table, *KEYED_FROM_THE_START))
        table.sql(*of(beside, *KEYED_BY_TEXT))
        until_equal(table)
        until_equal(beside)
        here.sql(
            "BEGIN; ALTER TABLE e.t RENAME TO former; ALTER TABLE e.beside RENAME TO t; COMMIT",
            "UPDATE e.t SET id = 500 WHERE v LIKE 'row 20.%'",
            "UPDATE e.former SET v = 'former' WHERE id = 20",
        )
        until_equal(table)
        until_equal(Evolving(here, "former"))


def test_a_name_is_taken_over_with_no_row_to_tell_of_it(here: Installation) -> None:
    """Built beside it under the same key, and put in its place: nothing comes in the stream."""
    table, beside = Evolving(here, "t"), Evolving(here, "beside")
    with here.carrying():
        table.sql(*of(table, *KEYED_FROM_THE_START))
        table.sql(*of(beside, *KEYED_FROM_THE_START), f"DELETE FROM {beside.name} WHERE id > 150")
        until_equal(table)
        until_equal(beside)
        here.sql("BEGIN; DROP TABLE e.t; ALTER TABLE e.beside RENAME TO t; COMMIT")
        until_equal(table)


def test_a_table_that_is_gone_and_what_a_person_would_be_asked_for_others(here: Installation) -> None:
    """Values that would be misread, a schema that the registry does not take: of a table that is
    gone nobody is asked.
    """
    table, other = Evolving(here, "t"), Evolving(here, "u")
    with here.carrying():
        for each in (table, other):
            each.made()
        other.subject.allow("FULL")
    table.sql(f"ALTER TABLE {table.name} ALTER price TYPE numeric(12,4)", f"UPDATE {table.name} SET v = 11")
    table.sql(DROP.format(table.name))
    other.sql(f"ALTER TABLE {other.name} ALTER v TYPE bigint", f"UPDATE {other.name} SET v = 11", "DROP TABLE e.u")
    with here.carrying():
        here.caught_up()
    assert table.rows()[1]["v"] == other.rows()[1]["v"] == 10


def test_a_person_may_ask_for_it(here: Installation) -> None:
    """`backfill start` takes the name of a table that is gone, whether the connector runs or not,
    and its topic may go.
    """
    table = Evolving(here, "t")
    table.subject.allow("NONE", "key")
    with here.carrying():
        table.sql(*of(table, *STAGE))
        until_equal(table)
        table.sql(DROP.format(table.name))
        ask_to_load(here, "e.t")
        here.caught_up()
    ask_to_load(here, "e.t")
    with here.carrying():
        here.caught_up()
        assert here.reader.topics(here.prefix)
    delete_topic(here.reader.bootstrap, table.topic)
    with here.carrying():
        here.caught_up()
        table.sql(*of(table, *KEYED_BY_TEXT))
        wait_until(lambda: table.topic in here.reader.topics(here.prefix))
        until_equal(table)


def test_the_topic_of_a_table_that_is_gone_may_be_changed(here: Installation) -> None:
    """It has more partitions than it was made with: of a table that is published that is
    refused.
    """
    table = Evolving(here, "t")
    with here.carrying():
        table.sql(*of(table, *KEYED_FROM_THE_START))
        until_equal(table)
        here.caught_up()
    table.sql(DROP.format(table.name))
    more_partitions(here, table.topic, 5)
    with here.carrying():
        here.caught_up()
        table.sql(*of(table, *KEYED_FROM_THE_START))
        until_equal(table)


def more_partitions(here: Installation, topic: str, number: int) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": here.reader.bootstrap})
    admin.create_partitions([NewPartitions(topic, number)])[topic].result(20)


@pytest.mark.slow
def test_killed_on_the_way(here: Installation) -> None:
    """What was found is found again."""
    table = Evolving(here, "t")
    run = here.start()
    table.sql(*of(table, *KEYED_FROM_THE_START))
    until_equal(table)
    table.sql(DROP.format(table.name), *of(table, *STAGE))
    run.wait_for("starts over")
    run.signal(signal.SIGKILL)
    run.ended(START_S)
    here.sql("INSERT INTO account VALUES (8, 8, '')")
    here.prepare("it", "INSERT INTO account VALUES (9, 9, '')")
    for failpoint in ("after_checks", "after_decode", "after_staging"):
        run = here.start(f"{failpoint}=kill", ready=False)
        assert run.ended(START_S) == -9, failpoint
    here.forget_runs()
    with here.carrying():
        until_equal(table)
        here.sql("COMMIT PREPARED 'it'")
        here.caught_up()
