"""kill -9 at every place where it can matter, under a workload that has everything; after the
restart the topics are compared with the ledger.

The fast form chains the places of a kind: each life begins in what the killed one before has left,
and the comparison at the end sees what any of them has lost or doubled. The slow form compares
after each place. tests/records/crash-matrix.md is made of both.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress

import pytest

from fixtures.connector import Installation, Maker, Running
from fixtures.crashes import Died
from helpers.connector.workload import Workload
from twofold import failpoints

pytestmark = pytest.mark.timeout(900)

CHAINS = {
    "reading": {
        "after_read:2": "the changes are sent again",
        "after_decode:5": "the fence aborts the Kafka transaction; the changes are sent again",
        "after_staging:2": "the spool is dropped; flush stays before the prepare, so its rows are sent again",
        "before_feedback:2": "changes are sent again, and skipped: they start before applied_lsn",
        "after_feedback:3": "only transactions without an outcome in Kafka are sent again",
    },
    "publishing": {
        "after_begin:4": "the fence aborts an empty Kafka transaction",
        "after_produce:3": "the fence aborts the rows; they are sent again",
        "after_flush:2": "the fence aborts acknowledged rows; they are sent again",
        "before_commit_record:3": "the fence aborts rows without a commit record; they are sent again",
        "after_commit_record:4": "rows, commit record and progress are aborted together",
    },
    "committing": {
        "before_commit:2": "aborted as a whole, and sent again",
        "after_commit:2": "sent again, and skipped: the progress has it",
    },
    "prepared": {
        "before_open": "staged rows are sent again, and opened or parked",
        "after_open": "the fence aborts the open Kafka transaction; its rows are sent and opened again",
        "before_abort": "aborted by the fence",
        "after_abort": "its ROLLBACK PREPARED is sent again; parked ones are staged again",
    },
    "recovery": {
        "after_start_replication": "the slot is free with the connection; recovery starts over",
        "fence_main": "the next recovery fences all",
        "fence_prepared:2": "the next recovery fences all",
        "after_takeover": "the next takeover record takes its place",
        "after_progress_read": "recovery starts over: nothing was written",
        "after_checks": "recovery starts over: nothing was written",
    },
}
FOLLOWS = {place: follows for chain in CHAINS.values() for place, follows in chain.items()}
IN_CI = ("prepared",)
"""The others are slow: a round of chaos kills at any of them."""
AT_OTHER_HITS = ["after_begin", "before_commit:5", "after_commit", "after_commit:6", "before_open:3", "after_open:3"]
"""The same places for other transactions."""


@pytest.mark.core
def test_every_place_is_tried() -> None:
    assert {place.partition(":")[0] for place in FOLLOWS} == failpoints.NAMES


@pytest.fixture(scope="module")
def here(module_connector: Maker) -> Installation:
    return module_connector()


@pytest.fixture(scope="module")
def work(here: Installation) -> Workload:
    return Workload(here, seed=6)


def die(dying: Running, work: Workload) -> None:
    """Work until it is dead."""
    work.running = dying
    for _ in range(5):
        if not dying.dead:
            work.run()
        with suppress(subprocess.TimeoutExpired):
            dying.ended(within_s=10)
            break
    assert dying.ended() == -signal.SIGKILL, dying.said()


def compare(here: Installation, work: Workload) -> None:
    """Let it recover and go on, then compare all that there was, from the beginning."""
    work.running = here.start()
    work.check()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.core if kind in IN_CI else pytest.mark.slow) for kind in CHAINS]
)
def test_killed_again_and_again(kind: str, here: Installation, work: Workload, died: Died) -> None:
    try:
        for place in CHAINS[kind]:
            die(here.start(place, ready=False), work)
        compare(here, work)
    finally:
        here.forget_runs()
    for place, follows in CHAINS[kind].items():
        died(place, "connector", follows)


@pytest.mark.slow
@pytest.mark.parametrize("place", [*FOLLOWS, *AT_OTHER_HITS])
def test_killed_once(place: str, here: Installation, work: Workload, died: Died) -> None:
    try:
        die(here.start(place, ready=False), work)
        compare(here, work)
    finally:
        here.forget_runs()
    name = place.partition(":")[0]
    died(place, "connector", next(f for p, f in FOLLOWS.items() if p.partition(":")[0] == name))
