"""Rows that are sent: who waits for them, and when they are there."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException

from twofold.errors import Fenced, RunEnded, Unreachable
from twofold.kafka import publisher
from twofold.kafka.deliveries import Deliveries
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.publisher import SentRows
from twofold.kafka.row_batch import RowBatch
from twofold.kafka.watch import Watch
from twofold_avro.records import Range


def producer(partition: int, *, acknowledged: bool = False) -> Any:
    deliveries = MagicMock(
        wrote_to=lambda topic, other: (topic, other) == ("t", partition), all_acknowledged=acknowledged
    )
    return MagicMock(deliveries=deliveries, is_acknowledged=lambda: acknowledged)


def rows_in(*partitions: int) -> RowBatch:
    batch = RowBatch()
    for partition in partitions:
        batch.lists("t", 3)[partition].append({"key": b"", "value": b""})
    return batch


def test_only_what_follows_rows_in_their_partition_waits_for_them() -> None:
    sent, first, second = SentRows(), producer(0, acknowledged=True), producer(1)
    assert sent.beside(rows_in(0, 1, 2)) == []
    sent.add(first)
    sent.add(second)
    assert sent.beside(rows_in(2)) == []
    assert sent.beside(rows_in(1, 2)) == [second]
    assert sent.beside(rows_in(0, 1)) == [first, second]
    sent.wait_for(first)
    assert first.flush.called
    assert (sent.are_of(first), sent.are_of(second)) == (False, True)


def test_after_a_while_they_are_waited_for_since_only_a_flush_notices_that_they_cannot_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, late = SentRows(), producer(0)
    sent.add(late)
    assert not sent.is_due(late)
    monkeypatch.setattr(publisher, "_PATIENCE_S", -1)
    assert sent.is_due(late)
    with pytest.raises(RunEnded, match="not every row"):
        sent.wait_for(late)


def test_rows_that_are_on_their_way_hide_nothing_of_those_that_are_acknowledged() -> None:
    deliveries, other = Deliveries(), Range("t", 0, 5, 5, 1)
    deliveries.begins("t", 0)
    deliveries.handed_over("t", 0, [{"key": None, "value": b"v"}])
    assert not deliveries.began_before(other)
    deliveries.delivered(None, MagicMock(topic=lambda: "t", partition=lambda: 0, offset=lambda: 4))
    assert deliveries.began_before(other)


def test_a_fence_that_is_met_while_nobody_waits_is_told_as_one() -> None:
    producer = TransactionalProducer.__new__(TransactionalProducer)
    producer.transactional_id = "shop.prepared.00"
    fenced = KafkaException(KafkaError(KafkaError._FENCED))
    producer._producer = MagicMock(poll=MagicMock(side_effect=fenced))
    with pytest.raises(Fenced):
        producer.is_acknowledged()


def test_a_fence_that_is_met_between_two_tries_of_a_request_is_told_as_one_and_ends_the_producer() -> None:
    """Seen under chaos: an abort was tried again, and the poll before it found the fence."""
    producer = TransactionalProducer.__new__(TransactionalProducer)
    producer.transactional_id, producer._timeout_s, producer._watch = "shop.main", 5.0, Watch()
    fenced = KafkaException(KafkaError(KafkaError._FENCED, fatal=True))
    tried = MagicMock(side_effect=KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, retriable=True)))
    producer._producer = MagicMock(poll=MagicMock(side_effect=fenced))
    with pytest.raises(Fenced):
        producer._call("abort_transaction", tried)
    assert tried.call_count == 1
    assert vars(producer)["_producer"] is None


def test_an_end_is_never_resumed_without_time_since_librdkafka_would_abort_the_process() -> None:
    """Found by late requests: it forgets what it resumes, and the broker's answer meets no call."""
    producer = TransactionalProducer.__new__(TransactionalProducer)
    producer.transactional_id, producer._timeout_s, producer._watch = "shop.main", 0.05, Watch()
    client, given = MagicMock(), list[float]()

    def commit(within_s: float) -> None:
        given.append(within_s)
        time.sleep(0.02)
        raise KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "the cause", retriable=True))

    producer._producer = client
    with pytest.raises(Unreachable, match="the cause"):
        producer._call("commit_transaction", commit)
    assert given
    assert min(given) >= 1.0
    assert vars(producer)["_producer"] is None
