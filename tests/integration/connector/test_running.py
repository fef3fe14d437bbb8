"""Start, stop, idling, and a transaction that is larger than everything that holds one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

import psycopg
import pytest

from fixtures.backfill import ready
from fixtures.connector import START_S, Installation, Maker, frozen, wait_until
from helpers.connector.ledger import SCHEMA
from helpers.connector.workload import Workload
from twofold.stack import KafkaCluster


def has_confirmed(here: Installation, position: int) -> bool:
    return bool(here.slot("confirmed_flush_lsn - '0/0'") >= position)


@pytest.mark.core
def test_init_may_be_run_again_and_says_what_is_there(connector: Maker) -> None:
    here = connector(init=False)
    here.sql(SCHEMA)
    first, second = here.init(), here.init()
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert f"slot {here.prefix} made (two_phase on)" in first.stdout
    assert "already initialised" in second.stdout


def test_run_without_init_says_so(connector: Maker) -> None:
    here = connector(init=False)
    run = here.start(ready=False)
    assert run.ended() == 3
    assert "twofold init" in run.said()


def test_init_that_was_interrupted_is_taken_up(connector: Maker) -> None:
    """Before the slot is made, and between that and the word that it is ready."""
    here = connector(init=False)
    here.sql(SCHEMA)
    for place in ("after_commit", "before_commit:2"):
        done = here.init(failpoint=place)
        assert done.returncode == -signal.SIGKILL, done.stderr
        run = here.start(ready=False)
        assert run.ended() == 3
        assert "twofold init" in run.said()
        here.forget_runs()
    here.twofold("init", ok=True)
    here.start()
    ready(here)
    here.sql("INSERT INTO account VALUES (1, 1, 'a')")
    here.caught_up()
    assert [seen.value["op"] for seen in here.read("account") if seen.key["id"] == 1] == ["c"]


@pytest.mark.core
def test_a_stop_commits_what_is_gathered_and_leaves_the_rest(connector: Maker) -> None:
    here = connector()
    work = Workload(here, seed=10)
    for _ in range(2):
        work.running = run = here.start()
        work.run()
        run.stop()
    here.start()
    work.settle()
    here.check()


def test_a_stop_in_the_middle_of_a_large_transaction(connector: Maker) -> None:
    here = connector()
    run = here.start()
    here.sql("INSERT INTO account SELECT n, 1, repeat('x', 100) FROM generate_series(1, 15000) n")
    run.stop()
    here.start()
    here.check()


def test_a_stop_in_the_middle_of_recovery_ends_it_soon(
    connector: Maker, own_kafka: Callable[..., KafkaCluster]
) -> None:
    """The broker does not answer, and would be waited for, for two minutes."""
    kafka = own_kafka()
    here = connector(kafka_server=kafka, kafka={"call_timeout": 120.0})
    with frozen(kafka.nodes[0].pid):
        run = here.start(ready=False)
        wait_until(lambda: here.slot("active"), START_S)
        run.stop()
        assert "stopped during recovery" in run.said()
    here.start()
    here.check()


@pytest.mark.core
def test_nothing_to_do_holds_no_wal(connector: Maker) -> None:
    """Only an unpublished table is written: the position follows, without a commit record."""
    here = connector()
    run = here.start()
    for _ in range(2):
        here.sql("INSERT INTO unpublished (filler) SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
        written = here.ask("SELECT pg_current_wal_lsn() - '0/0'")
        wait_until(partial(has_confirmed, here, written))
    assert here.records("commits") == []
    run.kill9()
    here.start()
    here.check()


@pytest.mark.core
def test_a_prepared_transaction_in_doubt_holds_its_wal_and_no_more(connector: Maker) -> None:
    here = connector()
    here.carry()
    before = here.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
    here.prepare("g", "INSERT INTO account VALUES (1, 1, 'a')")
    prepared = here.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
    here.sql("INSERT INTO transfer VALUES ('later', 1, 1)")
    here.caught_up()
    wait_until(lambda: here.slot("confirmed_flush_lsn - '0/0'") >= before)
    assert here.slot("confirmed_flush_lsn - '0/0'") <= prepared
    here.sql("ROLLBACK PREPARED 'g'")
    wait_until(lambda: here.slot("confirmed_flush_lsn - '0/0'") > prepared)
    here.check()


@pytest.mark.slow
def test_of_large_transactions_in_a_backlog_each_is_in_one_commit(connector: Maker) -> None:
    """A read brings the end of one and the beginning of the next; Kafka commits while they come."""
    here = connector(turn={"rows": 1000}, source={"streaming": "off"})
    for n in range(4):
        here.sql(
            f"INSERT INTO transfer SELECT {n} || '-' || i || repeat(' wide', 100), i, 1 FROM generate_series(1, 5000) i"
        )
    run = here.start("after_commit:2")
    assert run.ended() == -signal.SIGKILL
    here.start()
    topics = here.check()
    assert sum(s.value["kind"] == "batch" for s in topics.commits) >= 3


def test_a_transaction_of_some_megabytes_is_streamed_though_nobody_set_when(connector: Maker) -> None:
    here = connector()
    here.carry()
    here.sql("INSERT INTO transfer SELECT i || repeat(' wide', 300), i, 1 FROM generate_series(1, 10000) i")
    here.caught_up()
    wait_until(
        lambda: here.ask(f"SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '{here.prefix}'") > 0
    )
    here.check()


def test_a_large_transaction_is_visible_all_at_once(connector: Maker) -> None:
    """More than a turn's rows and bytes; killed in the middle of it, then carried."""
    here = connector(turn={"rows": 1000, "bytes": 1 << 20})
    rows = 6000
    run = here.start("after_produce:3")
    visible = here.tail("transfer")
    with psycopg.connect(here.conninfo) as writer:
        writer.execute("ALTER TABLE transfer DISABLE TRIGGER note")
        writer.execute(
            "INSERT INTO transfer SELECT n || repeat(' wide', 100), n, 1 FROM generate_series(1, %s) n", (rows,)
        )
        xid = writer.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert run.ended() == -signal.SIGKILL
    visible.to_end()
    assert visible.seen == []
    here.start()
    here.caught_up()
    commits = here.records("commits")
    assert sum(r["count"] for r in commits[0]["ranges"]) == commits[0]["rows"] >= rows
    lasts = {
        (r["topic"], r["partition"]): r["last"] for r in commits[0]["ranges"] if r["topic"] == here.table("transfer")
    }
    while any(visible.ends[place] <= last for place, last in lasts.items()):
        visible.poll()  # pytest's own limit bounds it
    assert len(visible.seen) == rows
    assert {s.value["source"]["txId"] for s in visible.seen} == {xid[0] if xid else None}
    assert sorted(s.value["after"]["account"] for s in visible.seen) == list(range(1, rows + 1))
