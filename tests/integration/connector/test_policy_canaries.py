"""Canaries in every column under the data policy, through random work, kills, changes of columns,
loads, errors and a change of the policy itself.
"""

from __future__ import annotations

import json
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.canary import NUMBER, TEXT, pages, raw, sings, spooled, told
from helpers.connector.canary_work import CHANGES, RULES, TABLES, CanaryWork, insert, rules
from helpers.reading import ask_registry
from helpers.source.streaming import force
from helpers.topic_changes import delete_topic


@pytest.fixture
def made(connector: Maker, tmp_path: Path) -> Installation:
    (tmp_path / "policy.key").write_bytes(b"k" * 40)
    made = connector(init=False, log={"level": "debug"}, prepared={"hold": 1, "pool": 1}, turn={"idle_progress": 0.5})
    made.configure(
        {
            "policy": {"key_file": str(tmp_path / "policy.key"), "columns": rules(RULES)},
            "source": {"tables": ["public.person", "public.letter", "public.remark"]},
            "spool": {"folder": str(tmp_path / "spool"), "memory": 0},
        }
    )
    made.sql(*filter(str.strip, TABLES.split(";")))
    return made


@pytest.mark.slow  # its short form is test_policy_leaves_no_canary_anywhere
def test_policy_of_random_work_with_kills_changes_and_loads(made: Installation, tmp_path: Path) -> None:
    force(made)
    work = CanaryWork(made, seed=7)
    work.some(30)
    done = made.twofold("init", ok=True)
    said: dict[str, str | bytes] = {"init": done.stdout + done.stderr}
    spools: list[bytes] = []
    changes = iter(CHANGES)
    for turn in range(3):
        run = made.start()
        work.some(15)
        made.sql(next(changes))
        work.some(15)
        work.large()
        committed, undone = work.prepare(), work.prepare()
        if turn == 1:
            made.twofold("backfill", "start", "public.person", ok=True)
        made.sql(next(changes))
        work.some(15)
        wait_until(lambda: spooled(run, tmp_path / "spool"), 90, "it spools")  # noqa: B023
        spools += spooled(run, tmp_path / "spool")
        said |= {f"{page} {turn}": text for page, text in pages(run).items()}
        run.kill9()
        work.end(committed, "COMMIT")
        work.end(undone, "ROLLBACK")
    run = made.start()
    work.some(10)
    wait_until(lambda: not made.status().backfilling, 120, "all tables are ready")
    _settled(made)
    said |= told(made) | pages(run)
    run.stop()
    said |= {each.log.name: each.said() for each in made.runs}
    topics = raw(made)
    rows = [s.value for table in ("person", "letter", "remark") for s in made.read(table) if s.value]
    assert {row["op"] for row in rows} >= {"c", "u", "d", "r", "t"}
    assert spools
    assert any("second_email" in row["after"] for row in rows if row["after"])
    assert not [name for name, data in topics if sings(data)]
    assert not [data[:200] for data in spools if sings(data)]
    assert not [name for name, text in (said | _schemas(made)).items() if sings(text)]


@pytest.mark.slow
def test_policy_that_hides_a_column_again_tells_what_stays_readable(made: Installation) -> None:
    """And its remedy removes it."""
    drops = [rule for rule in rules(RULES) if rule["action"] == "drop"]
    made.configure({"policy": {"columns": drops}})
    made.sql(f"INSERT INTO letter (id, email) VALUES (1, '{TEXT}')")
    assert made.init().returncode == 0
    run = made.start()
    wait_until(lambda: made.read("letter"))
    run.stop()
    made.configure({"policy": {"columns": [{"column": "public.letter.email", "action": "hash"}, *drops]}})
    run = made.start()
    made.sql("INSERT INTO letter (id, email) VALUES (2, 'x')")
    wait_until(lambda: len(made.read("letter")) == 2)
    run.stop()
    [warning] = [line for line in run.said().splitlines() if "earlier rows in the topic stay readable" in line]
    assert "public.letter: the data policy hides email (hash)" in warning
    assert any(sings(data) for _, data in raw(made))
    topic = made.table("letter")
    assert f"delete the topic {topic}, and have it recreated: twofold backfill start public.letter" in warning
    delete_topic(made.reader.bootstrap, topic)
    made.twofold("backfill", "start", "public.letter", ok=True)
    run = made.start()
    wait_until(lambda: {s.key["id"] for s in made.read("letter") if s.key} == {1, 2}, 120, "the rows come again")
    run.stop()
    assert not [name for name, data in raw(made) if sings(data)]


