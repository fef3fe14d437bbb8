"""kill -9 at every failpoint of the sink: afterwards the progress, the commit records and the rows
that are visible say the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.sink.sink_ground import Ground, eventually
from integration.sink.sink_script import values

SCRIPT = Path(__file__).with_name("sink_script.py")
TESTS = SCRIPT.parents[2]
PLACES = [
    "fence_main",
    "fence_prepared:2",
    "after_takeover",
    "after_progress_read",
    "after_begin:2",
    "after_produce:3",
    "after_flush:3",
    "before_commit_record:4",
    "after_commit_record:3",
    "before_commit:3",
    "before_commit:4",
    "after_commit:3",
    "after_commit:4",
    "before_open:2",
    "after_open:2",
    "before_abort",
    "after_abort",
]
FEW = ["after_takeover", "after_flush:3", "after_commit_record:3", "after_commit:3", "after_open:2"]
"""The connector's own tests go through all of them."""
BESIDE = [
    "after_produce",  # a prepared transaction's rows are sent, and nobody waits for them
    "after_produce:2",  # a batch's rows are sent as well
    "before_commit_record",
    "before_commit",  # all of the batch is acknowledged
    "after_commit",  # the batch has ended first
    "after_produce:3",  # another prepared transaction's rows are sent
    "after_open",  # the first one's rows are acknowledged
    "before_commit:2",
    "after_commit:2",  # it has ended before the other one's rows are acknowledged
    "before_abort",
    "after_open:2",
    "after_abort",
]
"""Where two Kafka transactions are on their way, in the order of `sink_script.turn_beside`."""


def run(ground: Ground, registry: Any, place: str, order: str) -> int:
    environment = {**os.environ, "TWOFOLD_FAILPOINT": place, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, str(SCRIPT), order, ground.bootstrap, registry.url, ground.names.prefix, "2"]
    return subprocess.run(command, env=environment, timeout=60, check=False, capture_output=True).returncode


@pytest.mark.parametrize(
    ("places", "order"),
    [
        (FEW, "alone"),
        (BESIDE, "beside"),
        pytest.param(PLACES, "alone", marks=pytest.mark.slow),
    ],
    ids=["one of each kind", "one beside another", "each place"],
)
def test_killed_at_one_place_after_the_other(places: list[str], order: str, ground: Ground, registry: Any) -> None:
    """Each run goes on from what the one before, killed, has left; the last is let through."""
    done = 0
    for place in places:
        assert run(ground, registry, place, order) == -signal.SIGKILL, place
        recovered = ground.take_over().recovered
        before, done = done, recovered.progress.sequence if recovered.progress else 0
        assert before <= done <= before + 4, place
        assert (recovered.last_commit.sequence if recovered.last_commit else 0) == done, place
        expected = sorted(v for s in range(1, done + 1) for v in values(s))
        eventually(lambda expected=expected: ground.committed() == expected)  # type: ignore[misc]
    assert done >= 4
    assert run(ground, registry, "", order) == 0
    eventually(lambda: ground.committed() == sorted(v for s in range(1, done + 5) for v in values(s)))
