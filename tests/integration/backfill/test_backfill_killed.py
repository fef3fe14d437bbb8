"""kill -9 while tables are loaded under mixed traffic: the topics, folded by key, are the source.
TWOFOLD_TEST_POSTGRES_VERSION chooses the server.
"""

from __future__ import annotations

import random
import time

import pytest

from fixtures.backfill import chunks
from fixtures.connector import Installation, Maker, wait_until
from helpers.connector.backfill_traffic import TABLES, Traffic, compare, fill, traffic


@pytest.fixture
def here(connector: Maker) -> Installation:
    made = connector(
        init=False,
        source={"tables": ["public.account", "public.item", "public.line"]},
        backfill={"chunk_rows": 150, "rows_per_second": 300},  # so that there is something left to load after each kill
        prepared={"hold": 2, "pool": 2},
    )
    made.sql(TABLES)
    return made


def carried_with_kills(here: Installation, kills: int, *, per_second: float, items: int) -> Traffic:
    """Under traffic from before `init` on, a kill after some chunks, again and again; then to the
    end.
    """
    here.sql(*fill(items))
    rng = random.Random(kills)
    with traffic(here, per_second=per_second, items=items) as told:
        here.initialise()
        for _ in range(kills):
            run = here.start()
            goal = chunks(here) + rng.randint(1, 3)
            wait_until(lambda: run.dead or chunks(here) >= goal, 90, "chunks")  # noqa: B023
            time.sleep(rng.random() * 0.2)
            assert not run.dead, run.said()
            assert here.status().backfilling, "it was loaded before it was killed often enough"
            run.kill9()
        here.configure({"backfill": {"rows_per_second": 0}})
        run = here.start()
        wait_until(lambda: run.dead or not here.status().backfilling, 300, "all tables are ready")
    here.caught_up(300)
    compare(here)
    print(f"{told.per_second:.0f} changes a second, {kills} kills, {chunks(here)} chunks")
    return told


@pytest.mark.slow  # CI has loads and kills in its rounds of chaos
def test_loaded_under_traffic_with_kills(here: Installation) -> None:
    carried_with_kills(here, 3, per_second=300, items=4000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_loaded_under_2000_changes_a_second_with_20_kills(here: Installation) -> None:
    told = carried_with_kills(here, 20, per_second=2000, items=30_000)
    assert told.per_second > 1600, "there was less traffic than this is to show"
