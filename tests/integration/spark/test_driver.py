"""The jobs as people start them: a process, its signals, and kill -9."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fix_spark import QUICK_JAVA, Lake
from spark_writer import Writer, table
from twofold.stack import java

TOTAL = 2 * 20 * 100


class _Bank(threading.Thread):
    """Moves money between two tables without a pause, until `stop`."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(name="bank")
        self._writer = writer
        self._stopped = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        rng = random.Random(1)
        try:
            while not self._stopped.wait(0.05):
                amount, giver, taker = rng.randrange(50), rng.randrange(20), rng.randrange(20)
                with self._writer.commit() if rng.random() < 0.8 else self._writer.abort() as tx:
                    for name, key, change in (("accounts", giver, -amount), ("vault", taker, amount)):
                        balance = self._writer.model[name][key]["balance"]
                        tx.upsert(name, {"id": key, "balance": balance + change})
        except Exception as error:  # the test asks for it: a thread's exception is seen by nobody else
            self.failure = error

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        assert self.failure is None, self.failure


@contextmanager
def _job(lake: Lake, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable, "-m", "twofold_spark", "mirror",
        "--bootstrap", lake.writer.bootstrap, "--registry", lake.writer.registry, "--prefix", lake.writer.prefix,
        "--warehouse", str(lake.warehouse), "--catalog", lake.catalog, "--java-home", str(java.spark_java_home()), *arguments,
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_GATEWAY_PORT"} | {
        "JAVA_TOOL_OPTIONS": QUICK_JAVA
    }
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _cuts(process: subprocess.Popen[str], many: int) -> None:
    """Returns when the job has said that it published so many cuts."""
    for number, _ in enumerate(_published(process), 1):
        if number == many:
            return


def _cut(process: subprocess.Popen[str], sequence: int) -> None:
    """Returns when the job has said that it published this cut."""
    for published in _published(process):
        if published == sequence:
            return


def _published(process: subprocess.Popen[str]) -> Iterator[int]:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith("mirror: "):
            yield int(line.rsplit(" ", 1)[1])
    raise AssertionError("the job ended: " + "".join(seen[-20:]))


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_kill_9_leaves_tables_right_and_every_cut_whole_and_sigterm_ends_it_well(lake: Lake, kills: int) -> None:
    w = lake.writer
    for name in ("accounts", "vault"):
        w.table(table(name, {"id": "int8", "balance": "int8"}))
    with w.commit() as tx:
        for i in range(20):
            tx.upsert("accounts", {"id": i, "balance": 100})
            tx.upsert("vault", {"id": i, "balance": 100})
    bank = _Bank(w)
    bank.start()
    rng = random.Random(3)
    try:
        for _ in range(kills):
            with _job(lake, "--trigger", "continuous", "--batch-rows", "40") as process:
                _cuts(process, rng.randrange(1, 4))
                time.sleep(rng.random())  # any instant of a batch will do
                os.killpg(process.pid, signal.SIGKILL)
    finally:
        bank.stop()
    with _job(lake, "--trigger", "interval=100ms") as process:
        _cut(process, w.sequence)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    lake.assert_equal()
    cuts = lake.spark.sql(f"SELECT sequence FROM {lake.catalog}.twofold.cuts WHERE whole").collect()
    sequences = [row[0] for row in cuts]
    # A cut takes a second to read: the short form looks at some of them.
    for sequence in sequences if kills > 1 else rng.sample(sequences, min(4, len(sequences))):
        cut = lake.cut(sequence=sequence)
        sums = [cut[f"public.{name}"].agg({"balance": "sum"}).first() for name in ("accounts", "vault")]
        assert sum(row[0] for row in sums if row is not None) == TOTAL, sequence


def test_a_wrong_command_line_is_refused_before_spark_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twofold_spark", "mirror", "--trigger", "sometimes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "interval=1s" in done.stderr
