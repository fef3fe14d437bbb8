"""What a producer asks Kafka when a batch has rows of topics that it has not written to before.
librdkafka is real, and so is its own imitation of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from twofold.kafka.client import KafkaSettings
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.row_batch import RowBatch
from twofold.kafka.watch import Watch


class Asking:
    """librdkafka's producer, with what was asked of the metadata."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.asked: list[str | None] = []

    def list_topics(self, topic: str | None, timeout_s: float) -> object:
        self.asked.append(topic)
        return self._client.list_topics(topic, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.fixture
def producer() -> Iterator[TransactionalProducer]:
    settings = KafkaSettings({"bootstrap.servers": "none", "test.mock.num.brokers": 3, "log_level": 3})
    with closing(Watch()) as watch:
        made = TransactionalProducer("bank.main", settings, watch)
        made.init()
        yield made
        made.destroy()


@pytest.fixture
def other(producer: TransactionalProducer) -> Producer:
    """Another program's client of the cluster, whose questions create topics."""
    brokers = cast("Any", producer._producer).list_topics(timeout=10).brokers.values()
    return Producer({"bootstrap.servers": ",".join(f"{each.host}:{each.port}" for each in brokers)})


def test_a_topic_is_not_created_by_the_question_for_it(producer: TransactionalProducer, other: Producer) -> None:
    producer._ask_for_leaders("gone")
    assert "gone" not in other.list_topics(timeout=10).topics
    other.list_topics("gone", 10)
    assert "gone" in other.list_topics(timeout=10).topics


@pytest.mark.parametrize(("topics", "asked"), [(3, ["t0", "t1", "t2"]), (300, [None])])
def test_leaders_of_many_new_topics_are_asked_for_at_once(
    producer: TransactionalProducer, other: Producer, topics: int, asked: list[str | None]
) -> None:
    for n in range(topics):
        other.list_topics(f"t{n}", 10)
    client = Asking(producer._producer)
    producer._producer = cast("Any", client)
    for rows in (1, 2):
        batch = RowBatch()
        for n in range(topics):
            for records in batch.lists(f"t{n}", 4):
                records.extend({"key": b"k", "value": b"v"} for _ in range(rows))
        producer.begin()
        producer.produce_batch(batch)
        producer.flush()
        assert [(w.count, w.last - w.first + 1) for w in producer.deliveries.ranges()] == [(rows, rows)] * topics * 4
        producer.commit()
        assert client.asked == asked, "known topics are not asked for again"
