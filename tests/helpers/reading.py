"""Reads topics to their end as any consumer would, and decodes by the registry's schemas alone. No
code of the product.
"""

from __future__ import annotations

import io
import json
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

PATIENCE_S = 120.0


def make_consumer(bootstrap: str, isolation: str = "read_committed", wait_ms: int = 100) -> Consumer:
    """`wait_ms`: how long a fetch waits for records. The end of a partition is told after it; a
    consumer that stays open asks the broker this often, read or not.
    """
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "a-test",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": wait_ms,
            "log_level": 0,
        }
    )


def topics_of(reader: Consumer, prefix: str) -> list[str]:
    return sorted(name for name in reader.list_topics(timeout=30).topics if name.startswith(f"{prefix}."))


def read_to_end(
    bootstrap: str, topics: Iterable[str], *, isolation: str = "read_committed", patience_s: float = PATIENCE_S
) -> Iterator[Message]:
    """All that a reader gets now; those of a partition in their order. TimeoutError: nothing came
    for so long.
    """
    reader = make_consumer(bootstrap, isolation, wait_ms=10)
    try:
        known = reader.list_topics(timeout=30).topics
        left = {(topic, partition) for topic in topics for partition in known[topic].partitions}
        reader.assign([TopicPartition(*place, 0) for place in sorted(left)])
        deadline = time.monotonic() + patience_s
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not read to the end: {sorted(left)[:10]}")
            for message in reader.consume(5000, 0.2):
                deadline = time.monotonic() + patience_s
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic() or "", message.partition() or 0))
    finally:
        reader.close()


def ask_registry(url: str, path: str, method: str = "GET", body: Mapping[str, object] | None = None) -> Any:
    request = urllib.request.Request(
        f"{url}/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class Schemas:
    """Those of one registry, by their ids."""

    def __init__(self, registry_url: str) -> None:
        self._url = registry_url
        self._known: dict[bytes, Any] = {}

    def find(self, data: bytes) -> Any:
        """The parsed schema that a value in Confluent's wire format was written with."""
        number = data[1:5]
        if number not in self._known:
            found = ask_registry(self._url, f"schemas/ids/{int.from_bytes(number, 'big')}")
            self._known[number] = fastavro.parse_schema(json.loads(found["schema"]))
        return self._known[number]

    def decode(self, data: bytes) -> Any:
        """Decode a value in Confluent's wire format."""
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), self.find(data), None)
