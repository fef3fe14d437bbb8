"""The data policy of a table that gets another name, and of a rule that is gone: a hidden column
stays hidden, or the run is refused. `doctor` says so before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.canary import TEXT, raw, sings
from twofold.doctor import Finding, Severity, examine

RULES = [("public.person.email", "hash"), ("public.person.phone", "drop")]
NEW_RULES = [("public.people.email", "hash"), ("public.people.phone", "drop")]


def rules(made: Installation, *columns: tuple[str, str]) -> None:
    made.configure({"policy": {"columns": [{"column": column, "action": action} for column, action in columns]}})


def person(first: int, last: int | None = None, *, table: str = "person") -> str:
    return f"INSERT INTO {table} SELECT i, '{TEXT}', '{TEXT}' FROM generate_series({first}, {last or first}) i"


@pytest.fixture
def made(connector: Maker, tmp_path: Path) -> Installation:
    """A connector that carries a table under a policy, and has carried its first rows."""
    (tmp_path / "policy.key").write_bytes(b"k" * 40)
    made = connector(
        init=False,
        policy={"key_file": str(tmp_path / "policy.key")},
        source={"tables": ["public.person", "public.other"]},
        backfill={"chunk_rows": 20, "rows_per_second": 0},
    )
    rules(made, *RULES)
    made.sql(
        "CREATE TABLE person (id bigint PRIMARY KEY, email text, phone text)",
        "CREATE TABLE other (id bigint PRIMARY KEY, email text, phone text)",
        person(1, 40),
    )
    made.twofold("init", ok=True)
    return made


def findings(made: Installation) -> list[Finding]:
    return [each for each in examine(made.config) if each.check.startswith("policy")]


def ids(made: Installation, table: str) -> set[int]:
    return {seen.key["id"] for seen in made.read(table) if seen.key}


def assert_silent(made: Installation) -> None:
    assert not [name for name, data in raw(made) if sings(data)]
    assert not [run.log.name for run in made.runs if sings(run.said())]


def test_policy_stays_with_a_table_that_is_renamed_while_it_is_carried(made: Installation) -> None:
    """Its rules are those of its former name, until rules of the new one are there."""
    run = made.start()
    wait_until(lambda: len(ids(made, "person")) == 40)
    made.sql("ALTER TABLE person RENAME TO people", person(41, table="people"))
    wait_until(lambda: ids(made, "people") >= set(range(1, 42)))
    run.stop()
    assert not [each for each in findings(made) if each.severity is Severity.MUST]
    rules(made, *NEW_RULES)
    run = made.start()
    made.sql(person(42, table="people"))
    wait_until(lambda: 42 in ids(made, "people"))
    run.stop()
    assert_silent(made)


def test_policy_stays_with_a_table_that_was_renamed_before_its_load_was_over(made: Installation) -> None:
    """Its load finds no table of the old name, and the next run only one of the new name."""
    made.configure({"backfill": {"rows_per_second": 10}})
    run = made.start()
    wait_until(lambda: ids(made, "person"))
    made.sql("ALTER TABLE person RENAME TO people")
    wait_until(lambda: not loading(made), 90, "the load has found no such table")
    run.stop()
    rules(made, ("public.other.email", "hash"))
    assert "has hidden email, phone of public.people so far" in str(made.refusal())
    rules(made, *RULES)
    made.configure({"backfill": {"rows_per_second": 0}})
    run = made.start()
    wait_until(lambda: ids(made, "people") == set(range(1, 41)))
    run.stop()
    assert_silent(made)


def loading(made: Installation) -> bool:
    return "public.person" in made.twofold("backfill", "status", ok=True).stdout


def test_policy_refuses_rows_of_the_old_name_whose_rule_was_given_to_the_new_one(made: Installation) -> None:
    run = made.start()
    wait_until(lambda: len(ids(made, "person")) == 40)
    run.stop()
    made.sql(person(41), "ALTER TABLE person RENAME TO people", person(42, table="people"))
    rules(made, *NEW_RULES)
    run = made.start(ready=False)
    assert run.ended() == 5
    assert "the data policy has hidden email, phone of public.person so far, and has no rule for it any more" in run.said()  # fmt: skip
    rules(made, *RULES, *NEW_RULES)
    run = made.start()
    wait_until(lambda: 41 in ids(made, "person") and ids(made, "people") >= set(range(1, 43)))
    run.stop()
    assert_silent(made)


def test_policy_shows_a_column_again_by_an_explicit_keep_only(made: Installation) -> None:
    run = made.start()
    wait_until(lambda: len(ids(made, "person")) == 40)
    run.stop()
    rules(made, RULES[0])
    (found,) = findings(made)
    assert (found.severity, "has hidden phone of public.person so far" in found.what) == (Severity.MUST, True)
    rules(made, RULES[0], ("public.person.phone", "keep"))
    assert findings(made) == []
    run = made.start()
    made.sql("INSERT INTO person VALUES (41, 'x', 'shown')")
    wait_until(lambda: 41 in ids(made, "person"))
    run.stop()
    # The load, which the first run began, may read the row too.
    rows = [seen.value["after"] for seen in made.read("person") if seen.key and seen.key["id"] == 41]
    assert {row["phone"] for row in rows} == {"shown"}


def test_policy_that_is_changed_is_told_by_doctor_before_a_run(made: Installation) -> None:
    run = made.start()
    wait_until(lambda: len(ids(made, "person")) == 40)
    made.sql("INSERT INTO other VALUES (1, 'x', 'y')")
    wait_until(lambda: ids(made, "other"))
    run.stop()
    assert findings(made) == []
    rules(made, *RULES, ("public.other.email", "hash"), ("public.gone.email", "hash"), ("public.*.later", "drop"))
    found = {each.check: each for each in findings(made)}
    assert {check: each.severity for check, each in found.items()} == {
        "policy_readable": Severity.SHOULD,
        "policy_rule": Severity.SHOULD,
    }
    assert found["policy_readable"].what == (
        "public.other: the data policy hides email (hash) from here on, and earlier rows in the topic stay readable"
    )
    assert "twofold backfill start public.other" in found["policy_readable"].remedy[0]
    assert "public.gone.email (hash) matches no published column" in found["policy_rule"].what
    rules(made, ("public.person.id", "null"), *RULES)
    (found_must,) = findings(made)
    assert "can only be hashed" in found_must.what
    made.configure({"policy": {"key_file": str(made.folder / "none.key")}})
    assert {each.check for each in findings(made)} == {"policy", "policy_key"}
