"""The data policy of a whole connector: a canary in every column under it is found nowhere that the
connector writes.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.canary import NUMBER, pages, raw, sings, spooled
from helpers.connector.canary import TEXT as CANARY

KEY = b"a key of hashes that is long enough"
RULES = [
    ("public.*.kept_email", "keep"),
    ("public.*.*email", "hash"),
    ("public.*.phone", "drop"),
    ("public.*.salary", "null"),
    ("public.*.note", "redact"),
    ("public.*.ssn", "hash"),
]
SCHEMA = """
CREATE TABLE person (id bigint PRIMARY KEY, email text, phone text, salary bigint, note varchar(2000), ssn bigint, name text);
ALTER TABLE person REPLICA IDENTITY FULL;
CREATE TABLE letter (id bigint PRIMARY KEY, email text);
ALTER TABLE letter ALTER COLUMN email SET STORAGE EXTERNAL
"""


def row(first: int, last: int | None = None) -> str:
    """An INSERT with canaries in the columns under the policy."""
    return (
        f"INSERT INTO person SELECT i, '{CANARY}', '{CANARY}', {NUMBER}, '{CANARY}', {NUMBER}, 'name ' || i"
        f" FROM generate_series({first}, {last or first}) i"
    )


def hashed(value: Any) -> str:
    return hmac.new(KEY, str(value).encode(), hashlib.sha256).hexdigest()


@pytest.fixture
def made(connector: Maker, tmp_path: Path) -> Installation:
    (tmp_path / "policy.key").write_bytes(KEY + b"\n")
    policy = {
        "key_file": str(tmp_path / "policy.key"),
        "columns": [{"column": column, "action": action} for column, action in RULES],
    }
    tables = ["public.person", "public.letter"]
    options: dict[str, dict[str, Any]] = {
        "source": {"tables": tables},
        "spool": {"folder": str(tmp_path / "spool"), "memory": 0},
    }
    made = connector(
        init=False, policy=policy, log={"level": "debug"}, prepared={"hold": 1, "pool": 1}, turn={"idle_progress": 0.5}
    )
    made.configure(options)
    made.sql(*filter(str.strip, SCHEMA.split(";")))
    return made


def test_policy_leaves_no_canary_anywhere(made: Installation, tmp_path: Path) -> None:
    made.sql(row(1, 100), f"INSERT INTO letter VALUES (1, '{CANARY}')")  # loaded
    done = made.twofold("init", ok=True)
    said: list[str | bytes] = [done.stdout + done.stderr]
    run = made.start()
    wait_until(lambda: len(made.read("person")) >= 100)
    made.sql(
        row(101, 110),
        "UPDATE person SET name = 'another' WHERE id <= 10",
        "UPDATE person SET id = id + 1000 WHERE id > 105",
        "DELETE FROM person WHERE id = 20",
        f"INSERT INTO letter VALUES (2, repeat('{CANARY}', 1000))",
        "UPDATE letter SET id = 3 WHERE id = 2",
        "UPDATE letter SET email = email || '' WHERE id = 1",
        f"ALTER TABLE person ADD COLUMN second_email text DEFAULT '{CANARY}', ADD COLUMN kept_email text DEFAULT 'kept'",
        row(200),
    )
    made.prepare("one", row(300))
    made.prepare("two", row(400))
    wait_until(lambda: {r["state"] for r in made.records("prepared")} >= {"parked"})
    waiting = spooled(run, tmp_path / "spool")
    assert waiting, "nothing waits in the spool"
    said += [*pages(run).values(), *waiting]
    run.kill9()
    second = made.start()
    made.sql("COMMIT PREPARED 'one'", "ROLLBACK PREPARED 'two'")
    wait_until(
        lambda: any(s.value and s.value["after"] and s.value["after"]["id"] == 300 for s in made.read("person")), 60
    )
    said += pages(second).values()
    second.stop()
    said += [run.said(), second.said()]
    topics = raw(made)
    assert len(topics) > 150
    assert not [name for name, data in topics if sings(data)]
    assert not [text[:200] for text in said if sings(text)]
    rows = [s.value["after"] for s in made.read("person") if s.value and s.value["after"]]
    for found in rows:
        assert "phone" not in found
        assert (found["salary"], found["note"]) == (None, "[redacted]")
        assert (found["email"], found["ssn"]) == (hashed(CANARY), hashed(NUMBER))
    # By the stream, and by the reload: earlier rows were sent without the new columns' defaults.
    assert {(found["second_email"], found["kept_email"]) for found in rows if found["id"] == 200} == {
        (hashed(CANARY), "kept")
    }
    [letter] = [
        s.value["after"]
        for s in made.read("letter")
        if s.value and s.value["after"] and s.value["after"]["id"] == 1 and s.value["op"] == "u"
    ]
    assert letter["email"] == hashed(CANARY)  # values that are equal are so in every table


def test_policy_is_refused_where_it_cannot_hold(made: Installation) -> None:
    for column, action, said in (
        ("public.person.id", "null", "can only be hashed"),
        ("public.person.id", "hash", "cannot be loaded in the order of a hash"),
        ("public.person.salary", "redact", "no text to redact"),
    ):
        made.configure({"policy": {"columns": [{"column": column, "action": action}]}})
        done = made.init()
        assert done.returncode == 5, done.stderr
        assert said in done.stderr


def hash_the_key(made: Installation) -> None:
    """Initialise, with the message key of `letter` hashed."""
    made.configure(
        {"source": {"backfill": False}, "policy": {"columns": [{"column": "public.letter.*", "action": "hash"}]}}
    )
    made.twofold("init", ok=True)


def refusal_of_another_key(made: Installation, tmp_path: Path) -> str:
    """A row was published by the former key, and its delete comes by another one."""
    hash_the_key(made)
    with made.carrying():
        made.sql("INSERT INTO letter VALUES (1, 'x')")
        wait_until(lambda: made.read("letter"))
    (tmp_path / "policy.key").write_bytes(KEY[::-1])
    made.sql("DELETE FROM letter")
    return str(made.refusal())


def test_policy_refuses_another_key_of_hashes_where_a_message_key_has_the_former_one(
    made: Installation, tmp_path: Path
) -> None:
    refusal = refusal_of_another_key(made, tmp_path)
    assert "the message key of table public.letter is not what it was" in refusal
    assert "policy.key_file" in refusal
    (tmp_path / "policy.key").write_bytes(KEY)
    with made.carrying():
        wait_until(lambda: len(made.read("letter")) == 3, 90, "insert, delete, tombstone")
    assert {s.key["id"] for s in made.read("letter")} == {hashed(1)}


def test_policy_starts_a_topic_over_whose_former_key_of_hashes_is_lost(made: Installation, tmp_path: Path) -> None:
    """As the refusal says: its load is refused, and then cancelled."""
    refusal = refusal_of_another_key(made, tmp_path)
    for command in ("start", "cancel"):
        assert f"twofold backfill {command} public.letter" in refusal
        made.twofold("backfill", command, "public.letter", ok=True)
        if command == "start":
            assert "table public.letter cannot be loaded: its key id is hashed" in str(made.refusal())
    with made.carrying():
        made.sql("INSERT INTO letter VALUES (2, 'y')")
        wait_until(lambda: [s.value["op"] for s in made.read("letter") if s.value].count("c") == 2)
    assert "t" in {s.value["op"] for s in made.read("letter") if s.value}


def test_policy_hashes_a_key_of_a_table_that_is_not_loaded(made: Installation) -> None:
    hash_the_key(made)
    run = made.start()
    made.sql(f"INSERT INTO letter VALUES ({NUMBER}, 'x')", f"UPDATE letter SET email = 'y' WHERE id = {NUMBER}")
    wait_until(lambda: len(made.read("letter")) == 2)
    assert {s.key["id"] for s in made.read("letter")} == {hashed(NUMBER)}
    assert not [name for name, data in raw(made) if sings(data)]
    run.stop()
