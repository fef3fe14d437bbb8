"""Reads a connector's topics as any consumer would: read_committed, decoded by the registry's
schemas alone. No code of the product.
"""

from __future__ import annotations

import io
import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, TopicPartition

OF_NO_TABLE = ("commits", "progress", "prepared", "messages")
PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a table's topic. The key is the bytes that it is: Kafka knows no more of it."""

    topic: str
    key: bytes | None
    value: Any
    columns: tuple[str, ...]
    """What the schema's rows have, whether this record has a row or not."""


@dataclass(frozen=True, slots=True)
class _Schema:
    parsed: Any
    columns: tuple[str, ...]


class Topics:
    """Of one prefix."""

    def __init__(self, bootstrap: str, registry_url: str, prefix: str) -> None:
        self._registry_url = registry_url
        self._prefix = prefix
        self._schemas: dict[int, _Schema] = {}
        self._bootstrap = bootstrap

    def records(self) -> Iterator[Record]:
        """All records of tables that a reader gets now; those of a partition in their order."""
        reader = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "suites",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            others = {f"{self._prefix}.{name}" for name in OF_NO_TABLE}
            known = reader.list_topics(timeout=30).topics
            names = [name for name in known if name.startswith(f"{self._prefix}.") and name not in others]
            left = {(name, partition) for name in names for partition in known[name].partitions}
            reader.assign([TopicPartition(name, partition, 0) for name, partition in left])
            yield from self._read(reader, left)
        finally:
            reader.close()

    def _read(self, reader: Consumer, left: set[tuple[str, int]]) -> Iterator[Record]:
        deadline = time.monotonic() + PATIENCE_S
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not read to the end: {sorted(left)[:10]}")
            for message in reader.consume(5000, 0.2):
                deadline = time.monotonic() + PATIENCE_S
                topic, error = message.topic() or "", message.error()
                if error is None:
                    value, columns = self._decode(message.value())
                    yield Record(topic, message.key(), value, columns)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((topic, message.partition() or 0))
                else:
                    raise AssertionError(str(error))

    def _decode(self, data: bytes | None) -> tuple[Any, tuple[str, ...]]:
        if data is None:
            return None, ()
        number = int.from_bytes(data[1:5], "big")
        if number not in self._schemas:
            with urllib.request.urlopen(f"{self._registry_url}/schemas/ids/{number}", timeout=20) as answer:
                schema = json.loads(json.load(answer)["schema"])
            self._schemas[number] = _Schema(fastavro.parse_schema(schema), _columns(schema))
        known = self._schemas[number]
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), known.parsed, None), known.columns


def _columns(envelope: dict[str, Any]) -> tuple[str, ...]:
    """The fields of `before`, whose type is a union of null and the row's record."""
    before = next(field for field in envelope["fields"] if field["name"] == "before")
    row = next(branch for branch in before["type"] if isinstance(branch, dict))
    return tuple(field.get("postgres.name", field["name"]) for field in row["fields"])
