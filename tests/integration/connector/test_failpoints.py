"""kill -9 at every place where it can matter, under a workload that has everything; after the restart the topics are compared with the ledger."""

from __future__ import annotations

import signal

import pytest

from connector_workload import Workload
from fix_connector import Installation, Maker
from twofold import failpoints

PLACES = [
    "after_read:2",
    "after_decode:5",
    "after_staging:2",
    "after_begin:4",
    "after_produce:3",
    "after_flush:2",
    "before_commit_record:3",
    "after_commit_record:4",
    "before_commit:2",
    "after_commit:2",
    "before_feedback:2",
    "after_feedback:3",
    "before_open",
    "after_open",
    "before_abort",
    "after_abort",
    "after_start_replication",
    "fence_main",
    "fence_prepared:2",
    "after_takeover",
    "after_progress_read",
    "after_checks",
]
AT_OTHER_HITS = ["after_begin", "before_commit:5", "after_commit", "after_commit:6", "before_open:3", "after_open:3"]
"""The same places for other transactions."""


def test_every_place_is_tried() -> None:
    assert {place.partition(":")[0] for place in PLACES} == failpoints.NAMES


@pytest.fixture(scope="module")
def here(module_connector: Maker) -> Installation:
    return module_connector()


@pytest.fixture(scope="module")
def work(here: Installation) -> Workload:
    return Workload(here, seed=6)


@pytest.mark.parametrize("place", [*PLACES, *(pytest.param(p, marks=pytest.mark.slow) for p in AT_OTHER_HITS)])
def test_killed_at(place: str, here: Installation, work: Workload) -> None:
    """One history for all places: each is compared from its beginning."""
    dying = here.start(place, ready=False)
    try:
        work.running = dying
        work.run()
        assert dying.ended() == -signal.SIGKILL
        work.running = here.start()
        work.run()
        work.settle()
        here.check()
    finally:
        here.forget_runs()
