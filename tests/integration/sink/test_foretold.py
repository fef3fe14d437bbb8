"""A commit record that travels with its rows: whatever makes its forecast wrong, readers see it
once, with the ranges of its rows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.topic_changes import delete_topic
from integration.sink.sink_ground import PARTITIONS, Ground, commit, eventually, progress, read
from twofold.errors import TwofoldError
from twofold.kafka.forecast import RECORDS_MAX
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold.kafka.row_batch import RowBatch
from twofold_avro.records import Commit

pytestmark = pytest.mark.core

SCRIPT = Path(__file__).with_name("foretold_script.py")


class Told:
    """What the publisher foretold, and whether it was so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.foretold: list[bool] = []
        commit_foretold = Publisher._commit_foretold

        def told(publisher: Publisher, *rest: Any) -> bool:
            self.foretold.append(commit_foretold(publisher, *rest))
            return self.foretold[-1]

        monkeypatch.setattr(Publisher, "_commit_foretold", told)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def publish(ground: Ground, publisher: Publisher, n: int) -> Commit:
    publisher.produce(ground.rows(*(f"{n}.{k}" for k in range(2 * PARTITIONS))))
    record = publisher.commit_main(TransactionRecords(commit(n), progress(n)))
    assert record is not None
    return record


def published(ground: Ground, number: int) -> tuple[Publisher, list[Commit]]:
    """A publisher and its first commits, each behind the markers of the one before."""
    publisher, records = ground.take_over().publisher, []
    for n in range(1, number + 1):
        records.append(publish(ground, publisher, n))
        ground.settle()
    return publisher, records


def check(ground: Ground, records: list[Commit]) -> None:
    """Each record is in Kafka once, and its ranges hold its rows and no others."""
    bootstrap = ground.bootstrap
    eventually(lambda: len(read(bootstrap, ground.names.commits, "read_committed")) == len(records))
    rows = ground.read(ground.table, "read_committed")
    for record in records:
        for r in record.ranges:
            found = [(at, value) for p, at, value in rows if p == r.partition and r.first <= at <= r.last]
            assert [at for at, _ in found][:: r.count - 1] == [r.first, r.last]
            assert [value.split(".")[0] for _, value in found] == [str(record.sequence)] * r.count
    declared = sum(r.count for record in records for r in record.ranges)
    assert len([value for _, _, value in rows if value != "bystander"]) == declared
    assert ground.take_over().recovered.last_commit == records[-1]


def test_the_ranges_of_a_small_batch_are_foretold(ground: Ground, told: Told) -> None:
    _, records = published(ground, 10)
    assert told.foretold.count(True) >= 7
    check(ground, records)


def _foreign(ground: Ground, partition: int) -> None:
    other = TransactionalProducer(f"{ground.names.prefix}.other", ground.settings, ground.watch)
    ground.ending.callback(other.destroy)
    other.init()
    other.begin()
    other.produce(ground.table, partition, [{"key": b"k", "value": b"bystander"}])
    other.commit()


def _timed_out(ground: Ground, publisher: Publisher) -> None:
    """An open one that Kafka aborts by itself: its next call would tell."""
    pool = publisher._pool[0]
    pool.begin()
    pool.produce(ground.table, 1, [{"key": b"k", "value": b"dead"}])
    pool.flush()
    publisher._forecast.wrote(pool.deliveries.ranges())
    pool.in_transaction = False  # nothing hides that the others have ended
    eventually(lambda: _stable(ground, publisher, 1) > pool.deliveries.ranges()[0].last)


def _stable(ground: Ground, publisher: Publisher, partition: int) -> int:
    return publisher._check.stable_offset(ground.table, partition)


@pytest.mark.parametrize("partition", [0, PARTITIONS - 1], ids=["noticed before", "a miss"])
def test_another_writer(partition: int, ground: Ground, told: Told) -> None:
    publisher, records = published(ground, 4)
    _foreign(ground, partition)
    ground.settle()
    records += [publish(ground, publisher, n) for n in range(5, 8)]
    assert (False in told.foretold) == (partition > 0), "the first partition is the one that is asked"
    check(ground, records)


def test_a_topic_that_is_recreated(ground: Ground) -> None:
    """Its offsets begin again: Kafka refuses the producer, or the ranges are the new ones."""
    fencing = ground.take_over()
    for n in range(1, 4):
        publish(ground, fencing.publisher, n)
        ground.settle()
    delete_topic(ground.bootstrap, ground.table)
    ground.topics().ensure(ground.wanted())
    records = []
    for n in range(4, 8):
        try:
            records.append(publish(ground, fencing.publisher, n))
        except TwofoldError:
            fencing = ground.take_over()
            records.append(publish(ground, fencing.publisher, n))
    rows = ground.read(ground.table, "read_committed")
    for record in records:
        for r in record.ranges:
            found = [value for p, at, value in rows if p == r.partition and r.first <= at <= r.last]
            assert [value.split(".")[0] for value in found] == [str(record.sequence)] * r.count


