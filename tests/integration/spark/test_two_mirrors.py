"""Two mirrors of one place, of which one is stopped in the midst of a merge, and goes on when the
other one has published: it is refused, or goes on, and no cut is torn.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from fixtures.connector import wait_until
from fixtures.spark import Lake
from helpers.spark import interpreted
from helpers.spark import process as spark_process
from helpers.spark.bank import Reader, assert_cuts_right, opened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TURNS = 3
_STARTS_S = 300.0
"""A machine with other tests beside takes two minutes to the first cut."""
_REFUSED, _STOOD_STILL = 5, 3
_MERGING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s AND xact_start IS NOT NULL"


class _Job(threading.Thread):
    """One of the two processes, and what it says."""

    def __init__(self, lake: Lake, ending: ExitStack, *options: str) -> None:
        super().__init__(name="job", daemon=True)
        arguments = ("--trigger", "continuous", "--batch-rows", "40", *options)
        running = spark_process.running(lake, *arguments, environment=interpreted.ENVIRONMENT)
        self.process = ending.enter_context(running)
        self._cuts = 0
        self.said: list[str] = []
        self.start()

    def run(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            self._cuts += line.startswith("mirror: ")

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_for_cuts(self, many: int) -> None:
        """Until it has published so many more, or has ended."""
        wanted = self._cuts + many
        try:
            wait_until(lambda: self._cuts >= wanted or self.has_ended(), _STARTS_S, f"{many} cuts or an end")
        except AssertionError as late:
            raise AssertionError("".join(self.said)) from late

    def send(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        """It has ended by a refusal, or ends when it is told to."""
        if not self.has_ended():
            self.send(signal.SIGTERM)
        try:
            status = self.process.wait(120)
        except subprocess.TimeoutExpired:
            raise AssertionError("".join(self.said)) from None
        self.join()
        said = "".join(self.said)
        ends = {_REFUSED: "at stake:", _STOOD_STILL: "start again"}
        assert status == 0 or (status in ends and ends[status] in said), said
        assert "\tat " not in said, said


@pytest.mark.parametrize("kept", ["iceberg", "beside", "delta", "jdbc"], indirect=True)
def test_a_mirror_that_was_stopped_in_a_merge_tears_nothing_when_it_goes_on_beside_another_one(kept: Lake) -> None:
    """With the checkpoint of the other one, and with one of its own."""
    rng = random.Random(random.getrandbits(32))
    bank, reader = opened(kept.writer), Reader(kept)
    ended: list[str] = []
    try:
        for turn in range(TURNS):
            own = ("--checkpoint", str(kept.warehouse / f"checkpoint of {turn}")) if turn % 2 else ()
            with ExitStack() as ending:
                stopped = _Job(kept, ending, "--write-mode", kept.write_mode)
                stopped.wait_for_cuts(1 + rng.randrange(3))
                stop_in_a_merge(kept, stopped, rng)
                other = _Job(kept, ending, "--write-mode", kept.write_mode, *own)
                other.wait_for_cuts(1 + rng.randrange(3))
                stopped.send(signal.SIGCONT)
                for job in (stopped, other):
                    job.wait_for_cuts(2)
                for job in (stopped, other):
                    job.end()
                ended.append(f"turn {turn}: " + "; ".join(find_refusal(job) for job in (stopped, other)))
    finally:
        print(*ended, sep="\n", flush=True)
        bank.stop()
        reader.stop()
    spark_process.run(kept, "--trigger", "available-now", within_s=600)
    kept.assert_equal()
    assert_cuts_right(kept, bank, all_of_them=True)
    assert len(reader.totals) > TURNS


def find_refusal(job: _Job) -> str:
    return next((line.strip() for line in job.said if "mirror" in line and "cut" not in line), "went on")


def stop_in_a_merge(lake: Lake, job: _Job, rng: random.Random) -> None:
    """Stop it when it has begun to write what no version of a table has yet."""
    with ExitStack() as ending:
        is_merging = find_merges(lake, rng, ending)
        deadline = time.monotonic() + _STARTS_S
        while not is_merging():
            assert time.monotonic() < deadline, "it merges nothing"
            assert not job.has_ended(), "".join(job.said)
            time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.05))
    job.send(signal.SIGSTOP)


def find_merges(lake: Lake, rng: random.Random, ending: ExitStack) -> Callable[[], bool]:
    """Return what says whether a merge has begun."""
    if lake.choice.name == "jdbc":
        connection = ending.enter_context(psycopg.connect(lake.choice.address, autocommit=True))

        def is_in_transaction() -> bool:
            row = connection.execute(_MERGING, ("PostgreSQL JDBC Driver",)).fetchone()
            return row is not None and row[0] > 0

        return is_in_transaction
    folder = Path(lake.choice.address or lake.warehouse) / "public" / rng.choice(("accounts", "vault", "tokens"))
    before = count_files(folder)
    return lambda: count_files(folder) > before


def count_files(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.parquet"))
