"""Decodes the records of the bookkeeping: the one place where bytes that somebody wrote into Kafka
become values of ours.

Whatever the bytes are, the result is a value or `UnreadableRecord`, with topic, partition and
offset.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from confluent_kafka import Message

from twofold.errors import RESET_REPAIR, SetupError, UnreadableRecord
from twofold.kafka.schema_registry import NotRegistered, Registry
from twofold_avro.errors import MalformedRecord, NotFramed
from twofold_avro.records import Record, RecordDecoder

_R = TypeVar("_R", bound=Record)
COMMANDS: Final = ("start", "pause", "resume", "cancel")
"""The names of a person's commands about a table's load."""


class RecordPlace(NamedTuple):
    """The place of a record in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic} [{self.partition}] at offset {self.offset}"


def place_of(message: Message) -> RecordPlace:
    offset = message.offset()
    return RecordPlace(message.topic() or "", message.partition() or 0, -1 if offset is None else offset)


class Decoder:
    """A decoder of the bookkeeping's records, including those of other versions."""

    def __init__(self, registry: Registry) -> None:
        self._records = RecordDecoder(registry.schema)

    def decode(self, kind: type[_R], message: bytes, place: RecordPlace) -> _R:
        try:
            return self._records.decode(kind, message)
        except (MalformedRecord, NotFramed) as error:
            raise unreadable(place, str(error)) from error
        except NotRegistered as error:
            raise SetupError(
                f"{error}; it is that of the record in {place}; remedy: restore the registry with its former ids, or start the connector over that wrote it: {RESET_REPAIR}"
            ) from error
        except SetupError as error:  # the registry's, about the schema
            raise SetupError(f"{error}; it is that of the record in {place}") from error

    def decode_message(self, kind: type[_R], message: Message) -> _R:
        return self.decode(kind, message.value() or b"", place_of(message))


def read_text(value: bytes, place: RecordPlace) -> str:
    """Read a record, or a record's key, that is a text."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise unreadable(place, "it is no text in UTF-8") from error


def read_command(value: bytes, place: RecordPlace) -> str:
    """Read a person's command."""
    command = read_text(value, place)
    if command not in COMMANDS:
        raise unreadable(place, f"it is none of the commands {', '.join(COMMANDS)}")
    return command


def unreadable(place: RecordPlace, why: str) -> UnreadableRecord:
    """Make the refusal for a record that no connector wrote."""
    return UnreadableRecord(
        f"the record in {place} cannot be read: {why}",
        at_stake="the connector's state is in these topics, and somebody else writes to them, or a disk has changed them: rows could be lost or repeated",
        repair=f"take the right to write to {place.topic} from everybody else, and restore the topics of its prefix from before that record; or start over: {RESET_REPAIR}",
    )
