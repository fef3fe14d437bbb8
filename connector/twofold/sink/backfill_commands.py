"""What people send_command of a backfill, on its way to the running connector: records in the progress topic, a table's latest one counts.

They come this way and not through PostgreSQL, because a role that may only read suffices there; and not by a socket, because so a send_command reaches whichever instance is, or will be, the connector. It is
answered by a tombstone in the Kafka transaction that carries it out: a kill in between, and it is still there.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from twofold.errors import Unreachable
from twofold.sink.client import PARTITION_EOF, KafkaSettings, sort_error, sorted_errors
from twofold.sink.names import Names


def send_command(settings: KafkaSettings, names: Names, topics: list[str], what: str) -> None:
    """Written and acknowledged when this returns."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    with sorted_errors(f"writing to {names.progress}"):
        producer = Producer(settings.plain_producer())
        for topic in topics:
            producer.produce(names.progress, what.encode(), names.command_key(topic), 0, on_delivery=delivered)
        left = producer.flush(settings.call_timeout_s)
    if errors:
        raise sort_error(errors[0], f"writing to {names.progress}")
    if left:
        raise Unreachable(f"Kafka did not take the send_command within {settings.call_timeout_s:.0f} s")


class BackfillCommands:
    """Follows the progress topic from where recovery has read to. Used by one thread; never blocks."""

    def __init__(self, settings: KafkaSettings, names: Names, *, found: dict[str, str], offset: int) -> None:
        self._names = names
        self._found = dict(found)
        with sorted_errors(f"following {names.progress}"):
            # Nobody waits for a send_command as recovery does for a topic's end: an empty fetch may rest as long as it does by default.
            self._consumer = Consumer({**settings.consumer(), "fetch.wait.max.ms": 500})
            self._consumer.assign([TopicPartition(names.progress, 0, offset)])

    def read_new(self) -> dict[str, str]:
        """What has been wished since the last call, by topic."""
        with sorted_errors(f"following {self._names.progress}"):
            for message in self._consumer.consume(500, 0):
                error = message.error()
                if error is None:
                    topic = self._names.command_topic(message.key() or b"")
                    value = message.value()
                    if topic is not None and value is not None:
                        self._found[topic] = value.decode()
                elif error.code() != PARTITION_EOF and not error.retriable():
                    raise sort_error(error, f"following {self._names.progress}")
        found, self._found = self._found, {}
        return found

    def close(self) -> None:
        self._consumer.close()
