"""kill -9 while tables are loaded under mixed traffic: the topics, folded by key, are the source."""

from __future__ import annotations

import random
import time

import pytest

from backfill_traffic import FILL, TABLES, compare, traffic
from fix_connector import Installation, Maker, wait_until
from twofold.config import load
from twofold.runner.report import look
from twofold.runner.setup import initialise


@pytest.fixture
def here(connector: Maker) -> Installation:
    made = connector(
        init=False,
        source={"tables": ["public.account", "public.item", "public.line"]},
        backfill={"chunk_rows": 150},
        prepared={"hold": 2, "pool": 2},
    )
    made.sql(TABLES, *FILL)
    return made


def chunks(here: Installation) -> int:
    return sum(commit["kind"] == "backfill" for commit in here.records("commits"))


def carried_with_kills(here: Installation, kills: int) -> None:
    """Under traffic from before `init` on, a kill after some chunks, again and again; then to the end."""
    rng = random.Random(kills)
    with traffic(here):
        initialise(load(here.file), print)
        for _ in range(kills):
            run = here.start()
            goal = chunks(here) + rng.randint(1, 3)
            wait_until(lambda: run.dead or chunks(here) >= goal or not look(load(here.file)).backfilling, 90, "chunks")  # noqa: B023
            time.sleep(rng.random() * 0.2)
            run.kill9()
        run = here.start()
        wait_until(lambda: run.dead or not look(load(here.file)).backfilling, 120, "all tables are ready")
    here.caught_up(120)
    compare(here)


def test_loaded_under_traffic_with_kills(here: Installation) -> None:
    carried_with_kills(here, 3)


@pytest.mark.slow
def test_loaded_under_traffic_with_many_kills(here: Installation) -> None:
    carried_with_kills(here, 20)
