"""Records of a connector's topics as values that commands print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twofold.errors import SetupError
from twofold.kafka.decoding import RecordPlace, unreadable
from twofold.kafka.names import Names
from twofold.kafka.schema_registry import Registry
from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.row_values import RowValues


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
