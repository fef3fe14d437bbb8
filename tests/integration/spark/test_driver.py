"""The jobs as people start them: a process, its signals, and kill -9."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spark_process
from fix_spark import Lake
from spark_writer import Writer, table
from twofold.stack.process import choose_port
from twofold_spark.errors import MissingGround

TOTAL = 2 * 20 * 100


class _Bank(threading.Thread):
    """Moves money between two tables without a pause, until `stop`."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(name="bank")
        self._writer = writer
        self._stopped = threading.Event()
        self._busy = threading.Lock()
        self.failure: Exception | None = None

    @contextmanager
    def between(self) -> Iterator[None]:
        """Between two of its transactions, as the connector puts those of its producers one after another."""
        with self._busy:
            yield

    def run(self) -> None:
        rng = random.Random(1)
        try:
            while not self._stopped.wait(0.05):
                amount, giver, taker = rng.randrange(50), rng.randrange(20), rng.randrange(20)
                kind = self._writer.commit() if rng.random() < 0.8 else self._writer.abort()
                with self._busy, kind as tx:
                    for name, key, change in (("accounts", giver, -amount), ("vault", taker, amount)):
                        balance = self._writer.model[name][key]["balance"]
                        tx.upsert(name, {"id": key, "balance": balance + change})
        except Exception as error:  # the test asks for it: a thread's exception is seen by nobody else
            self.failure = error

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        assert self.failure is None, self.failure


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_kill_9_leaves_tables_right_and_every_cut_whole_and_sigterm_ends_it_well(lake: Lake, kills: int) -> None:
    w = lake.writer
    bank, reader, rng = _opened(w), _Reader(lake), random.Random(3)
    try:
        for _ in range(kills):
            with spark_process.running(lake, "--trigger", "continuous", "--batch-rows", "40") as process:
                spark_process.cuts(process, rng.randrange(1, 4))
                time.sleep(rng.random())  # any instant of a batch will do
                os.killpg(process.pid, signal.SIGKILL)
    finally:
        bank.stop()
        reader.stop()
    _finished(lake)
    _check_cuts(lake, all_of_them=kills > 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_prepared_transaction_that_is_open_for_a_minute_holds_nobody_up(lake: Lake) -> None:
    """It has written into all partitions of both tables; its own keys are nobody else's."""
    w = lake.writer
    bank = _opened(w)
    with spark_process.running(lake, "--trigger", "interval=1s") as process:
        _lags(process, 20)  # the JVM's first batches are not what is measured
        before = _lags(process, 30)
        with bank.between(), w.prepare("prepared.00", "in doubt") as doubtful:
            for name in ("accounts", "vault"):
                for i in range(20):
                    doubtful._record(name, "c", {"id": 900 + i}, None, {"id": 900 + i, "balance": 0}, w.lsn())
        during = _lags(process, 60)
        with bank.between():
            w.finish(doubtful, kind="prepared")
        bank.stop()
        spark_process.cut(process, w.sequence)
        process.terminate()
        process.communicate(timeout=60)
    for name in ("accounts", "vault"):
        w.model[name] |= {900 + i: {"id": 900 + i, "balance": 0} for i in range(20)}
    lake.assert_equal()
    print(f"lag p50/max: before {_p50(before)}/{max(before)} s, while in doubt {_p50(during)}/{max(during)} s")
    assert len(during) >= 10
    assert _p50(during) < 1.5 * _p50(before) + 0.5


def _lags(process: subprocess.Popen[str], seconds: float) -> list[float]:
    """What the job says of its lag, for so long."""
    assert process.stderr is not None
    deadline, found = time.monotonic() + seconds, []
    while time.monotonic() < deadline:
        if said := re.match(r"mirror: .* lag ([0-9.]+) s", process.stderr.readline()):
            found.append(float(said[1]))
    return found


def _p50(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _opened(w: Writer) -> _Bank:
    """A bank with money in it, and at work."""
    for name in ("accounts", "vault"):
        w.table(table(name, {"id": "int8", "balance": "int8"}))
    with w.commit() as tx:
        for i in range(20):
            tx.upsert("accounts", {"id": i, "balance": 100})
            tx.upsert("vault", {"id": i, "balance": 100})
    bank = _Bank(w)
    bank.start()
    return bank


def _finished(lake: Lake) -> None:
    """A job that goes to the end of what there is and is told to stop; then the tables are what was written."""
    port = choose_port(None, "metrics")
    with spark_process.running(lake, "--trigger", "interval=100ms", "--metrics", f"127.0.0.1:{port}") as process:
        spark_process.cut(process, lake.writer.sequence)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert f'twofold_job_cut_sequence{{job="mirror"}} {lake.writer.sequence}' in answer.read().decode()
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    lake.assert_equal()


def _check_cuts(lake: Lake, *, all_of_them: bool = False) -> None:
    """A cut takes a second to read: the short form looks at some of them."""
    rows = lake.spark.sql(f"SELECT sequence FROM {lake.catalog}.twofold.cuts WHERE whole").collect()
    sequences = [row[0] for row in rows]
    chosen = sequences if all_of_them else random.Random(4).sample(sequences, min(4, len(sequences)))
    assert all(_total(lake, sequence=sequence) == TOTAL for sequence in chosen)


def _total(lake: Lake, **at: int) -> int:
    cut = lake.cut(**at)
    sums = [cut[f"public.{name}"].agg({"balance": "sum"}).first() for name in ("accounts", "vault")]
    return sum(row[0] for row in sums if row is not None)


class _Reader(threading.Thread):
    """Reads the last cut again and again, while jobs write and are killed: the total is always the same."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(name="reader")
        self._lake = lake
        self._stopped = threading.Event()
        self.totals: list[int] = []
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            last = False
            while not last:
                last = self._stopped.wait(0.2)
                with contextlib.suppress(MissingGround):  # no cut yet
                    self.totals.append(_total(self._lake))
        except Exception as error:  # the test asks for it: a thread's exception is seen by nobody else
            self.failure = error

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        assert self.failure is None, self.failure
        assert set(self.totals) == {TOTAL}, self.totals


@pytest.mark.slow
def test_of_two_jobs_on_one_checkpoint_one_ends_and_every_cut_is_right(lake: Lake) -> None:
    w = lake.writer
    bank = _opened(w)
    arguments = ("--trigger", "continuous", "--batch-rows", "40")
    with spark_process.running(lake, *arguments) as one:
        spark_process.cuts(one, 1)
        with spark_process.running(lake, *arguments) as other:
            deadline = time.monotonic() + 180
            while one.poll() is None and other.poll() is None:
                assert time.monotonic() < deadline, "two jobs write side by side"
                time.sleep(0.1)
            ended = one if one.poll() is not None else other
            assert ended.stderr is not None
            said = ended.stderr.read()
    bank.stop()
    assert ended.returncode == 5, said
    assert "at stake:" in said
    _check_cuts(lake)


def test_a_wrong_command_line_is_refused_before_spark_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twofold_spark", "mirror", "--trigger", "sometimes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "interval=1s" in done.stderr
