"""A connector that is told of DDL in the stream: nothing wrong is published first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.canary import TEXT, raw, sings
from helpers.connector.topics import Seen
from helpers.source.streaming import force, streamed
from twofold.doctor import examine
from twofold.source import provisioning


def test_rows_are_read_by_the_key_and_the_columns_of_their_position(connector: Maker, tmp_path: Path) -> None:
    (tmp_path / "policy.key").write_bytes(b"k" * 40)
    here = connector(
        init=False,
        policy={
            "key_file": str(tmp_path / "policy.key"),
            "columns": [{"column": "public.person.email", "action": "hash"}],
        },
        source={"tables": ["public.account", "public.person", "public.pair"], "ddl_messages": True, "messages": False},
        prepared={"pool": 2},
    )
    here.sql(
        "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)",
        "CREATE TABLE person (id int PRIMARY KEY, contact text, email text)",
        "CREATE TABLE pair (id int NOT NULL, v int)",
        "CREATE UNIQUE INDEX pair_id ON pair (id)",
        "ALTER TABLE pair REPLICA IDENTITY FULL",
        "INSERT INTO pair VALUES (1, 1), (2, 2)",
    )
    here.initialise()
    columns = ("DROP contact", "RENAME email TO contact", "ADD email text")
    with here.carrying():
        wait_until(lambda: len(here.read("pair")) == 2)
        here.sql("SELECT pg_logical_emit_message(true, 'mine', 'not carried')")
        here.prepare(
            "one",
            *(f"ALTER TABLE person {each}" for each in columns),
            f"INSERT INTO person VALUES (1, '{TEXT}', 'new')",
        )
        here.sql(
            "BEGIN; DROP INDEX pair_id; INSERT INTO pair VALUES (1, 7); DELETE FROM pair WHERE v = 1;"
            " CREATE UNIQUE INDEX pair_id ON pair (id); COMMIT"
        )
        here.caught_up()
        wait_until(lambda: rows(here) == {1: 7, 2: 2})
        here.sql("COMMIT PREPARED 'one'")
        wait_until(lambda: here.read("person"))
    assert not deleted(here)
    persons = [s.value["after"] for s in here.read("person") if s.value and s.value["after"]]
    assert persons
    assert all(len(person["contact"]) == 64 for person in persons)
    assert not [name for name, data in raw(here) if sings(data)]
    assert here.records("messages") == []
    assert flaws(here) == ""
    assert "triggers    each change of a table is told" in here.twofold("status").stdout
    here.sql("ALTER EVENT TRIGGER twofold_ddl DISABLE", "ALTER EVENT TRIGGER twofold_drop RENAME TO dropped")
    assert "twofold_ddl is disabled" in flaws(here)
    assert "twofold_drop was renamed to dropped" in flaws(here)
    assert "NOT TOLD: event trigger twofold_ddl is disabled" in here.twofold("status").stdout
    assert "event triggers made" in here.twofold("init", ok=True).stdout
    assert flaws(here) == ""
    here.configure({"source": {"ddl_messages": False}})
    assert "source.ddl_messages is off" in flaws(here)
    removed = provisioning.drop(here.conninfo, here.config.slot, here.prefix).removed
    assert "event triggers and schema twofold" in removed


def rows(here: Installation) -> dict[int, int]:
    """The last value of each key of `pair`."""
    found = (s.value["after"] for s in here.read("pair") if s.value)
    return {row["id"]: row["v"] for row in found if row}


def deleted(here: Installation) -> list[Seen]:
    """The deletes of key 1 of `pair`, which always has a row in the table."""
    return [s for s in here.read("pair") if s.key == {"id": 1} and (s.value is None or s.value["op"] == "d")]


def flaws(here: Installation) -> str:
    return "".join(each.what for each in examine(here.config) if each.check == "ddl_messages")


DROP, MAKE = "DROP INDEX pair_id", "CREATE UNIQUE INDEX pair_id ON pair (id)"
TWO_OF_ONE_KEY = ("INSERT INTO pair VALUES (1, {n})", "DELETE FROM pair WHERE id = 1 AND v <> {n}")
"""While the index is away; one of the two rows stays."""


class Pairs:
    """A table whose key is its unique index, and that has one row of key 1 after each step."""

    def __init__(
        self,
        make: Callable[..., Installation],
        *,
        forced: bool = False,
        before_init: Callable[[], object] = lambda: None,
    ) -> None:
        self.here = make(
            init=False,
            source={"tables": ["public.account", "public.pair"], "ddl_messages": True},
            prepared={"pool": 2},
        )
        self.here.sql(
            "CREATE TABLE IF NOT EXISTS account (id int PRIMARY KEY, version int NOT NULL, note text)",
            "CREATE TABLE pair (id int NOT NULL, v int)",
            MAKE,
            "ALTER TABLE pair REPLICA IDENTITY FULL",
            "INSERT INTO pair VALUES (1, 1), (2, 2)",
        )
        if forced:
            force(self.here)
        before_init()
        self.here.initialise()
        self._value = 10

    def two_of_one_key(self) -> list[str]:
        self._value += 1
        return [each.format(n=self._value) for each in TWO_OF_ONE_KEY]

    def die(self, failpoint: str) -> None:
        """`kill -9` there, once the connector has read what is to be read."""
        assert self.here.start(failpoint, ready=False).ended() == -9
        self.here.forget_runs()

    def settle(self) -> None:
        """The connector carries all, and publishes no delete of key 1."""
        with self.here.carrying():
            self.here.caught_up()
            wait_until(lambda: rows(self.here) == {1: self._value, 2: 2})
        assert not deleted(self.here)


def test_a_run_begins_with_what_was_told_before_it(connector: Maker) -> None:
    """The rows lie before the first message of the run, and the catalog of now has the index."""
    pairs = Pairs(connector)
    here = pairs.here
    with here.carrying():
        here.sql(DROP)
        here.caught_up()
    here.sql(*pairs.two_of_one_key(), MAKE)
    pairs.settle()
    here.sql(DROP)
    pairs.die("before_commit")  # Kafka does not have what was told: it comes again
    here.sql(*pairs.two_of_one_key(), MAKE)
    pairs.settle()


@pytest.mark.slow
def test_it_does_behind_a_kill_and_a_prepared_transaction(connector: Maker) -> None:
    pairs = Pairs(connector)
    here = pairs.here
    pairs.die("after_commit")
    here.sql(DROP)
    pairs.die("after_commit")
    here.sql(*pairs.two_of_one_key(), MAKE)
    pairs.settle()
    here.prepare("one", DROP)
    with here.carrying():
        here.caught_up()
    here.sql("COMMIT PREPARED 'one'", *pairs.two_of_one_key(), MAKE)
    pairs.settle()
    here.prepare("two", "UPDATE account SET version = 7", DROP)
    with here.carrying():
        here.caught_up()
        here.sql("COMMIT PREPARED 'two'")
        here.caught_up()
    here.sql(*pairs.two_of_one_key(), MAKE)
    pairs.settle()


def test_a_streamed_transaction_whose_savepoint_was_rolled_back_is_told_of(connector: Maker) -> None:
    pairs = Pairs(connector, forced=True)
    here = pairs.here
    with here.carrying():
        here.caught_up()
        many = "INSERT INTO account SELECT n, 0, repeat('x', 400) FROM generate_series({}, {}) n"
        for end in ("RELEASE", "ROLLBACK TO"):
            first = 100 if end == "RELEASE" else 10_000
            more = many.format(first, first + 200), "SAVEPOINT a", many.format(first + 1000, first + 1200), f"{end} a"
            with psycopg.connect(here.conninfo) as connection:
                for statement in (DROP, *more, *pairs.two_of_one_key(), MAKE):
                    connection.execute(statement)
    pairs.settle()
    assert streamed(here)
