"""People's commands about a load, and a kill at the worst moment: none is lost, and none takes rows
along.
"""

from __future__ import annotations

import signal
import subprocess

import psycopg
import pytest

from fixtures.backfill import initialised, ready, until_chunks
from fixtures.connector import START_S, Installation, Maker, wait_until
from helpers.connector.topics import Seen
from twofold.inspect.status_report import backfills, read_progress

ACCOUNT = "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)"


def command(here: Installation, what: str, table: str) -> None:
    here.twofold("backfill", what, table, ok=True)


def states(here: Installation) -> dict[str, str]:
    config = here.config
    return {each.table: each.state for each in backfills(config, read_progress(config))}


LATER = ["start", pytest.param("resume", marks=pytest.mark.slow), "cancel"]


@pytest.mark.parametrize("later", LATER)
def test_a_command_overtakes_one_that_is_being_carried_out(connector: Maker, later: str) -> None:
    """It is written before the earlier one is executed; the process is killed between the two."""
    here = connector(
        init=False,
        source={"tables": ["public.account", "public.t"]},
        backfill={"chunk_rows": 100, "rows_per_second": 1},
        turn={"idle_progress": 600},
    )
    here.sql(ACCOUNT, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 350)")
    here.initialise()
    run = here.start("before_commit_record:2=stop,after_commit:2=kill")
    until_chunks(here, 1)
    command(here, "pause", "public.t")
    wait_until(lambda: run.asleep, what="the pause is about to be executed")
    command(here, later, "public.t")
    run.signal(signal.SIGCONT)
    assert run.ended(START_S) == -9
    here.forget_runs()
    assert states(here) == {"public.t": "requested" if later == "start" else "paused"}
    here.configure({"backfill": {"rows_per_second": 0}})
    with here.carrying():
        ready(here)
        here.caught_up()
    kinds = [record["kind"] for record in here.records("commits")]
    loaded = [s.key["id"] for s in here.read("t") if s.value["op"] == "r"]
    match later:
        case "start":
            assert kinds.count("reload") == 1
            assert sorted(loaded) == sorted([*range(1, 101), *range(1, 351)])
        case "resume":
            assert sorted(loaded) == [*range(1, 351)]
        case "cancel":
            assert sorted(loaded) == [*range(1, 101)]
    assert not read_progress(here.config).commands, "all are executed"


@pytest.mark.parametrize(
    "paused", [pytest.param(False, id="running"), pytest.param(True, id="paused", marks=pytest.mark.slow)]
)
def test_a_keyless_load_is_cancelled_after_a_restart(connector: Maker, *, paused: bool) -> None:
    """The rows that the killed process held are nowhere but in the table: the load goes on."""
    here = connector(init=False, source={"tables": ["public.account", "public.line"]}, turn={"idle_progress": 0.2})
    here.sql(ACCOUNT, "CREATE TABLE line (n int)", "INSERT INTO line VALUES (0)")
    here.initialise()
    here.prepare("in doubt", "INSERT INTO line VALUES (100)")
    run = here.start()
    here.sql("INSERT INTO line VALUES (1)", "INSERT INTO line VALUES (2)")
    here.caught_up()
    if paused:
        command(here, "pause", "public.line")
        wait_until(lambda: states(here) == {"public.line": "paused"}, 90, "it is paused")
    run.kill9()
    here.forget_runs()
    run = here.start()
    here.sql("INSERT INTO line VALUES (3)")
    command(here, "cancel", "public.line")
    run.wait_for("not cancelled, because rows that an earlier process delayed would be missing")
    if paused:
        assert states(here) == {"public.line": "paused"}
        command(here, "resume", "public.line")
    here.sql("COMMIT PREPARED 'in doubt'", "INSERT INTO line VALUES (4)")
    ready(here)
    here.caught_up()
    assert sorted(values(here.read("line"))) == [0, 1, 2, 3, 4, 100]
    assert not read_progress(here.config).commands, "all are executed"


