"""The events of an outbox, as its table has them and as a read_committed consumer finds them: these
are equal, or the figures of a drain mean nothing.

Of each topic and key the sequence is compared: values, headers and their order. The ids of the
table's rows are in the order of the events.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from typing import cast

import psycopg
from confluent_kafka import KafkaError, KafkaException

from bench.ground import Committed, Ground
from bench.systems import Run, System

_Key = tuple[str, bytes | None]
_Headers = Iterable[tuple[str, bytes | None]]


class _Sequences:
    """A hash of each key's events, and the first of them."""

    def __init__(self) -> None:
        self._of: dict[_Key, hashlib._Hash] = defaultdict(hashlib.sha256)
        self._first: dict[_Key, str] = {}

    def add(self, topic: str, key: bytes | None, value: bytes | None, headers: _Headers) -> None:
        event = repr((value, sorted(headers)))
        self._of[topic, key].update(event.encode())
        self._first.setdefault((topic, key), event)

    def digests(self) -> dict[_Key, tuple[str, str]]:
        return {key: (sequence.hexdigest(), self._first[key]) for key, sequence in self._of.items()}


def compare(ground: Ground, system: System, run: Run) -> None:
    """Raise unless the topics have what the table has."""
    wanted, found = _of_table(run), _of_topics(ground, run)
    if different := [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]:
        raise RuntimeError(
            f"{system.name}: the events of {len(different)} keys differ from the table, as {different[0]}: {found.get(different[0])}, not {wanted.get(different[0])}"
        )


def _of_table(run: Run) -> dict[_Key, tuple[str, str]]:
    sequences, heads = _Sequences(), dict(zip(run.events, run.topics, strict=True))
    with psycopg.connect(run.dsn) as connection, connection.cursor("events") as cursor:
        cursor.itersize = 10_000
        cursor.execute(f"SELECT aggregatetype, aggregateid, payload::text, id::text, type FROM {run.tables[0]} ORDER BY id".encode())  # fmt: skip
        for topic, key, payload, id_, type_ in cursor:
            headers = (("id", id_.encode()), ("type", type_.encode()))
            sequences.add(heads[topic], key.encode(), payload.encode(), headers)
    return sequences.digests()


def _of_topics(ground: Ground, run: Run) -> dict[_Key, tuple[str, str]]:
    sequences, consumer = _Sequences(), Committed(ground.bootstrap)
    try:
        places = [place for topic in run.topics for place in consumer.partitions(topic)]
        consumer.consumer.assign(places)
        unread = len(places)
        while unread:
            for message in consumer.consumer.consume(10_000, 0.2):
                if (error := message.error()) is None:
                    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
                    sequences.add(message.topic() or "", message.key(), message.value(), headers)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread -= 1
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return sequences.digests()
