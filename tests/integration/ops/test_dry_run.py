"""`twofold init --dry-run`: says what init then creates, and changes nothing."""

from __future__ import annotations

import re

import pytest

from fixtures.connector import Installation, Maker

TABLES = (
    "CREATE TABLE account (id int, branch text, note text, PRIMARY KEY (branch, id))",
    "CREATE TABLE journal (line text)",
    'CREATE TABLE "odd\nname" (id int PRIMARY KEY)',
    "INSERT INTO account SELECT i, 'north', 'x' FROM generate_series(1, 5000) i",
    "ANALYZE account",
)
MADE = (
    "SELECT (SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM pg_replication_slots WHERE database = "
    "current_database()) + (SELECT count(*) FROM pg_event_trigger) + (SELECT count(*) FROM pg_namespace WHERE nspname = 'twofold')"
)


def lines(here: Installation, head: str) -> list[str]:
    said = here.twofold("init", "--dry-run").stdout.splitlines()
    return [line.removeprefix(head).strip() for line in said if line.startswith(head)]


@pytest.mark.core
def test_the_dry_run_says_what_init_creates(connector: Maker) -> None:
    here = connector(init=False, source={"tables": ["public.*"]})
    here.sql(*TABLES)
    done = here.twofold("init", "--dry-run", ok=True)
    assert here.ask(MADE) == 0
    assert here.reader.topics(here.prefix) == []
    said = done.stdout.splitlines()
    assert any(re.match(r"table +public\.account  key id, branch, about 5,\d{3} rows, ", line) for line in said), said
    assert any(re.match(r"table +public\.journal  NO KEY, ", line) for line in said)
    assert "must" not in {line.split(" ")[0] for line in said}
    assert any(re.search(r"journal\"? has no primary key", line) for line in said), "doctor, of a table to come"
    assert said[-1] == "nothing was changed"
    assert all(each.isprintable() for each in done.stdout.replace("\n", "")), ascii(done.stdout)
    topics = {line.split()[1] for line in lines(here, "would create") if line.startswith("topic")}

    assert here.init().returncode == 0
    assert topics == set(here.reader.topics(here.prefix))
    assert lines(here, "would create") == []
    assert {line.split()[1] for line in lines(here, "is there") if line.startswith("topic")} == topics


def test_what_init_would_refuse_is_a_must(connector: Maker) -> None:
    here = connector(init=False, source={"tables": ["public.account", "public.acount"]})
    here.sql(*TABLES)
    done = here.twofold("init", "--dry-run")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "source.tables names public.acount, but database" in done.stdout
    assert done.stdout.count("must ") == 1, done.stdout
    assert here.ask(MADE) == 0

    here.configure({"source": {"tables": ["public.account"]}})
    here.configure({"policy": {"columns": [{"column": "public.account.nothing", "action": "redact"}]}})
    done = here.twofold("init", "--dry-run")
    assert done.returncode == 3
    assert "matches no published column" in done.stdout
    assert here.init().returncode == 5


def test_a_publication_that_nobody_makes_is_a_must(connector: Maker) -> None:
    here = connector(init=False, source={"tables": []})
    done = here.twofold("init", "--dry-run")
    assert done.returncode == 3
    assert re.search(r"must +postgresql: publication '\w+' does not exist in this database", done.stdout), done.stdout
    assert here.init().returncode == 3
