"""Reads a connector's topics as any consumer would: read_committed, decoded by the registry's
schemas alone. No code of the product.
"""

from __future__ import annotations

import io
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import fastavro
from confluent_kafka import Consumer, KafkaError, TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic, decoded."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    written_ms: int = 0
    """When its producer wrote it."""
    headers: Headers = ()

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset


Decode = Callable[[bytes | None], Any]
_CHECKED = ("op", "before", "after", "unchanged", "transaction", "message")


def avro(registry: str) -> Decode:
    """Confluent's wire format, schemas by their id; what has no frame is text."""
    schemas: dict[int, Any] = {}

    def decode(data: bytes | None) -> Any:
        if data is None or not data.startswith(b"\0"):
            return None if data is None else data.decode()
        number = int.from_bytes(data[1:5], "big")
        if number not in schemas:
            with urllib.request.urlopen(f"{registry}/schemas/ids/{number}", timeout=20) as answer:
                schemas[number] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        return _slim(fastavro.schemaless_reader(io.BytesIO(data[5:]), schemas[number], None))

    return decode


def _slim(value: Any) -> Any:
    """Of an envelope what is checked; an hour's rows are some millions, and equal strings of theirs
    are kept once.
    """
    if not isinstance(value, dict) or "source" not in value:
        return value
    kept = {name: value[name] for name in _CHECKED if name in value}
    for name in ("before", "after", "transaction"):
        if kept.get(name):
            kept[name] = {k: sys.intern(v) if isinstance(v, str) else v for k, v in kept[name].items()}
    return kept


def consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos-checker",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )


def topics_of(reader: Consumer, prefix: str) -> list[str]:
    return sorted(name for name in reader.list_topics(timeout=30).topics if name.startswith(f"{prefix}."))


def read_all(bootstrap: str, decode: Decode, topics: Iterable[str], patience_s: float = 120) -> list[Record]:
    """All that a read_committed reader gets now, in the order of place; an error if nothing comes
    for so long.
    """
    reader = consumer(bootstrap)
    try:
        known = reader.list_topics(timeout=30).topics
        places = [TopicPartition(t, p, 0) for t in topics for p in known[t].partitions]
        reader.assign(places)
        found: list[Record] = []
        ended: set[tuple[str, int]] = set()
        deadline = time.monotonic() + patience_s
        while len(ended) < len(places):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not read to the end: {sorted({(p.topic, p.partition) for p in places} - ended)}")
            for message in reader.consume(5000, 0.2):
                deadline = time.monotonic() + patience_s
                place, error = (message.topic() or "", message.partition() or 0), message.error()
                if error is None:
                    key, value = decode(message.key()), decode(message.value())
                    headers = cast("Headers", tuple(message.headers() or ()))
                    found.append(Record(*place, message.offset() or 0, key, value, message.timestamp()[1], headers))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(place)
        return sorted(found, key=lambda record: record.place)
    finally:
        reader.close()
