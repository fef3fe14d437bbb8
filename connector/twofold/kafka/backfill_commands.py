"""Brings a person's backfill commands to the running connector, as records in the progress topic.

A table's last record counts. Commands do not go through PostgreSQL, because a read-only role
suffices there. They do not use a socket: a record reaches the present instance or the next one.

A record's offset is the command's number. The Kafka transaction that executes a command also writes
the number, in the table's pin. So a command still counts after a kill in between, and so does a
later command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from twofold.errors import Unreachable
from twofold.kafka.client import KafkaSettings, sort_error, sorted_errors
from twofold.kafka.decoding import place_of, read_command
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.names import Names
from twofold.kafka.topic_reader import PartitionId, TopicFollower


class TopicCommand(NamedTuple):
    """A person's command about a topic's load."""

    number: int
    """The offset of the command's record."""
    topic: str
    name: str


def send_command(settings: KafkaSettings, names: Names, topics: list[str], command: str) -> None:
    """Write the command for these topics. Kafka has acknowledged it when the call returns."""
    ask_brokers(settings)
    write_outside(settings, names, [(names.command_key(topic, command), command.encode()) for topic in topics])


def send_skip(settings: KafkaSettings, names: Names, skip: tuple[str, int, str], *, withdraw: bool) -> None:
    """Write or withdraw the command to skip one row: topic, position, name. Recovery reads it."""
    ask_brokers(settings)
    write_outside(settings, names, [(names.skip_key(*skip), None if withdraw else b"skip")])


def write_outside(settings: KafkaSettings, names: Names, records: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Write a person's command, or a run's last refusal, outside a transaction."""
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
    """The commands behind those that recovery has read. Used by one thread; never blocks."""

    def __init__(self, settings: KafkaSettings, names: Names, *, found: Iterable[TopicCommand], offset: int) -> None:
        self._names = names
        self._unread = list(found)
        self._follower = TopicFollower(settings, {PartitionId(names.progress, 0): offset}, fetch_ms=500)

    def read_new(self) -> list[TopicCommand]:
        """Return the commands since the last call, in their order."""
        for message in self._follower.read_new(0):
            self._note(message)
        commands, self._unread = self._unread, []
        return commands

    def _note(self, message: Message) -> None:
        topic, value, place = self._names.command_topic(message.key() or b""), message.value(), place_of(message)
        if topic is not None and value is not None:
            self._unread.append(TopicCommand(place.offset, topic, read_command(value, place)))

    def close(self) -> None:
        self._follower.close()
