"""Two connectors on one slot: one carries, the other stands by; and whoever was taken over cannot
write any more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from fixtures.connector import Installation, Maker, Running, wait_until
from fixtures.stack import fresh_prefix
from helpers.connector.topics import UNCOMMITTED, gid_of
from helpers.connector.workload import Workload


def test_the_second_stands_by_and_takes_over(connector: Maker) -> None:
    here = connector()
    work = Workload(here, seed=1)
    work.running = first = here.start()
    second = here.start(ready=False)
    second.wait_for("standing by:")
    work.run()
    first.kill9()
    work.running = second
    second.wait_for("recovered:")
    work.check()
    second.stop()


def test_a_standby_stops_when_it_is_told_to(connector: Maker) -> None:
    here = connector()
    first, second = here.start(), here.start(ready=False)
    second.wait_for("standing by:")
    second.stop()
    first.stop()


def test_one_that_shall_not_stand_by_ends_with_a_status_of_its_own(connector: Maker) -> None:
    here = connector(source={"standby": False})
    first, second = here.start(), here.start(ready=False)
    assert second.ended() == 6
    assert f"slot '{here.prefix}' is held by process" in second.said()
    here.check()
    first.stop()


def test_a_dead_machines_connection_is_ended_to_take_over(connector: Maker) -> None:
    """PostgreSQL would give it up after wal_sender_timeout, a minute."""
    here = connector()
    dead = here.start()
    here.sql("INSERT INTO account VALUES (1, 1, 'a')")
    here.caught_up()
    dead.signal(signal.SIGSTOP)
    heir = here.start("", "--take-over", ready=False)
    heir.wait_for("recovered:")
    assert "taking over: ended process" in heir.said()
    here.sql("UPDATE account SET version = 2")
    dead.signal(signal.SIGCONT)
    dead.wait_for("standing by:")
    here.check()
    assert not heir.dead


@pytest.mark.parametrize(
    "place",
    [
        "before_commit:2=stop",
        pytest.param("after_open=stop", marks=pytest.mark.slow),
        pytest.param("after_flush:2=stop", marks=pytest.mark.slow),
        pytest.param("before_abort=stop", marks=pytest.mark.slow),
    ],
)
def test_one_that_slept_until_another_took_over_is_refused_and_stands_by(place: str, connector: Maker) -> None:
    """Everything waits in the spool's files, which both would find in the same folder."""
    here = connector(spool={"memory": 0})
    work = Workload(here, seed=2)
    work.running = sleeper = here.start(place)
    threading.Thread(target=cut_the_slot_when_asleep, args=(here, sleeper), daemon=True).start()
    work.run()
    wait_until(lambda: sleeper.asleep, what="the failpoint is reached")
    heir = here.start(ready=False)
    heir.wait_for("recovered:")
    work.running = heir
    work.run()
    sleeper.signal(signal.SIGCONT)
    sleeper.wait_for("standing by:")
    work.check()
    assert not heir.dead
    assert "the run has ended" not in heir.said()
    heir.kill9()
    sleeper.wait_for("recovered: Kafka")
    work.running = sleeper
    work.check()


def is_asleep(run: Running) -> bool:
    return run.asleep


def cut_the_slot_when_asleep(here: Installation, run: Running) -> None:
    """A sleeper's connection stays: the server would give it up only after wal_sender_timeout."""
    wait_until(lambda: run.asleep)
    cut(here)


def cut(here: Installation) -> None:
    here.ask(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{here.prefix}' AND active"
    )


@contextmanager
def cutting(here: Installation) -> Iterator[None]:
    """The slot's connection is cut again and again, at no moment in particular."""
    enough = threading.Event()

    def run() -> None:
        with psycopg.connect(here.conninfo, autocommit=True) as connection:
            pause = 0.05
            while not enough.wait(pause):
                pause = 0.05 + (pause * 7.3) % 0.9
                connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active",
                    (here.prefix,),
                )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


@pytest.mark.slow  # at no moment in particular: CI has the two moments of fencing
def test_the_slots_connection_is_cut_many_times_while_two_compete(connector: Maker) -> None:
    """They take the slot from each other in the middle of fencing."""
    here = connector()
    work = Workload(here, seed=3)
    for _ in range(2):
        here.start(ready=False)
    wait_until(lambda: any("recovered:" in run.said() for run in here.runs))
    with cutting(here):
        for _ in range(4):
            work.run()
    work.settle()
    here.check()
    assert not any(run.dead for run in here.runs)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.timeout(900))])
def test_the_connection_is_cut_in_the_middle_of_fencing(times: int, connector: Maker) -> None:
    """Whoever lost the slot there goes on fencing for a moment, beside the one that has it now;
    then the same with their parts exchanged.
    """
    here = connector()
    work = Workload(here, seed=4)
    for first, second in (("fence_main", "after_progress_read"), ("after_takeover", "after_checks")) * times:
        slow = here.start(f"{first}=stop", ready=False)
        wait_until(partial(is_asleep, slow))
        cut(here)
        heir = here.start(f"{second}=stop", ready=False)
        wait_until(partial(is_asleep, heir))
        slow.signal(signal.SIGCONT)  # it fences on, beside one that has the slot and is half-way there
        slow.wait_for("standing by:")
        cut(here)
        slow.wait_for("recovered:")
        heir.signal(signal.SIGCONT)
        work.run()
        here.caught_up()
        slow.kill9()
        heir.kill9()
    here.start()
    work.settle()
    here.check()


@pytest.mark.core
def test_a_prepared_transaction_is_carried_through_a_takeover(connector: Maker) -> None:
    here = connector()
    first = here.start()
    rows = here.tail("account", isolation=UNCOMMITTED)
    here.prepare("g", "INSERT INTO account VALUES (1, 1, '')")
    assert rows.wait_for(lambda s: gid_of(s) == "g")
    first.kill9()
    second = here.start()
    here.sql("COMMIT PREPARED 'g'")
    topics = here.check()
    assert len([s for s in topics.rows if gid_of(s) == "g"]) == 1
    second.stop()


def test_a_reset_leaves_the_publication_that_another_connector_reads(connector: Maker) -> None:
    """Without it the other one could only start over."""
    source = {"publication": f"{fresh_prefix()}_shared"}
    first = connector(source=source)
    other = connector(conninfo=first.conninfo, init=False, source=source)
    other.initialise()
    asked = first.twofold("reset", "--yes", ok=True).stdout
    assert f"stays: other slots read it: {other.config.slot}" in asked
    assert "removed: publication" not in asked
    assert "which twofold init has made" not in asked
    with other.carrying():
        other.sql("INSERT INTO account VALUES (1, 1, 'behind the reset')")
        other.caught_up()
    assert 1 in [each.value["after"]["id"] for each in other.read("account") if each.value]
    last = other.twofold("reset", "--yes", ok=True).stdout
    assert f"removed: publication {other.config.publication}" in last
    assert other.ask("SELECT count(*) FROM pg_publication") == 0
