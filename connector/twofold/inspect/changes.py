"""Records of a connector's topics as values that commands print, and that JSON has.

Columns have PostgreSQL's names. A value that JSON lacks is a text: decimals, times, uuids, and
bytes in PostgreSQL's hex form.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import cache
from math import isfinite
from typing import Any

import fastavro

from twofold.errors import SetupError
from twofold.kafka.decoding import RecordPlace, unreadable
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry
from twofold_avro import wire
from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.names import postgres_name


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    op: str
    """The envelope's op; `tombstone` and `event` have no envelope."""
    table: str | None
    key: Any
    value: Any
    """The envelope, or an outbox event's payload."""
    event: str = "change"


class ChangeReader:
    """A reader of records, by the registry's schemas."""

    def __init__(self, registry: Registry, names: Names) -> None:
        self._values, self._names = RowValues(registry.schema), names

    def read(self, place: RecordPlace, key: bytes | None, data: bytes | None) -> TopicChange:
        """Return the record's change. UnreadableRecord: no connector wrote the record."""
        topic, partition, offset = place
        is_event = topic.startswith(self._names.events)
        key_is_text = is_event or topic == self._names.messages
        value = self._values_of(place, data, is_text=is_event)
        if not (is_event or value is None or _is_envelope(value)):
            raise unreadable(place, "its schema is that of another program")
        source = {} if is_event or value is None else value["source"]
        return TopicChange(
            topic,
            partition,
            offset,
            op="event" if is_event else "tombstone" if value is None else value["op"],
            table=f"{source.get('schema')}.{source['table']}" if source.get("table") else None,
            key=self._values_of(place, key, is_text=key_is_text),
            value=value,
        )

    def _values_of(self, place: RecordPlace, data: bytes | None, *, is_text: bool) -> Any:
        """Return the content of a key or a value. An outbox event's may be text or Avro."""
        if data is None:
            return None
        try:
            return self._values.read(data)
        except (MalformedRecord, NotFramed) as error:
            if is_text:
                return data.decode(errors="backslashreplace")
            raise unreadable(place, str(error)) from error
        except SetupError as error:
            raise SetupError(f"{error}; it is that of the record in {place}") from error


def _is_envelope(value: Any) -> bool:
    """Whether the value has every field of a change that is shown."""
    if not (isinstance(value, dict) and isinstance(value.get("source"), dict) and "op" in value):
        return False
    if value["op"] == "m":
        return "message" in value
    special = value.get("special")
    is_of_row = {"before", "after"} <= value.keys() and isinstance(value.get("unchanged"), list)
    return is_of_row and isinstance(special, list) and all(map(_is_special, special))


def _is_special(value: Any) -> bool:
    return isinstance(value, dict) and {"row", "column", "text"} <= value.keys()


class RowValues:
    """Reads framed records, whatever version of the schema wrote them."""

    def __init__(self, schema_of: Callable[[int], str]) -> None:
        self._schema_of = cache(schema_of)
        self._parse = cache(lambda text: fastavro.parse_schema(json.loads(text)))

    def read(self, message: bytes) -> Any:
        """Return the record as JSON values. NotFramed or MalformedRecord: it is none."""
        schema_id, body = wire.unframe(message)
        text = self._schema_of(schema_id)
        try:
            return _as_json(fastavro.schemaless_reader(io.BytesIO(body), self._parse(text), None))
        except Exception as error:  # fastavro's are of a dozen classes, EOFError and IndexError among them
            raise MalformedRecord(f"its bytes contradict schema {schema_id} ({type(error).__name__})") from error


def _as_json(value: Any) -> Any:
    match value:
        case dict():
            return {postgres_name(name): _as_json(each) for name, each in value.items()}
        case list():
            return [_as_json(each) for each in value]
        case bytes():
            return "\\x" + value.hex()
        case datetime() | date() | time():
            return value.isoformat()
    is_plain = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
    return value if is_plain else str(value)
