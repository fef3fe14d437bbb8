"""A prepared transaction's rows: in Kafka at once, visible only by COMMIT PREPARED, never after
ROLLBACK PREPARED; and while one is in doubt nobody else waits for long.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.topics import UNCOMMITTED, Seen, gid_of
from helpers.connector.workload import Workload

ANOTHER_KEY = ", ADD PRIMARY KEY (id, account)"


def insert(key: int, note: str = "") -> str:
    return f"INSERT INTO account VALUES ({key}, 1, '{note}')"


def ids(seen: list[Seen]) -> list[Any]:
    return sorted(s.value["after"]["id"] for s in seen)


def in_ledger(here: Installation, gid: str) -> str:
    """What the in-doubt ledger says of it now."""
    states = [entry["state"] for entry in here.records("prepared") if entry["gid"] == gid]
    return states[-1] if states else ""


def is_parked(here: Installation, gid: str) -> bool:
    return in_ledger(here, gid) == "parked"


def is_row(key: int) -> Callable[[Seen], bool]:
    return lambda s: s.value["after"]["id"] == key


@pytest.mark.core
def test_rows_are_in_kafka_at_prepare_and_visible_at_commit_prepared(connector: Maker) -> None:
    here = connector()
    here.carry()
    all_rows, visible = here.tail("account", isolation=UNCOMMITTED), here.tail("account")
    here.prepare("g1", insert(1), insert(2))
    assert all_rows.wait_for(lambda s: gid_of(s) == "g1")
    here.prepare("g2", insert(3))
    assert all_rows.wait_for(lambda s: gid_of(s) == "g2")
    visible.to_end()
    assert visible.seen == []
    here.sql("ROLLBACK PREPARED 'g2'", "COMMIT PREPARED 'g1'")
    assert visible.wait_for(lambda s: gid_of(s) == "g1")
    topics = here.check()
    assert [s for s in topics.rows if gid_of(s) == "g2"] == []
    assert [c.value["kind"] for c in topics.commits] == ["prepared", "batch"]


def test_one_that_took_long_to_open_is_parked_before_kafka_gives_it_up(connector: Maker) -> None:
    """As a large one does.

    Kafka's timeout counts from its beginning: were it given up there, the run would end, and open
    it again.
    """
    here = connector(kafka={"transaction_timeout": 4.0}, prepared={"hold": 3.0})
    run = here.start("after_open=stop")
    here.prepare("large", insert(1))
    wait_until(lambda: run.asleep)
    time.sleep(2.5)
    run.signal(signal.SIGCONT)
    wait_until(lambda: in_ledger(here, "large") == "parked")
    assert "the run has ended" not in run.said()
    here.sql("COMMIT PREPARED 'large'")
    assert ids(list(here.check().rows)) == [0, 1]


@pytest.mark.core
def test_one_that_is_held_too_long_is_parked_and_others_go_on(connector: Maker) -> None:
    """Its Kafka transaction is given up, so that readers go on; the rows wait here, over two
    kills.
    """
    here = connector(prepared={"hold": 1.0})
    run = here.start()
    here.prepare("doubt", insert(1), insert(2))
    assert here.tail("account", isolation=UNCOMMITTED).wait_for(lambda s: gid_of(s) == "doubt")
    visible = here.tail("account")
    for key in range(10, 13):
        here.sql(insert(key))
        assert visible.wait_for(is_row(key))
    wait_until(lambda: in_ledger(here, "doubt") == "parked")
    here.sql(insert(13))
    assert visible.wait_for(is_row(13))  # nothing is open in front of it any more
    for _ in range(2):
        run.kill9()
        run = here.start()
        here.sql(insert(20 + len(here.runs)))
        assert visible.wait_for(is_row(20 + len(here.runs)))
    wait_until(lambda: here.slot("confirmed_flush_lsn") < here.ask("SELECT pg_current_wal_lsn()"))
    here.sql("COMMIT PREPARED 'doubt'")
    assert visible.wait_for(lambda s: gid_of(s) == "doubt")
    here.check()
    wait_until(lambda: in_ledger(here, "doubt") == "committed")


def test_parked_ones_end_in_the_ledger_as_they_ended(connector: Maker) -> None:
    here = connector(prepared={"rules": [{"gid": "slow-*", "action": "park"}]})
    with here.carrying():
        for gid, key in (("slow-1", 1), ("slow-2", 2)):
            here.prepare(gid, insert(key))
            wait_until(partial(is_parked, here, gid))
        here.prepare("quick", insert(3))
        wait_until(lambda: in_ledger(here, "quick") == "open")
        assert ids(here.read("account", UNCOMMITTED)) == [3]
        here.sql("COMMIT PREPARED 'slow-1'", "ROLLBACK PREPARED 'slow-2'", "COMMIT PREPARED 'quick'")
        here.check()
        assert [in_ledger(here, gid) for gid in ("slow-1", "slow-2", "quick")] == [
            "committed",
            "rolled_back",
            "committed",
        ]
    here.start().stop()
    assert "; 0 in doubt" in here.runs[0].said()


@pytest.mark.core
def test_more_in_doubt_than_the_pool(connector: Maker) -> None:
    here = connector(prepared={"pool": 2, "hold": 1.0})
    with here.carrying():
        for n in range(8):
            here.prepare(f"g{n}", insert(n + 1))
        here.sql(insert(100))
        assert here.tail("account").wait_for(is_row(100))
        wait_until(lambda: [in_ledger(here, f"g{n}") for n in range(8)] == ["parked"] * 8)
        here.sql(*(f"{'ROLLBACK' if n % 3 else 'COMMIT'} PREPARED 'g{n}'" for n in reversed(range(8))))
        topics = here.check()
    assert {gid_of(s) for s in topics.rows} - {None} == {f"g{n}" for n in range(0, 8, 3)}


@pytest.mark.core
def test_a_keyless_tables_rows_wait_for_the_outcome(connector: Maker) -> None:
    here = connector()
    with here.carrying():
        here.prepare("g1", "INSERT INTO journal VALUES ('one')", insert(1))
        here.prepare("g2", "INSERT INTO journal VALUES ('two')")
        wait_until(lambda: (in_ledger(here, "g1"), in_ledger(here, "g2")) == ("parked", "parked"))
        assert here.read("journal", UNCOMMITTED) == []
        here.sql("ROLLBACK PREPARED 'g2'", "COMMIT PREPARED 'g1'")
        topics = here.check()
    journal = [s for s in topics.rows if s.topic == here.table("journal")]
    assert [(s.key, s.value["after"], gid_of(s)) for s in journal] == [(None, {"line": "one"}, "g1")]


@pytest.mark.parametrize(
    ("instead", "outcome"),
    [
        pytest.param(ANOTHER_KEY, "ROLLBACK", id="another key, rolled back"),
        pytest.param("", "COMMIT", id="no key, committed"),
        pytest.param("", "ROLLBACK", id="no key, rolled back", marks=pytest.mark.slow),
        pytest.param(ANOTHER_KEY, "COMMIT", id="another key, committed", marks=pytest.mark.slow),
    ],
)
def test_the_key_is_changed_between_two_rows_of_a_prepared_transaction(
    instead: str, outcome: str, connector: Maker
) -> None:
    """Without a key the topic would have one partition.

    It is refused when it is committed, and nobody is stopped by what is rolled back.
    """
    here = connector()
    with here.carrying():
        here.sql("INSERT INTO transfer VALUES ('a', 1, 1)")
        here.caught_up()
        here.prepare(
            "g",
            "INSERT INTO transfer VALUES ('b', 1, 1)",
            f"ALTER TABLE transfer DROP CONSTRAINT transfer_pkey{instead}",
            "INSERT INTO transfer VALUES ('c', 1, 1)",
        )
        wait_until(lambda: in_ledger(here, "g") == "parked")
        if outcome == "ROLLBACK":
            here.sql("ROLLBACK PREPARED 'g'", "INSERT INTO transfer VALUES ('d', 1, 1)")
            here.check()
    if outcome == "COMMIT":
        here.sql("COMMIT PREPARED 'g'")
        assert "the message key of table public.transfer is not what it was" in str(here.refusal())
    assert ids(here.read("transfer")) == (["a", "d"] if outcome == "ROLLBACK" else ["a"])


def versions(here: Installation, table: str) -> list[int]:
    with urllib.request.urlopen(
        f"{here.reader.registry_url}/subjects/{here.table(table)}-value/versions", timeout=20
    ) as answer:
        found: list[int] = json.load(answer)
    return found


@pytest.mark.core
@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
def test_a_table_that_is_changed_in_a_prepared_transaction(outcome: str, connector: Maker) -> None:
    """A ROLLBACK PREPARED cannot take a registered schema back: so it is registered at COMMIT
    PREPARED.
    """
    here = connector()
    with here.carrying():
        here.sql(insert(1))
        here.caught_up()
        before = versions(here, "account")
        here.prepare("g", "ALTER TABLE account ADD COLUMN more text", "INSERT INTO account VALUES (2, 1, '', 'more')")
        wait_until(lambda: in_ledger(here, "g") == "parked")
        assert versions(here, "account") == before
        assert ids(here.read("account", UNCOMMITTED)) == [0, 1]
        here.sql(
            f"{outcome} PREPARED 'g'",
            insert(3) if outcome == "ROLLBACK" else "INSERT INTO account VALUES (3, 1, '', 'x')",
        )
        topics = here.check()
        assert len(versions(here, "account")) == len(before) + (outcome == "COMMIT")
    rows = {s.value["after"]["id"]: s.value["after"] for s in topics.rows if s.topic == here.table("account")}
    assert sorted(rows) == ([0, 1, 2, 3] if outcome == "COMMIT" else [0, 1, 3])
    assert ("more" in rows[3]) == (outcome == "COMMIT")


@pytest.mark.parametrize("known", [True, False], ids=["a table that was there", "a new table"])
def test_rows_of_one_key_before_and_after_a_change_stay_in_their_order(known: bool, connector: Maker) -> None:
    """In one prepared transaction: what its rows' schemas are called until it is committed must not
    come between them.
    """
    here = connector(source={"backfill": False})
    make = ("CREATE TABLE changed (id int PRIMARY KEY)", f"ALTER PUBLICATION {here.prefix} ADD TABLE changed")
    rows = "INSERT INTO changed SELECT generate_series(1, 30)"
    change = ("ALTER TABLE changed ADD COLUMN more int", "UPDATE changed SET more = 1")
    again = ("ALTER TABLE changed ADD COLUMN most int", "UPDATE changed SET more = 2")
    with here.carrying():
        here.sql(*make)
        if known:
            here.sql(rows)
            here.caught_up()
        here.prepare("g", *(() if known else (rows,)), "UPDATE changed SET id = id", *change, *again)
        wait_until(lambda: in_ledger(here, "g") == "parked")
        here.sql("COMMIT PREPARED 'g'")
        here.caught_up()
        topics = here.everything()
    orders: dict[int, list[int]] = {}
    for s in topics.rows:
        if s.topic == here.table("changed") and gid_of(s) == "g":
            orders.setdefault(s.key["id"], []).append(s.value["transaction"]["total_order"])
    assert len(orders) == 30
    assert all(len(found) == (3 if known else 4) and found == sorted(found) for found in orders.values())


def test_rows_of_a_changed_table_are_parked_over_a_restart(connector: Maker) -> None:
    """The new shape is met again in the prepared transaction, before anything was committed with
    it.
    """
    here = connector()
    run = here.start()
    here.sql(insert(1))
    here.caught_up()
    here.prepare("g", "ALTER TABLE account ADD COLUMN more text", "INSERT INTO account VALUES (2, 1, '', 'more')")
    wait_until(lambda: in_ledger(here, "g") == "parked")
    run.kill9()
    here.start()
    here.sql("COMMIT PREPARED 'g'")
    here.check()


def test_a_rename_in_a_prepared_transaction_counts_with_its_outcome(connector: Maker) -> None:
    """Another transaction's commit does not tell the next run that the former name is gone: the
    rows from before the rename are still to come.
    """
    here = connector()
    run = here.start()
    here.sql(
        "CREATE TABLE before (id int PRIMARY KEY)",
        f"ALTER PUBLICATION {here.prefix} ADD TABLE before",
        "INSERT INTO before VALUES (1)",
    )
    here.until_loaded(60)
    here.caught_up()
    renamed = "INSERT INTO before VALUES (2)", "ALTER TABLE before RENAME TO behind", "INSERT INTO behind VALUES (3)"
    here.prepare("g", *renamed)
    wait_until(lambda: in_ledger(here, "g") == "parked")
    here.sql(insert(1))
    here.caught_up()
    run.kill9()
    here.sql("COMMIT PREPARED 'g'")
    here.start()
    here.caught_up()
    assert {s.key["id"] for s in here.read("before") if s.key} == {1, 2}
    assert {s.key["id"] for s in here.read("behind") if s.key} == {1, 2, 3}


def test_without_two_phase_they_come_at_their_commit(connector: Maker) -> None:
    here = connector(source={"two_phase": False})
    run = here.start()
    work = Workload(here, seed=5)
    work.run()
    run.kill9()
    here.start()
    topics = work.check()
    assert {c.value["kind"] for c in topics.commits} == {"batch"}
    assert {gid_of(s) for s in topics.rows} == {None}