def test_a_keyless_load_of_which_no_earlier_process_held_a_row_is_cancelled(connector: Maker) -> None:
    """Because nothing was written, or because a reload's truncate came since."""
    here = connector(init=False, source={"tables": ["public.account", "public.line"]}, turn={"idle_progress": 0.2})
    here.sql(ACCOUNT, "CREATE TABLE line (n int)", "INSERT INTO line VALUES (0)")
    here.initialise()
    here.prepare("in doubt", "INSERT INTO line VALUES (100)")
    run = here.start()
    here.caught_up()
    run.kill9()
    here.forget_runs()
    run = here.start()
    here.sql("INSERT INTO line VALUES (1)")
    here.caught_up()
    run.kill9()
    command(here, "start", "public.line")
    run = here.start()
    wait_until(lambda: "reload" in [record["kind"] for record in here.records("commits")], 90, "the truncate")
    here.sql("INSERT INTO line VALUES (2)")
    command(here, "cancel", "public.line")
    ready(here)
    here.sql("COMMIT PREPARED 'in doubt'")
    here.caught_up()
    run.stop()
    here.forget_runs()
    with here.carrying():
        here.caught_up()
    assert values(here.read("line")) == [2, 100]


def test_a_restart_that_is_cancelled_before_its_truncate_leaves_a_stale_topic(connector: Maker) -> None:
    """Rows with the former key were passed over, because the load was to bring them."""
    here = connector(init=False, source={"tables": ["public.account", "public.t"]}, kafka={"partitions": 1})
    here.sql(ACCOUNT, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0), (2, 0)")
    with initialised(here):
        here.caught_up()
    here.sql(
        *("DELETE FROM t WHERE id = 1", "UPDATE t SET v = 1", "ALTER TABLE t ALTER id TYPE bigint"),
        "INSERT INTO t VALUES (300, 0)",
    )
    command(here, "start", "public.t")
    with psycopg.connect(here.conninfo) as holder:
        holder.execute("LOCK TABLE t")
        with here.carrying():
            here.caught_up()
            command(here, "cancel", "public.t")
            ready(here)
    with here.carrying():
        here.caught_up()
        assert [each.table for each in here.status().stale] == ["public.t"]
        assert here.records("commits")[-1]["stale"] == [here.table("t")]
        assert "reload" not in [record["kind"] for record in here.records("commits")], "a person decides"
        command(here, "start", "public.t")
        wait_until(lambda: "reload" in [record["kind"] for record in here.records("commits")], 90, "the truncate")
        ready(here)
        assert here.status().stale == ()
    rows = [s.value for s in here.read("t") if s.value]
    begun = [row["op"] for row in rows].index("t")
    assert {row["after"]["id"]: row["after"]["v"] for row in rows[begun:] if row["op"] == "r"} == {2: 1, 300: 0}


def values(seen: list[Seen]) -> list[int]:
    return [s.value["after"]["n"] for s in seen if s.value and s.value["op"] != "t"]


def test_what_people_ask_while_no_connector_runs_is_executed_once(connector: Maker) -> None:
    """Also if the process is killed before or behind the Kafka transaction, and never again for a
    table that takes the name.
    """
    here = connector(init=False, source={"tables": ["public.account", "public.t"]}, turn={"idle_progress": 600})
    create = "CREATE TABLE t (id int PRIMARY KEY)"
    here.sql(ACCOUNT, create, "INSERT INTO t SELECT generate_series(1, 3)")
    with initialised(here):
        pass
    for what in ("start", "pause"):
        command(here, what, "public.t")
    for failpoint, state in (
        ("before_commit_record=kill", {"public.t": "requested"}),
        ("after_commit=kill", {"public.t": "paused"}),
    ):
        assert asked(here) == ["start", "pause"]
        assert here.start(failpoint, ready=False).ended(START_S) == -9
        assert states(here) == state
    assert asked(here) == []
    people = [subprocess.Popen(here.command("backfill", "resume", "public.t")) for _ in range(2)]
    assert [person.wait(START_S) for person in people] == [0, 0]
    assert asked(here) == ["resume"]
    with here.carrying():
        ready(here)
        assert loaded(here) == [1, 1, 2, 2, 3, 3]
        command(here, "cancel", "public.t")
        wait_until(lambda: asked(here) == [], what="the cancel is executed")
    here.sql("DROP TABLE t", create, "INSERT INTO t VALUES (4)", f"ALTER PUBLICATION {here.prefix} ADD TABLE t")
    with here.carrying():
        wait_until(lambda: 4 in loaded(here), what="the new table is loaded")
        ready(here)
    assert loaded(here) == [1, 1, 2, 2, 3, 3, 4]
    assert asked(here) == []


def asked(here: Installation) -> list[str]:
    """What nobody has executed, in its order."""
    return [each.name for each in read_progress(here.config).commands]


def loaded(here: Installation) -> list[int]:
    return sorted(s.key["id"] for s in here.read("t") if s.value["op"] == "r")
