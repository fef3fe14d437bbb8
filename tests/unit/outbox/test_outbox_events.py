"""How an outbox's events, which have headers, are handed to librdkafka: one by one, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from twofold.errors import Refused
from twofold.kafka.deliveries import Deliveries
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.watch import Watch

RECORDS = [{"key": b"k", "value": b"%d" % n, "headers": [("id", b"%d" % n), ("none", None)]} for n in range(1200)]


class Client:
    """librdkafka's producer: its queue has room for some records, until it is polled or flushed."""

    def __init__(self, room: int = 10**9, error: KafkaError | None = None) -> None:
        self.taken: list[dict[str, Any]] = []
        self.polled = 0
        self._room = room
        self._error = error

    def produce(self, topic: str, *, on_delivery: Callable[..., None] | None, **record: Any) -> None:
        if self._error is not None and len(self.taken) == 7:
            raise KafkaException(self._error)
        if len(self.taken) - self.polled >= self._room:
            raise BufferError("the queue is full")
        self.taken.append({"topic": topic, "reported": on_delivery is not None, **record})

    def poll(self, wait_s: float) -> int:
        self.polled = len(self.taken)
        return 0

    def flush(self, wait_s: float) -> int:
        return self.poll(wait_s)


Maker = Callable[[Client], TransactionalProducer]


@pytest.fixture
def producer() -> Iterator[Maker]:
    watch = Watch()

    def make(client: Client) -> TransactionalProducer:
        made = object.__new__(TransactionalProducer)
        made.transactional_id, made.in_transaction = "bank.main", True
        made._timeout_s, made._watch, made.deliveries = 5.0, watch, Deliveries()
        made._bootstrap = "localhost:9092"
        made._known_topics, made._producer = {"t"}, cast("Any", client)
        return made

    yield make
    watch.close()


@pytest.mark.parametrize("room", [1, 7, 10**9])
@pytest.mark.parametrize("every", [True, False])
def test_outbox_events_are_handed_over_once_in_order_with_their_headers(
    producer: Maker, room: int, every: bool
) -> None:
    client = Client(room)
    producer(client).produce("t", 2, RECORDS, every=every)
    reported = [True if every else n in {0, len(RECORDS) - 1} for n in range(len(RECORDS))]
    assert client.taken == [
        {"topic": "t", "partition": 2, "reported": r, **record} for r, record in zip(reported, RECORDS, strict=True)
    ]
    assert client.polled == len(RECORDS)
    assert all("callback" not in record for record in RECORDS)


def test_an_outbox_event_that_is_too_large_is_refused_with_its_topic(producer: Maker) -> None:
    client = Client(error=KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    with pytest.raises(Refused, match=r"a record of t \[2\] is too large for Kafka: it has \d+ bytes"):
        producer(client).produce("t", 2, RECORDS)
    assert len(client.taken) == 7
