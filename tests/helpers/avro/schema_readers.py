"""Consumers that know one version of a table's schema and read everything with it, as one does that
was built when that version was the latest.
"""

from __future__ import annotations

import io
import json
from typing import Any, Self

import fastavro
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from helpers.connector.topics import Reader
from helpers.reading import ask_registry


class Subject:
    """The schemas of a topic's values in the registry."""

    def __init__(self, registry_url: str, topic: str) -> None:
        self._url = registry_url
        self._topic = topic

    def versions(self) -> list[int]:
        found: list[int] = ask_registry(self._url, f"subjects/{self._topic}-value/versions")
        return found

    def schema(self, version: int) -> str:
        text: str = ask_registry(self._url, f"subjects/{self._topic}-value/versions/{version}")["schema"]
        return text

    def allow(self, mode: str, part: str = "value") -> None:
        """Set its compatibility, or that of the keys' subject."""
        ask_registry(self._url, f"config/{self._topic}-{part}", "PUT", {"compatibility": mode})

    def accepts(self, schema: str) -> bool:
        """Whether it is compatible with the latest version."""
        path = f"compatibility/subjects/{self._topic}-value/versions/latest"
        return bool(ask_registry(self._url, path, "POST", {"schema": schema})["is_compatible"])


class SchemaReader(Reader):
    """Reads envelopes into the schema it was given: with fastavro and with Confluent's
    deserializer, which must agree.
    """

    def __init__(self, bootstrap: str, registry_url: str, schema: str) -> None:
        super().__init__(bootstrap, registry_url)
        self._known = fastavro.parse_schema(json.loads(schema))
        # Without a timeout it waits for ever for an answer that got lost. Its default strategy
        # would ask for an association first, at each call.
        self._client = SchemaRegistryClient({"url": registry_url, "timeout": 10})
        self._confluents = AvroDeserializer(
            self._client, schema, conf={"subject.name.strategy": topic_subject_name_strategy}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def decode(self, data: bytes | None) -> Any:
        if data is None or not data.startswith(b"\0"):
            return super().decode(data)
        writers = self._schemas.find(data)
        if not writers["name"].endswith(".Envelope"):
            return super().decode(data)
        read = fastavro.schemaless_reader(io.BytesIO(data[5:]), writers, self._known)
        assert self._confluents(data, SerializationContext("any", MessageField.VALUE)) == read
        return read