def test_a_wrong_forecast_is_aborted_and_written_again(ground: Ground, told: Told) -> None:
    """In a partition that is not asked: only the delivery reports tell."""
    publisher, records = published(ground, 4)
    publisher._forecast._next[ground.table, PARTITIONS - 1] += 1
    records.append(publish(ground, publisher, 5))
    assert told.foretold[-1] is False
    records += [publish(ground, publisher, n) for n in range(6, 9)]
    assert told.foretold.count(False) == 1, "after a miss it waits"
    check(ground, records)


def test_an_abort_by_timeout(ground: Ground, told: Told) -> None:
    ground.options["transaction_timeout_ms"] = 3_000
    publisher, records = published(ground, 3)
    _timed_out(ground, publisher)
    records += [publish(ground, publisher, n) for n in range(4, 7)]
    check(ground, records)


def _ended_everywhere(ground: Ground, publisher: Publisher) -> bool:
    """Whether the last commit's marker is among the commit records, where nothing stays open."""
    last = read(ground.bootstrap, ground.names.commits, "read_committed")[-1][1]
    return publisher._check.stable_offset(ground.names.commits, 0) == last + 2


def test_a_batch_beside_an_open_transaction_is_foretold(ground: Ground, told: Told) -> None:
    """It hides whether the last marker is there, in all partitions of rows."""
    publisher, records = published(ground, 2)
    ground.open(publisher, 0, ground.rows(*(f"9.{k}" for k in range(2 * PARTITIONS))))
    before = len(told.foretold)
    for n in range(3, 9):
        records.append(publish(ground, publisher, n))
        eventually(lambda: _ended_everywhere(ground, publisher))
    assert told.foretold[before:] == [True] * 6
    prepared = publisher.commit_prepared(0, TransactionRecords(commit(9, "prepared"), progress(9)))
    assert prepared is not None
    records.append(prepared)
    eventually(lambda: _ended_everywhere(ground, publisher))
    records.append(publish(ground, publisher, 10))
    assert told.foretold[-1], "the marker of the one that was open is counted"
    check(ground, records)


def test_kafka_aborts_an_open_transaction_beside_which_a_batch_is_foretold(ground: Ground, told: Told) -> None:
    ground.options["transaction_timeout_ms"] = 3_000
    publisher, records = published(ground, 2)
    ground.open(publisher, 0, ground.rows("dead"))
    records.append(publish(ground, publisher, 3))
    eventually(lambda: _ended_everywhere(ground, publisher))
    opened = publisher._pool[0].deliveries.ranges()[0]
    eventually(lambda: publisher._check.stable_offset(ground.table, opened.partition) > opened.last + 2)
    records.append(publish(ground, publisher, 4))
    assert told.foretold[-1] is False, "its marker is where the batch's first row was foretold"
    check(ground, records)


def test_a_large_batch_waits_for_its_offsets(ground: Ground, told: Told) -> None:
    publisher = ground.take_over().publisher
    publish(ground, publisher, 1)
    ground.settle()
    batch = RowBatch()
    batch.lists(ground.table, PARTITIONS)[0].extend({"key": b"k", "value": b"2.x"} for _ in range(RECORDS_MAX + 1))
    publisher.produce(batch)
    before = len(told.foretold)
    record = publisher.commit_main(TransactionRecords(commit(2), progress(2)))
    assert record is not None
    assert record.rows == RECORDS_MAX + 1
    assert len(told.foretold) == before


@pytest.mark.parametrize("place", ["before_abort", "after_abort", "after_commit_record:6", "before_commit:5"])
def test_killed_between_a_wrong_forecast_and_the_commit(ground: Ground, registry: Any, place: str) -> None:
    environment = {**os.environ, "TWOFOLD_FAILPOINT": place, "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, str(SCRIPT), ground.bootstrap, registry.url, ground.names.prefix]
    done = subprocess.run(command, env=environment, timeout=60, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    recovered = ground.take_over().recovered
    assert recovered.progress is not None
    assert recovered.progress.sequence == 4
    expected = sorted(f"{n}.{k}" for n in range(1, 5) for k in range(2 * PARTITIONS))
    eventually(lambda: ground.committed() == expected)
    assert len(read(ground.bootstrap, ground.names.commits, "read_committed")) == 4
