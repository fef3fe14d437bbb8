"""The rows that were there before `init`, for people and for consumers: loaded once, in chunks,
while the stream goes on.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException

from fixtures.backfill import initialised, ready
from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.ledger import SCHEMA
from helpers.connector.topics import Seen
from helpers.topic_changes import alter_topic, delete_records

pytestmark = pytest.mark.core


def folded(rows: list[Seen]) -> dict[Any, Any]:
    """What a consumer has that folds by key, in the order of each partition."""
    found: dict[Any, Any] = {}
    for seen in rows:
        if seen.value is None:
            continue
        if seen.value["op"] == "t":
            found = {key: row for key, row in found.items() if row[0] != seen.partition}
            continue
        key = tuple(sorted(seen.key.items()))
        if seen.value["op"] == "d":
            found.pop(key, None)
        else:
            row = dict(seen.value["after"])
            for name in seen.value["unchanged"]:
                row[name] = found[key][1][name]
            found[key] = seen.partition, row
    return {key: row for key, (_, row) in found.items()}


@pytest.fixture
def before_init(connector: Maker) -> Installation:
    """A database with its tables, not yet initialised; two chunks of a hundred."""
    here = connector(init=False, backfill={"chunk_rows": 100})
    here.sql(SCHEMA)
    return here


def test_rows_of_before_are_loaded_once_in_chunks(before_init: Installation) -> None:
    here = before_init
    here.sql("INSERT INTO account SELECT n, 1, 'before' FROM generate_series(1, 250) n", "TRUNCATE ledger")
    here.initialise()
    assert here.status().backfilling == (here.table("account"),)
    assert here.status().two_phase == "pending"
    with here.carrying():
        ready(here)
        assert here.status().two_phase == "enabled"
        here.sql("UPDATE account SET version = 2 WHERE id = 7")
        here.caught_up()
    rows = here.read("account")
    loaded = [s for s in rows if s.value["op"] == "r"]
    assert sorted(s.value["after"]["id"] for s in loaded) == list(range(1, 251))
    places = {tuple(s.value["source"][name] for name in ("snapshot", "txId", "commit_lsn")) for s in loaded}
    assert places == {("true", None, None)}
    commits = here.records("commits")
    chunks = [c for c in commits if c["kind"] == "backfill"]
    assert [c["rows"] for c in chunks] == [100, 100, 50]
    assert [c["backfilling"] for c in chunks] == [[here.table("account")], [here.table("account")], []]
    assert [c["sequence"] for c in commits] == list(range(1, len(commits) + 1))
    assert folded(rows)[("id", 7),]["version"] == 2


def test_a_load_that_is_asked_for_counts_before_it_begins(connector: Maker) -> None:
    here = connector()
    for command, state in (("start", "requested"), ("pause", "requested"), ("cancel", "ready")):
        here.twofold("backfill", command, "public.account", ok=True)
        loading = (here.table("account"),) if state == "requested" else ()
        assert here.status().backfilling == loading, command
        found = json.loads(here.twofold("backfill", "status", "--json", ok=True).stdout)
        assert [each["state"] for each in found] == ["requested"] * len(loading), command
    here.twofold("backfill", "start", "public.account", ok=True)
    with here.carrying():
        ready(here)
    assert [commit["kind"] for commit in here.records("commits")][:1] == ["reload"]
    assert here.twofold("backfill", "status", ok=True).stdout.strip() == "all tables are ready"


def test_empty_tables_are_ready_at_once(connector: Maker) -> None:
    here = connector()
    assert here.status().backfilling == ()
    assert here.status().two_phase == "enabled"


def test_a_table_that_joins_after_an_interrupted_init_while_a_transaction_holds_its_rows(connector: Maker) -> None:
    """The rows are not streamed, and the table is empty to everybody else."""
    here = connector(init=False, source={"tables": []})
    here.sql(SCHEMA, "CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {here.prefix} FOR TABLE account")
    assert here.init(failpoint="before_commit:2").returncode == -signal.SIGKILL
    with psycopg.connect(here.conninfo) as open_already:
        open_already.execute("INSERT INTO t VALUES (1)")
        here.sql(f"ALTER PUBLICATION {here.prefix} ADD TABLE t")
        here.initialise()
    with here.carrying():
        ready(here)
        here.caught_up()
    assert [seen.key["id"] for seen in here.read("t")] == [1]


UNSENT = {
    "partition": (
        "CREATE TABLE more (id int PRIMARY KEY, v int)",
        "INSERT INTO more VALUES (150, 1)",
        "ALTER TABLE t ATTACH PARTITION more FOR VALUES FROM (100) TO (200)",
    ),
    "unpublished": (
        "ALTER PUBLICATION {0} DROP TABLE t",
        "INSERT INTO t VALUES (1, 1)",
        "ALTER PUBLICATION {0} ADD TABLE t",
    ),
}


@pytest.mark.parametrize("what", UNSENT)
def test_what_was_not_sent_between_init_and_the_first_run(connector: Maker, what: str) -> None:
    """The table was empty, so `init` took it for loaded."""
    here = connector(init=False, source={"tables": ["public.account", "public.t"], "publish_via_root": True})
    here.sql(
        SCHEMA,
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (100)",
    )
    here.initialise()
    here.sql(*(statement.format(here.prefix) for statement in UNSENT[what]))
    with here.carrying():
        wait_until(lambda: "reload" in {commit["kind"] for commit in here.records("commits")}, 90, "it is reloaded")
        ready(here)
        here.caught_up()
    rows = [row for _, row in sorted(folded(here.read("t")).items())]
    assert rows == here.ask("SELECT jsonb_agg(to_jsonb(t) ORDER BY id) FROM t")
    assert here.status().stale == ()


def test_tables_whose_pins_retention_has_deleted_start_over(before_init: Installation) -> None:
    """For a time somebody has the progress topic cleaned by deletion. The tables would be taken for
    new ones, and rows without a key would be published a second time.
    """
    here = before_init
    here.configure({"source": {"tables": ["public.account", "public.log"]}})
    here.sql("CREATE TABLE log (n int)", "INSERT INTO log VALUES (1)")
    with initialised(here):
        here.caught_up()
    progress = f"{here.prefix}.progress"
    *_, last = (s for s in here.reader.read([progress]) if s.key == here.prefix)
    alter_topic(here.reader.bootstrap, progress, "cleanup.policy", "delete")
    wait_until(lambda: is_deletable(here, progress, last.offset), 60, "the broker has heard that it may delete")
    alter_topic(here.reader.bootstrap, progress, "cleanup.policy", "compact")
    with here.carrying():
        here.sql("INSERT INTO log VALUES (2)")
        here.caught_up()
        ready(here)
    ops = [s.value["op"] for s in here.read("log")]
    assert ops[:2] == ["r", "t"], "what comes behind the truncate is the whole table"
    assert sorted(s.value["after"]["n"] for s in here.read("log")[2:]) == [1, 2]
    assert {s.value["op"] for s in here.read("account")} >= {"t", "r"}
    begun = len(ops)
    with here.carrying():
        here.sql("INSERT INTO log VALUES (3)")
        here.caught_up()
    assert [s.value["op"] for s in here.read("log")][begun:] == ["c"], "their pins are there now"


def is_deletable(here: Installation, topic: str, before: int) -> bool:
    try:
        delete_records(here.reader.bootstrap, topic, before)
    except KafkaException:  # a topic that is only compacted
        return False
    return True
