"""What happens to tables and their topics while the connector runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fixtures.backfill import ready
from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.ledger import SCHEMA
from helpers.connector.topics import UNCOMMITTED, gid_of
from helpers.topic_changes import delete_topic


def ledger_has(here: Installation, gid: str, state: str) -> bool:
    return any((entry["gid"], entry["state"]) == (gid, state) for entry in here.records("prepared"))


def covered(here: Installation) -> Callable[[str], int]:
    """How many records of a table the commit records speak of."""
    ranges = [r for record in here.records("commits") for r in record["ranges"]]
    return lambda table: sum(r["count"] for r in ranges if r["topic"] == here.table(table))


@pytest.mark.core
def test_a_truncate_reaches_every_partition_in_its_place(connector: Maker) -> None:
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO transfer SELECT n::text, n, 1 FROM generate_series(1, 20) n", "TRUNCATE transfer")
        here.prepare("kept", "INSERT INTO transfer VALUES ('a', 1, 1)", "TRUNCATE transfer")
        here.sql("COMMIT PREPARED 'kept'")
        here.prepare("gone", "TRUNCATE transfer")
        here.sql("ROLLBACK PREPARED 'gone'", "INSERT INTO transfer VALUES ('b', 1, 1)")
        here.caught_up()
        topics = here.everything()
    rows = [s for s in topics.rows if s.topic == here.table("transfer")]
    assert len(rows) == covered(here)("transfer") == 20 + 3 + 1 + 3 + 1
    for partition in range(3):
        ops = [s.value["op"] for s in rows if s.partition == partition]
        assert ops.count("t") == 2
    assert {gid_of(s) for s in rows} == {None, "kept"}


@pytest.mark.core
def test_a_table_that_joins_the_publication_is_carried(connector: Maker) -> None:
    """Its topic is made with its first committed row: a ROLLBACK PREPARED leaves none."""
    here = connector(source={"backfill": False})
    here.start()  # recovered: it does not know the tables
    here.sql(
        "CREATE TABLE late (id int PRIMARY KEY)",
        "CREATE TABLE never (id int PRIMARY KEY)",
        f"ALTER PUBLICATION {here.prefix} ADD TABLE late, never",
    )
    here.prepare("g1", "INSERT INTO late VALUES (1)")
    here.prepare("g2", "INSERT INTO never VALUES (1)")
    wait_until(partial(ledger_has, here, "g2", "parked"))
    assert not {here.table("late"), here.table("never")} & set(here.reader.topics(here.prefix))
    here.sql("ROLLBACK PREPARED 'g2'", "COMMIT PREPARED 'g1'", "INSERT INTO late VALUES (2)")
    here.caught_up()
    assert here.table("never") not in here.reader.topics(here.prefix)
    topics = here.everything()
    assert sorted(s.key["id"] for s in topics.rows if s.topic == here.table("late")) == [1, 2]


@pytest.mark.core
def test_a_deferrable_primary_key_is_no_message_key(connector: Maker) -> None:
    """PostgreSQL does not take it for a row's identity: the table is one without a key, in the
    catalog as in the stream.
    """
    here = connector(init=False, source={"tables": ["public.account", "public.later"]})
    here.sql(SCHEMA, "CREATE TABLE later (id int PRIMARY KEY DEFERRABLE)", "INSERT INTO later VALUES (1)")
    here.initialise()
    with here.carrying():
        here.sql("INSERT INTO later VALUES (2)")
        ready(here)
        here.sql("INSERT INTO later VALUES (3)")
        here.caught_up()
    rows = here.read("later")
    assert sorted(s.value["after"]["id"] for s in rows) == [1, 2, 3]
    assert {s.key for s in rows} == {None}


@pytest.mark.core
def test_a_table_is_pinned_by_the_commit_that_has_its_first_row(connector: Maker) -> None:
    """Also where that is a prepared transaction's own: else nobody would notice that its topic is
    gone.
    """
    here = connector(turn={"idle_progress": 30.0})
    run = here.start("after_commit")
    rows = here.tail("account", isolation=UNCOMMITTED)
    here.prepare("g", "INSERT INTO account VALUES (1, 1, '')")
    assert rows.wait_for(lambda s: gid_of(s) == "g")
    here.sql("COMMIT PREPARED 'g'")
    assert run.ended() == -9
    assert [record["kind"] for record in here.records("commits")] == ["prepared"]
    keys = {s.key for s in here.reader.read([f"{here.prefix}.progress"])}
    assert f"{here.prefix}/table/{here.table('account')}" in keys


def test_a_large_prepared_transaction_waits_on_disk(connector: Maker) -> None:
    """Opened from there, parked after the hold, over a kill, and committed."""
    here = connector(spool={"memory": 20_000}, prepared={"hold": 2.0})
    run = here.start()
    here.prepare("big", "INSERT INTO transfer SELECT n::text, n, 1 FROM generate_series(1, 4000) n")
    rows = here.tail("transfer", isolation=UNCOMMITTED)
    assert rows.wait_for(lambda s: gid_of(s) == "big")
    wait_until(partial(ledger_has, here, "big", "parked"))
    run.kill9()
    here.start()
    here.sql("INSERT INTO account VALUES (1, 1, '')", "COMMIT PREPARED 'big'")
    topics = here.check()
    assert len([s for s in topics.rows if gid_of(s) == "big"]) == 4000


def test_a_topic_that_is_deleted_under_a_running_connector(connector: Maker, kafka: Any) -> None:
    here = connector(kafka={"call_timeout": 2.0})
    run = here.start()
    here.sql("INSERT INTO account VALUES (1, 1, '')", "INSERT INTO transfer VALUES ('a', 1, 1)")
    here.caught_up()
    delete_topic(kafka.bootstrap, here.table("transfer"))
    here.sql("INSERT INTO transfer VALUES ('b', 1, 1)")
    assert run.ended(120) == 5
    assert "public.transfer was in use and is gone" in run.said()
