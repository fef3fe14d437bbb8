"""PostgreSQL's comments become the `doc` of the row's schema, and a new one stops nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.backfill import ready
from fixtures.connector import Installation, Maker
from helpers.avro.schema_readers import Subject
from helpers.connector.comments import HARD, comment_on
from helpers.connector.topics import gid_of

SCHEMA = """
CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text, secret text);
CREATE TABLE plain (id int PRIMARY KEY, note text);
COMMENT ON COLUMN account.id IS 'its number';
COMMENT ON COLUMN account.secret IS 'the password in plain text'
"""


@pytest.fixture
def here(connector: Maker) -> Installation:
    """It leaves `secret` out, and has loaded a row of each table."""
    policy = {"columns": [{"column": "public.*.secret", "action": "drop"}]}
    made = connector(init=False, source={"tables": ["public.account", "public.plain"]}, policy=policy)
    made.sql(
        *filter(str.strip, SCHEMA.split(";")),
        comment_on("COLUMN account.note", HARD),
        "INSERT INTO plain VALUES (1, 'one')",
    )
    made.sql(comment_on("TABLE account", "x" * 1001), "INSERT INTO account VALUES (1, 1, 'one')")
    assert made.init().returncode == 0
    with made.carrying():
        ready(made)
    for table in ("account", "plain"):
        subject_of(made, table).allow("FULL_TRANSITIVE")
    return made


def subject_of(here: Installation, table: str = "account") -> Subject:
    return Subject(here.reader.registry_url, here.table(table))


def docs(here: Installation, table: str = "account") -> list[dict[str, str | None]]:
    """What each version says of the table and of its columns."""
    subject = subject_of(here, table)
    rows: list[dict[str, Any]] = [
        json.loads(subject.schema(version))["fields"][0]["type"][1] for version in subject.versions()
    ]
    return [{"": row["doc"], **{field["name"]: field.get("doc") for field in row["fields"]}} for row in rows]


@pytest.mark.core
def test_comments_are_in_the_schema_as_they_are(here: Installation) -> None:
    table = "x" * 999 + "…"
    assert docs(here) == [{"": table, "id": "its number", "version": None, "note": HARD}]
    assert docs(here, "plain") == [{"": "A row of public.plain.", "id": None, "note": None}]
    assert "password" not in subject_of(here).schema(1)


@pytest.mark.core
def test_comment_comes_with_the_next_start_or_change(here: Installation) -> None:
    with here.carrying():
        here.caught_up()
        here.sql(
            comment_on("COLUMN account.note", "while it runs"),
            "ANALYZE account",
            "INSERT INTO account VALUES (3, 1, 'three')",
        )  # it is described again
        here.caught_up()
        assert [version["note"] for version in docs(here)] == [HARD]
        here.sql("ALTER TABLE account ADD more int", "INSERT INTO account VALUES (4, 1, 'four', NULL, 4)")
        here.caught_up()
        assert [version["note"] for version in docs(here)] == [HARD, "while it runs"]
    here.sql("COMMENT ON TABLE account IS 'while it is down'", "INSERT INTO account VALUES (5, 1, 'five')")
    with here.carrying():
        here.caught_up()
    assert [version[""] for version in docs(here)[1:]] == ["x" * 999 + "…", "while it is down"]
    with here.carrying():
        here.caught_up()
    assert len(docs(here)) == 3, "one that is as it was registers nothing"
    seen = here.read("account")
    assert "t" not in {s.value["op"] for s in seen if s.value}, "nothing was loaded again"
    assert {s.key["id"] for s in seen if s.key} == {0, 1, 3, 4, 5}


def test_comment_that_is_new_at_a_start_leaves_a_prepared_transaction_open(here: Installation) -> None:
    with here.carrying():
        here.caught_up()
        here.prepare("across", "INSERT INTO account VALUES (10, 1, 'ten')")
        here.caught_up()
    here.sql(comment_on("COLUMN account.version", "counted from one"))
    here.prepare("behind", "INSERT INTO account VALUES (11, 1, 'eleven')")
    with here.carrying():
        tail = here.reader.tail([f"{here.prefix}.prepared"])
        here.at_end(tail.close)
        assert tail.wait_for(lambda s: bool(s.value and (s.value["gid"], s.value["state"]) == ("behind", "open")))
        here.sql("COMMIT PREPARED 'across'", "ROLLBACK PREPARED 'behind'")
        here.caught_up()
    states = {(record["gid"], record["state"]) for record in here.records("prepared") if record}
    assert not [each for each in states if "park" in each[1]], states
    rows = {s.key["id"]: gid_of(s) for s in here.read("account") if s.key}
    assert (rows.get(10), 11 in rows) == ("across", False)
    assert docs(here)[-1]["version"] == "counted from one"
