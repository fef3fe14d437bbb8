"""The jobs as people start them: a process, its signals, and kill -9; into every sink, a keyless
table among the tables."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from fixtures.connector import wait_until
from fixtures.spark import Lake
from helpers.spark import process as spark_process
from helpers.spark.bank import Reader, assert_cuts_right, opened
from helpers.spark.writer import table
from helpers.topic_changes import delete_topic
from twofold.stack.process import choose_port
from twofold_common.mirror_place import MirrorPlace, parse_place
from twofold_spark import streaming

MANY = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kept", "kills"),
    [
        # A round of chaos kills it as well.
        pytest.param("iceberg", 1, marks=pytest.mark.slow),
        # The driver dies in this process in test_mirror.py.
        pytest.param("jdbc", 1, marks=pytest.mark.slow),
        # The short form of S3 is test_object_store.py.
        pytest.param("stored", 1, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        # Its reader and its merges take most of two cores.
        pytest.param("delta", 1, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        *(pytest.param(name, 50, marks=MANY) for name in ("iceberg", "jdbc", "delta")),
        pytest.param("stored", 10, marks=MANY),
    ],
    indirect=["kept"],
)
def test_kill_9_leaves_tables_right_and_every_cut_whole_and_sigterm_ends_it_well(kept: Lake, kills: int) -> None:
    """After every third kill the checkpoint is lost as well."""
    bank, reader, rng = opened(kept.writer), Reader(kept), random.Random(3)
    try:
        for kill in range(kills):
            with spark_process.running(kept, "--trigger", "continuous", "--batch-rows", "40") as process:
                spark_process.cuts(process, rng.randrange(1, 4))
                before = time.monotonic()
                spark_process.cuts(process, 1)
                time.sleep(rng.random() * (time.monotonic() - before))  # any instant of a batch will do
                os.killpg(process.pid, signal.SIGKILL)
            if kill % 3 == 2:
                kept.lose_checkpoints()
    finally:
        bank.stop()
        reader.stop()
    _finished(kept)
    assert_cuts_right(kept, bank, all_of_them=kills > 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_prepared_transaction_that_is_open_for_a_minute_holds_nobody_up(lake: Lake) -> None:
    """It has written into all partitions of both tables; its own keys are nobody else's."""
    w = lake.writer
    bank = opened(w)
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


def _finished(lake: Lake) -> None:
    """A job that goes to the end of what there is and is told to stop; then the tables are what was
    written."""
    port = choose_port(None, "metrics")
    with spark_process.running(lake, "--trigger", "interval=100ms", "--metrics", f"127.0.0.1:{port}") as process:
        spark_process.cut(process, lake.writer.sequence)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert f'twofold_job_cut_sequence{{job="mirror"}} {lake.writer.sequence}' in answer.read().decode()
        os.killpg(process.pid, signal.SIGTERM)  # Java too, as systemd does
        said = spark_process.finish(process, within_s=60)
    assert "Traceback" not in said
    lake.assert_equal()


def test_a_refusal_is_told_in_its_own_words_alone(lake: Lake) -> None:
    """It is raised within a batch, whose failures Spark logs with pages of the JVM's stack."""
    t = lake.writer.table(table("t", {"id": "int8"}), partitions=1)
    with lake.writer.commit() as tx:
        tx.upsert(t, {"id": 1})
    lake.writer.visible()
    delete_topic(lake.writer.bootstrap, lake.writer.topics[t].name)
    said = spark_process.run(lake, "--trigger", "available-now", within_s=200, status=5)
    assert "\nmirror: " in said
    assert "\n  at stake: " in said
    assert "\tat " not in said
    assert "ERROR MicroBatchExecution" not in said


def test_sigterm_within_a_long_batch_ends_it_between_two_batches_and_the_next_start_goes_on(lake: Lake) -> None:
    """Spark gives the whole batch again; what was applied of it is passed over."""
    w = lake.writer
    t = w.table(table("t", {"id": "int8", "v": "int8"}), partitions=1)
    for number in range(30):
        with w.commit() as tx:
            tx.upsert(t, {"id": 0, "v": number})
            tx.upsert(t, {"id": number, "v": number})
    w.visible()
    with spark_process.running(lake, "--batch-rows", "1") as process:
        spark_process.cuts(process, 2)
        process.terminate()
        said = spark_process.finish(process, within_s=100)
    assert "Traceback" not in said
    assert "Exception" not in said
    applied = lake.cut().cut.sequence
    assert applied < w.sequence, "the end came with the batch's"
    said = spark_process.run(lake, "--trigger", "available-now", within_s=100)
    assert f" of {w.sequence - applied} transactions" in said, said
    assert "py4j" not in said
    lake.assert_equal()


def test_a_batch_that_does_not_end_in_time_is_cut_off_and_that_is_no_failure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_BATCH_PATIENCE_S", 0.5)
    asked = threading.Event()

    def long(batch: DataFrame, _number: int) -> None:
        asked.set()
        batch.sparkSession._jvm.java.lang.Thread.sleep(60_000)  # type: ignore[union-attr]

    job = streaming.StreamingJob("long", long)
    job.start(spark.readStream.format("rate").load(), tmp_path / "checkpoint", streaming.Trigger.parse("continuous"))
    began = time.monotonic()
    job.run(asked)
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_of_two_jobs_on_one_checkpoint_one_ends_and_every_cut_is_right(lake: Lake) -> None:
    w = lake.writer
    bank = opened(w)
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
    assert_cuts_right(lake, bank)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_mirror_tells_that_it_runs_though_nothing_happens_and_that_it_ends(lake: Lake) -> None:
    """The connector's page reads it. A second start has nothing to do, and tells nevertheless. A
    job that ends well shows nothing of Java: Spark tells our listener of the end as well; said
    after ours, it would be pages of py4j's errors.
    """
    accounts = lake.writer.table(table("accounts", {"id": "int8", "owner": "text"}))
    asked = Consumer({"bootstrap.servers": lake.writer.bootstrap, "group.id": f"{lake.prefix}.mirror"})

    def told() -> MirrorPlace | None:
        (place,) = asked.committed([TopicPartition(f"{lake.prefix}.commits", 0)], 20)
        return None if place.offset < 0 else parse_place(place.metadata, "the group")

    try:
        with lake.writer.commit() as tx:
            tx.upsert(accounts, {"id": 1, "owner": "o"})
        said = spark_process.run(lake, "--trigger", "available-now")
        assert "mirror: 1 change of 1 transaction in 1 table," in said
        assert "py4j" not in said
        assert "\tat " not in said
        first = told()
        assert first is not None, said
        assert (first.sequence, first.ended) == (1, True)
        with spark_process.running(lake, "--trigger", "interval=1s") as process:
            runs = wait_until(lambda: (place := told()) and not place.ended and place, 120)
            again = wait_until(lambda: (place := told()) and place.told_at > runs.told_at and place)
            assert (runs.sequence, again.sequence) == (1, 1)
            with lake.writer.commit() as tx:
                tx.upsert(accounts, {"id": 2, "owner": "o"})
            spark_process.cuts(process, 1)  # a signal before the first batch ends it without a word
            process.terminate()
            _, said = process.communicate(timeout=120)
        last = told()
        assert last is not None
        assert (last.sequence, last.ended) == (2, True), said
        assert "cannot publish" not in said
    finally:
        asked.close()


@pytest.mark.core
def test_a_wrong_command_line_is_refused_before_spark_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twofold_spark", "mirror", "--trigger", "sometimes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "interval=1s" in done.stderr
