"""Brings a person's backfill commands to the running connector, as records in the progress topic.

A table's latest record counts; each has a key of its own. Commands do not go through PostgreSQL,
because a read-only role suffices there. They do not use a socket, because this way a command
reaches the present or the next instance. The Kafka transaction that executes a command also writes
its tombstone, and those of earlier ones: after a kill in between, the command is still there, and
so is one that came meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from twofold.errors import Unreachable
from twofold.kafka.client import PARTITION_EOF, KafkaSettings, sort_error, sorted_errors
from twofold.kafka.decoding import place_of, read_command
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.names import Names


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A table's latest command."""

    name: str
    keys: tuple[bytes, ...]
    """The keys of the command and of all that it overtakes: whoever executes it answers these."""
    starts: bool = False
    """The table is loaded from the beginning: the command says so, or one that it overtakes does.

    A cancel overtakes that as well.
    """

    @classmethod
    def behind(cls, earlier: PendingCommand | None, name: str, keys: tuple[bytes, ...]) -> PendingCommand:
        """Return a command that overtakes the earlier one, which nobody has executed."""
        starts = name == "start" or (name != "cancel" and earlier is not None and earlier.starts)
        return cls(name, keys, starts)


def send_command(settings: KafkaSettings, names: Names, topics: list[str], command: str) -> None:
    """Write the command for these topics; it is acknowledged when this returns."""
    ask_brokers(settings)
    keys = (names.command_key(topic, uuid.uuid4().hex) for topic in topics)
    write_outside(settings, names, [(key, command.encode()) for key in keys])


def write_outside(settings: KafkaSettings, names: Names, records: Iterable[tuple[bytes, bytes]]) -> None:
    """Write to the progress topic in no transaction: what a person or an ending run has to say."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    with sorted_errors(f"writing to {names.progress}"):
        producer = settings.secrets.open(Producer, settings.plain_producer())
        for key, value in records:
            producer.produce(names.progress, value, key, 0, on_delivery=delivered)
        left = producer.flush(settings.call_timeout_s)
    if errors:
        raise sort_error(errors[0], f"writing to {names.progress}")
    if left:
        raise Unreachable(
            f"Kafka did not acknowledge a record of {names.progress} within {settings.call_timeout_s:.0f} s; remedy: look into the brokers' logs, and run the command again"
        )


class BackfillCommands:
    """The commands that follow those which recovery has read. Used by one thread; never blocks."""

    def __init__(
        self, settings: KafkaSettings, names: Names, *, found: Mapping[str, PendingCommand], offset: int
    ) -> None:
        self._names = names
        self._unread = dict(found)
        self._unanswered = {topic: dict.fromkeys(command.keys) for topic, command in found.items()}
        with sorted_errors(f"following {names.progress}"):
            # Nobody waits for a command as recovery waits for a topic's end: an empty fetch may
            # take its default time.
            self._consumer = settings.secrets.open(Consumer, {**settings.consumer(), "fetch.wait.max.ms": 500})
            self._consumer.assign([TopicPartition(names.progress, 0, offset)])

    def read_new(self) -> dict[str, PendingCommand]:
        """Return the commands since the last call, by topic."""
        with sorted_errors(f"following {self._names.progress}"):
            for message in self._consumer.consume(500, 0):
                error = message.error()
                if error is None:
                    self._note(message)
                elif error.code() != PARTITION_EOF and not error.retriable():
                    raise sort_error(error, f"following {self._names.progress}")
        commands, self._unread = self._unread, {}
        return commands

    def _note(self, message: Message) -> None:
        key, value = message.key() or b"", message.value()
        if (topic := self._names.command_topic(key)) is None:
            return
        keys = self._unanswered.setdefault(topic, {})
        if value is None:
            keys.pop(key, None)
            return
        keys[key] = None
        self._unread[topic] = PendingCommand.behind(
            self._unread.get(topic), read_command(value, place_of(message)), tuple(keys)
        )

    def close(self) -> None:
        self._consumer.close()
