"""People's commands about a load, and a kill at the worst moment: none is lost, and none takes rows
along.
"""

from __future__ import annotations

import signal
import subprocess

import pytest

from fixtures.backfill import ready, until_chunks
from fixtures.connector import START_S, Installation, Maker, wait_until
from twofold.config import load
from twofold.runner.initialisation import initialise
from twofold.runner.status_report import backfills, read_progress

ACCOUNT = "CREATE TABLE account (id int PRIMARY KEY, version int NOT NULL, note text)"


def command(here: Installation, what: str, table: str) -> None:
    subprocess.run(here.command("backfill", what, table), check=True, capture_output=True, timeout=60)


def states(here: Installation) -> dict[str, str]:
    config = load(here.file)
    return {each.table: each.state for each in backfills(config, read_progress(config))}


LATER = ["start", "resume", "cancel"]


@pytest.mark.parametrize("later", LATER)
def test_a_command_overtakes_one_that_is_being_carried_out(connector: Maker, later: str) -> None:
    """It is written before the earlier one is answered; the process is killed between the two."""
    here = connector(
        init=False,
        source={"tables": ["public.account", "public.t"]},
        backfill={"chunk_rows": 100, "rows_per_second": 1},
        turn={"idle_progress": 600},
    )
    here.sql(ACCOUNT, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 350)")
    initialise(load(here.file), print)
    run = here.start("before_commit_record:2=stop,after_commit:2=kill")
    until_chunks(here, 1)
    command(here, "pause", "public.t")
    wait_until(lambda: run.asleep, what="the pause is about to be answered")
    command(here, later, "public.t")
    run.signal(signal.SIGCONT)
    assert run.ended(START_S) == -9
    here.forget_runs()
    assert states(here) == {"public.t": "paused"}
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
    assert not read_progress(load(here.file)).commands, "all are answered"