def test_policy_stays_with_a_hidden_column_that_was_renamed(made: Installation) -> None:
    """Also in a prepared transaction, whose rows wait in the spool."""
    made.sql(f"INSERT INTO letter (id, phone) VALUES (1, '{TEXT}')")
    assert made.init().returncode == 0
    run = made.start()
    wait_until(lambda: made.read("letter"))
    made.prepare("one", "ALTER TABLE letter RENAME phone TO tel", f"INSERT INTO letter (id, tel) VALUES (2, '{TEXT}')")
    wait_until(lambda: {r["state"] for r in made.records("prepared")} >= {"parked"})
    made.sql("COMMIT PREPARED 'one'", f"INSERT INTO letter (id, tel) VALUES (3, '{TEXT}')")
    wait_until(lambda: {s.key["id"] for s in made.read("letter") if s.key} == {1, 2, 3})
    run.stop()
    assert not sings(run.said())
    assert not [name for name, data in raw(made) if sings(data)]


def test_policy_hashes_no_key_of_rows_that_are_there(made: Installation) -> None:
    """Neither in a topic that has plain keys, nor in a load."""
    assert made.init().returncode == 0
    run = made.start()
    made.sql(f"INSERT INTO letter (id) VALUES ({NUMBER})")
    wait_until(lambda: made.read("letter"))
    run.stop()
    hashed_key = [{"column": "public.letter.id", "action": "hash"}, *rules(RULES)]
    made.configure({"policy": {"columns": hashed_key}, "source": {"backfill": False}})
    made.sql("INSERT INTO letter (id) VALUES (2)")
    refusal = made.refusal()
    assert "the message key of table public.letter is not what it was" in str(refusal)
    assert "twofold backfill start public.letter" in str(refusal)


def test_policy_of_a_hashed_key_refuses_a_load(made: Installation) -> None:
    hashed_key = [{"column": "public.letter.id", "action": "hash"}, *rules(RULES)]
    made.configure({"policy": {"columns": hashed_key}, "source": {"backfill": False}})
    assert made.init().returncode == 0
    run = made.start()
    made.sql(f"INSERT INTO letter (id) VALUES ({NUMBER})")
    wait_until(lambda: made.read("letter"))
    made.twofold("backfill", "start", "public.letter", ok=True)
    assert run.ended() == 5
    assert "its key id is hashed" in run.said()
    assert "twofold backfill cancel public.letter" in run.said()
    made.twofold("backfill", "cancel", "public.letter", ok=True)
    run = made.start()
    made.sql("INSERT INTO letter (id) VALUES (3)")
    wait_until(lambda: len(made.read("letter")) >= 2)
    run.stop()
    assert not [name for name, data in raw(made) if sings(data)]


def test_policy_shows_no_value_of_a_row_that_is_refused(made: Installation) -> None:
    """It is too large for Kafka; not even its key, which no rule hides."""
    assert made.init().returncode == 0
    run = made.start()
    made.sql(insert("letter", f"(SELECT {NUMBER} n) one", "repeat('x', 9000000)", "n"))
    assert run.ended() == 5
    assert "is too large" in run.said()
    assert not sings(run.said())
    assert not [name for name, data in raw(made) if sings(data)]


def _settled(made: Installation) -> None:
    """Until what is committed is in Kafka."""
    before = made.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
    made.sql("INSERT INTO remark (name) VALUES ('a mark')")
    wait_until(lambda: any(r["applied_lsn"] > before for r in made.records("commits")), 120)


def _schemas(made: Installation) -> dict[str, str]:
    """What the registry has of the prefix: a default is a value too."""

    def ask(path: str) -> Any:
        try:
            return ask_registry(made.reader.registry_url, path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise

    # By their names: the registry's list ends after so many subjects of other tests.
    names = [f"{topic}-{part}" for topic in made.reader.topics(made.prefix) for part in ("key", "value")]
    subjects = [name for name in names if ask(f"subjects/{name}/versions")]
    assert len(subjects) > 3
    return {f"{s} {v}": json.dumps(ask(f"subjects/{s}/versions/{v}")) for s in subjects for v in ask(f"subjects/{s}/versions")}  # fmt: skip
