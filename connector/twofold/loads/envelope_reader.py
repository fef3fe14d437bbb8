"""Reads of an encoded row what the merger needs: its transaction, its op, and whether a value was
left out. Nothing else is decoded.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import fastavro

from twofold_avro import wire
from twofold_avro.records import without_logical_types


class Envelopes(Protocol):
    """Reads the fields of rows that the merger needs."""

    def read(self, value: bytes) -> tuple[int, str, bool]:
        """Return the row's transaction, its op, and whether an unchanged value was left out."""
        ...


class EnvelopeReader:
    """Knows the schemas by their ids."""

    def __init__(self, schema_of: Callable[[int], str]) -> None:
        self._schemas = cache(lambda schema_id: _partial_schemas(json.loads(schema_of(schema_id))))

    def read(self, value: bytes) -> tuple[int, str, bool]:
        """Return the row's transaction, its op, and whether an unchanged value was left out."""
        schema_id, body = wire.unframe(value)
        envelope = fastavro.schemaless_reader(io.BytesIO(body), *self._schemas(schema_id))
        assert isinstance(envelope, dict)
        return envelope["source"]["txId"], envelope["op"], bool(envelope["unchanged"])


def _partial_schemas(envelope: Any) -> tuple[Any, Any]:
    """Return the writer's schema, and a reader's schema with only the needed fields."""
    whole = without_logical_types(envelope)
    fields = {field["name"]: field for field in whole["fields"]}
    source = fields["source"]["type"]
    partial_source = {**source, "fields": [field for field in source["fields"] if field["name"] == "txId"]}
    needed = [{"name": "source", "type": partial_source}, fields["op"], fields["unchanged"]]
    return fastavro.parse_schema(whole), fastavro.parse_schema({**whole, "fields": needed})
