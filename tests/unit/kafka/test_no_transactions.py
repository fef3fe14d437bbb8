"""A broker without transactions, imitated: a socket that answers ApiVersions and Metadata as a
broker of before Kafka 0.11 does, and knows no other request. librdkafka is real.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from twofold.errors import SetupError
from twofold.kafka.client import KafkaSettings
from twofold.kafka.producer import TransactionalProducer
from twofold.kafka.watch import Watch

METADATA, API_VERSIONS, INIT_PRODUCER_ID = 3, 18, 22
OLD = {0: (0, 2), 1: (0, 3), 2: (0, 1), METADATA: (0, 1), API_VERSIONS: (0, 0)}
"""Produce, Fetch, ListOffsets, Metadata, ApiVersions: the highest versions of Kafka 0.10.2."""


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class OldBroker:
    """Its address is `bootstrap`; `asked` has the keys of the requests that it got."""

    def __init__(self) -> None:
        self.asked: set[int] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self._port}"
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, struct.error), client, client.makefile("rb") as requests:
            while True:
                (size,) = struct.unpack(">i", requests.read(4))
                key, version, correlation = struct.unpack(">hhi", requests.read(size)[:8])
                self.asked.add(key)
                answer = struct.pack(">i", correlation) + self._answer(key, version)
                client.sendall(struct.pack(">i", len(answer)) + answer)

    def _answer(self, key: int, version: int) -> bytes:
        if key == API_VERSIONS:
            # 35 is UNSUPPORTED_VERSION: the client asks again with version 0
            versions = b"".join(struct.pack(">hhh", each, *OLD[each]) for each in OLD)
            return struct.pack(">hi", 35 if version else 0, len(OLD)) + versions
        assert key == METADATA, key
        broker = struct.pack(">i", 1) + text("127.0.0.1") + struct.pack(">i", self._port) + struct.pack(">h", -1)
        return struct.pack(">i", 1) + broker + struct.pack(">ii", 1, 0)

    def stop(self) -> None:
        for each in (self._listener, *self._clients):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def broker() -> Iterator[OldBroker]:
    made = OldBroker()
    yield made
    made.stop()


def test_an_imitated_broker_without_transactions_is_refused_with_the_features_name(broker: OldBroker) -> None:
    settings = KafkaSettings({"bootstrap.servers": broker.bootstrap}, call_timeout_s=30)
    with closing(Watch()) as watch, pytest.raises(SetupError) as refused:
        TransactionalProducer("old.main", settings, watch).init()
    assert "init_transactions failed" in str(refused.value)
    assert "Transactions not supported by any of the 1 connected broker(s)" in str(refused.value)
    assert "brokers with transactions (InitProducerId, AddPartitionsToTxn, EndTxn)" in str(refused.value)
    assert INIT_PRODUCER_ID not in broker.asked
