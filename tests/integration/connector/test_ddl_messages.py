"""A connector that is told of DDL in the stream: nothing wrong is published first."""

from __future__ import annotations

from pathlib import Path

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.canary import TEXT, raw, sings
from twofold.config import load
from twofold.ops.doctor import examine
from twofold.runner.initialisation import initialise
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
    initialise(load(here.file), print)
    columns = ("DROP contact", "RENAME email TO contact", "ADD email text")
    with here.carrying():
        wait_until(lambda: len(here.read("pair")) == 2, 60)
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
        wait_until(lambda: rows(here) == {1: 7, 2: 2}, 60)
        here.sql("COMMIT PREPARED 'one'")
        wait_until(lambda: here.read("person"), 60)
    assert not [s for s in here.read("pair") if s.key == {"id": 1} and (s.value is None or s.value["op"] == "d")]
    [person] = [s.value["after"] for s in here.read("person") if s.value]
    assert len(person["contact"]) == 64
    assert not [name for name, data in raw(here) if sings(data)]
    assert here.records("messages") == []
    assert not [each for each in examine(load(here.file)) if each.check == "ddl_messages"]
    here.sql("ALTER EVENT TRIGGER twofold_ddl DISABLE")
    assert [each for each in examine(load(here.file)) if each.check == "ddl_messages"]
    removed = provisioning.drop(here.conninfo, load(here.file).slot, [here.prefix]).removed
    assert "event triggers and schema twofold" in removed


def rows(here: Installation) -> dict[int, int]:
    """The last value of each key of `pair`."""
    found = (s.value["after"] for s in here.read("pair") if s.value)
    return {row["id"]: row["v"] for row in found if row}
