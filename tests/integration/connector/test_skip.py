"""A row that cannot be carried stops the connector; a person's command leaves out exactly that row,
and what lacks it says so.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.avro.schema_readers import Subject
from twofold.errors import MalformedMessage, Refused, TwofoldError
from twofold_reader import Reader

SIZE = 3 << 20
LARGE = f"(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {SIZE // 32}))"
"""Brokers judge what is left of it once it is compressed."""


def way_out(error: TwofoldError) -> list[str]:
    """The command that the refusal offers, as somebody pastes it."""
    found = re.search(r"twofold (skip .+?); then twofold run", str(error))
    assert found, error
    return shlex.split(found[1])


def skip(here: Installation, error: TwofoldError) -> str:
    command = way_out(error)
    said = here.twofold(*command, ok=True)
    assert "the next twofold run skips row" in said.stdout + said.stderr
    return command[command.index("--position") + 1]


def lacking(here: Installation) -> list[dict[str, Any]]:
    """What the last commit record says is missing."""
    return list(here.records("commits")[-1]["skipped"])


def said_to_lack(here: Installation) -> list[str]:
    """The positions of rows of `account` that status, doctor and a reader of whole transactions
    name.
    """
    topic = here.table("account")
    status = json.loads(here.twofold("status", "--json", ok=True).stdout)
    found = [position for each in status["lacking"] if each["topic"] == topic for position in each["lacks"]]
    examined = json.loads(here.twofold("doctor", "--json").stdout)
    named = [each["what"] for each in examined if each["check"] == "skipped"]
    assert named == [
        f"the topic of table public.account lacks the row at {at}, which a person had skipped" for at in found
    ]
    with Reader(here.prefix, {"bootstrap.servers": here.reader.bootstrap}, here.reader.registry_url) as reader:
        *_, last = reader.transactions("beginning", follow=False)
    assert last.skipped == ((topic,) if found else ())
    return found


def ids(here: Installation, table: str = "account") -> list[int]:
    return [s.value["after"]["id"] for s in here.read(table) if s.value["after"]["id"]]


def commands_left(here: Installation) -> list[Any]:
    newest = {s.key: s.value for s in here.reader.read([f"{here.prefix}.progress"]) if "/skip/" in str(s.key)}
    return [value for value in newest.values() if value is not None]


@pytest.mark.core
def test_a_row_too_large_is_left_out_and_its_transaction_is_carried(connector: Maker) -> None:
    here = connector(kafka={"partitions": 1})
    here.sql(f"INSERT INTO account VALUES (1, 1, 'a'), (2, 1, {LARGE}), (3, 1, 'c')")
    here.sql("INSERT INTO account VALUES (4, 1, 'd')")
    error = here.refusal()
    assert type(error) is Refused
    assert "is too large for Kafka" in error.what
    assert way_out(error) == way_out(here.refusal())  # it names the row, not the attempt
    position = skip(here, error)
    assert len(commands_left(here)) == 1
    killed = here.start("before_commit", ready=False)  # after the command, and before it is carried out
    assert killed.ended() == -9
    assert len(commands_left(here)) == 1
    here.forget_runs()
    with here.carrying():
        here.caught_up()
    assert ids(here) == [1, 3, 4]
    assert commands_left(here) == []
    (row,) = lacking(here)
    assert row["topic"] == here.table("account")
    assert row["key"] == b"\x04"  # 2 in Avro
    transactions = {s.value["after"]["id"]: s.value["transaction"] for s in here.read("account")}
    assert [transactions[each]["data_collection_order"] for each in (1, 3)] == [1, 3]
    audited = json.loads(here.twofold("audit", "--json", ok=True).stdout)
    assert [each["lacks"] for each in audited["topics"] if each["table"] == "public.account"] == [[position]]
    assert said_to_lack(here) == [position]
    with here.carrying():  # an update of another column does not bring the value
        here.sql("ALTER TABLE account ADD other int", "UPDATE account SET other = 1 WHERE id = 2")
        here.caught_up()
        assert lacking(here)
        here.sql("UPDATE account SET note = 'small' WHERE id = 2")
        here.caught_up()
    assert lacking(here) == []
    assert "a known difference" not in here.twofold("audit", ok=True).stdout
    assert said_to_lack(here) == []


def test_of_a_changed_key_the_old_one_is_deleted(connector: Maker) -> None:
    here = connector(kafka={"partitions": 1})
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'a')")
        here.caught_up()
    here.sql(f"UPDATE account SET id = 2, note = {LARGE} WHERE id = 1")
    skip(here, here.refusal())
    with here.carrying():
        here.caught_up()
        assert [row["key"] for row in lacking(here)] == [b"\x04"]
        here.sql("TRUNCATE account")
        here.caught_up()
        assert lacking(here) == []
    seen = [(s.value and s.value["op"], s.key and s.key["id"]) for s in here.read("account") if s.key != {"id": 0}]
    assert seen == [("c", 1), ("d", 1), (None, 1), ("t", None)]


def test_of_rows_at_one_position_without_a_key_the_large_one_is_left_out(connector: Maker) -> None:
    here = connector(kafka={"partitions": 1})
    here.sql(f"CREATE TABLE large AS SELECT {LARGE} AS line")
    here.sql("ALTER TABLE journal REPLICA IDENTITY FULL")
    here.sql("INSERT INTO journal SELECT 'a' UNION ALL SELECT line FROM large UNION ALL SELECT 'c'")
    skip(here, here.refusal())
    with here.carrying():
        here.caught_up()
        assert [s.value["after"]["line"] for s in here.read("journal")] == ["a", "c"]
        assert [row["key"] for row in lacking(here)] == [None]
        here.sql("INSERT INTO journal VALUES ('d')")
        here.caught_up()
        assert lacking(here)
        here.sql("TRUNCATE journal")
        here.caught_up()
        assert lacking(here) == []


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_a_row_of_a_prepared_transaction(connector: Maker, streaming: str) -> None:
    here = connector(kafka={"partitions": 1}, source={"streaming": streaming}, prepared={"open_within": 0})
    rows = f"INSERT INTO account VALUES (1, 1, 'a'), (2, 1, {LARGE}), (3, 1, 'c')"
    here.prepare("g1", rows, "INSERT INTO account SELECT n, 1, repeat('x', 2000) FROM generate_series(10, 99) n")
    position = skip(here, here.refusal())
    with here.carrying():
        here.caught_up()
        assert ids(here) == []
        assert lacking(here) == []  # it is in doubt
        here.sql("COMMIT PREPARED 'g1'")
        here.caught_up()
    assert ids(here) == [1, 3, *range(10, 100)]
    (row,) = lacking(here)
    assert f"{row['lsn'] >> 32:X}/{row['lsn'] & 0xFFFFFFFF:X}" == position


def test_a_command_for_a_row_that_never_comes(connector: Maker) -> None:
    here = connector(kafka={"partitions": 1}, prepared={"open_within": 0})
    here.prepare("g1", f"INSERT INTO account VALUES (1, 1, {LARGE})")
    position = skip(here, here.refusal())
    run = here.start()
    here.sql("ROLLBACK PREPARED 'g1'")
    here.caught_up()
    assert len(commands_left(here)) == 1

    def is_past() -> bool:
        here.sql("CHECKPOINT")
        here.caught_up()
        return bool(here.ask(f"SELECT '{here.slot('restart_lsn')}'::pg_lsn > '{position}'::pg_lsn"))

    wait_until(is_past, what="the slot needs nothing of the transaction")
    run.stop()
    assert "a person has commanded to skip row" in run.said()
    assert "is dropped" not in run.said()
    again = here.start()
    here.caught_up()
    again.stop()
    assert "is dropped: such a row did not come" in again.said()
    assert commands_left(here) == []
    assert lacking(here) == []


def test_what_a_command_must_name(connector: Maker) -> None:
    here = connector()
    for words, said in (
        (("public.account", "--position", "12", "--row", "00000000"), "not a position"),
        (("public.acount", "--position", "0/1", "--row", "00000000"), "did you mean"),
        (("public.account", "--position", "0/1", "--row", "A/B"), "paste the command"),
    ):
        refused = here.twofold("skip", *words)
        assert refused.returncode == 2
        assert said in refused.stderr
    withdrawn = "public.account", "--position", "0/1", "--row", "00000000"
    here.twofold("skip", *withdrawn, ok=True)
    assert len(commands_left(here)) == 1
    here.twofold("skip", *withdrawn, "--withdraw", ok=True)
    assert commands_left(here) == []


MALFORM = "UPDATE pg_attribute SET atttypmod = atttypmod + 1 WHERE attrelid = 'm'::regclass AND attname = 'amount'"
"""Stored numbers have two decimals then, and their type says three."""


def test_a_malformed_row(connector: Maker) -> None:
    here = connector(
        init=False, source={"tables": ["public.m", "public.account"], "backfill": False}, kafka={"partitions": 1}
    )
    here.sql("CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)")
    here.sql("CREATE TABLE m (id int PRIMARY KEY, amount numeric(10, 2), note text)", "INSERT INTO m VALUES (1, 1.23)")
    here.sql(MALFORM)
    assert here.init().returncode == 0
    here.sql("INSERT INTO m VALUES (2, 2)", "UPDATE m SET note = 'x' WHERE id = 1", "INSERT INTO m VALUES (3, 3)")
    error = here.refusal()
    assert type(error) is MalformedMessage
    assert "column amount of public.m" in str(error)
    skip(here, error)
    with here.carrying():
        here.caught_up()
        assert ids(here, "m") == [2, 3]
        assert [row["key"] for row in lacking(here)] == [b"\x02"]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_row_whose_schema_the_registry_refuses(connector: Maker, *, prepared: bool) -> None:
    # A rewritten table would be loaded again, sooner or later, with the row that is skipped here.
    here = connector(kafka={"partitions": 1}, source={"reload_up_to": 0})
    with here.carrying():
        here.sql("INSERT INTO account VALUES (1, 1, 'a')")
        here.caught_up()
    Subject(here.reader.registry_url, here.table("account")).allow("FULL")
    other_shape = "ALTER TABLE account ALTER version TYPE bigint", "INSERT INTO account VALUES (2, 1, 'b')"
    if prepared:
        here.prepare("g1", *other_shape)
        here.sql("COMMIT PREPARED 'g1'")
    else:
        here.sql(*other_shape)
    here.sql("ALTER TABLE account ALTER version TYPE int", "INSERT INTO account VALUES (3, 1, 'c')")
    error = here.refusal()
    assert "the registry refuses the new schema" in str(error)
    assert f"{here.reader.registry_url}/config/{here.table('account')}-value); undoing" in str(error)
    skip(here, error)
    with here.carrying():
        here.caught_up()
    assert ids(here) == [1, 3]
    assert [row["key"] for row in lacking(here)] == [b"\x04"]
