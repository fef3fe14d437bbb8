"""A consumer's view: a thread that reads the tables' topics as any program would."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from typing import Any

import fastavro
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from twofold.demo.teller import StoryFailed
from twofold_avro.wire import unframe
from twofold_common.http_client import open_url

POLL_S = 0.1


def topics_of(bootstrap: str) -> set[str]:
    """Return the topics that exist."""
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


class Watcher:
    """Counts the rows of each transaction, and keeps each account's latest balance."""

    def __init__(self, *, bootstrap: str, registry: str, topics: list[str], isolation: str) -> None:
        self._registry = registry
        self._topics = topics
        self._schemas: dict[int, Any] = {}
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._rows: Counter[str | None] = Counter()
        self._tables: Counter[str] = Counter()
        self.balances: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"demo-{isolation}",
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"watcher-{isolation}", daemon=True)
        self._thread.start()

    def rows_of(self, gid: str) -> int:
        """Return how many rows of the prepared transaction it has seen."""
        self._check()
        return self._rows[gid]

    def rows_in(self, table: str) -> int:
        """Return how many rows of the table it has seen."""
        self._check()
        return self._tables[table]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise StoryFailed(f"a consumer could not read: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            metadata = self._consumer.list_topics(timeout=10).topics
            self._consumer.assign([TopicPartition(t, p, 0) for t in self._topics for p in metadata[t].partitions])
            while not self._stop.is_set():
                message = self._consumer.poll(POLL_S)
                if message is None:
                    continue
                if error := message.error():
                    raise StoryFailed(f"Kafka: {error.str()}")
                value = message.value()
                if value is not None:
                    self._see(self._decode(value))
        except BaseException as error:  # KafkaError is not an Exception; the story's thread raises it again
            self._failure = error

    def _see(self, envelope: dict[str, Any]) -> None:
        source, after = envelope["source"], envelope["after"]
        self._rows[source["gid"]] += 1
        self._tables[source["table"]] += 1
        if source["table"] == "accounts" and after is not None:
            self.balances[after["id"]] = after["balance"]

    def _decode(self, message: bytes) -> dict[str, Any]:
        schema_id, body = unframe(message)
        if schema_id not in self._schemas:
            with open_url(f"{self._registry}/schemas/ids/{schema_id}", timeout_s=10) as answer:
                self._schemas[schema_id] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        envelope = fastavro.schemaless_reader(io.BytesIO(body), self._schemas[schema_id], None)
        assert isinstance(envelope, dict)
        return envelope
