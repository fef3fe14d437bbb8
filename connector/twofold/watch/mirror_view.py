"""Reads how far the mirror has come, which the mirror writes beside its offset in the consumer
group `<prefix>.mirror` of the commits topic.

A mirror with another group, or without the right to write this one, is not seen. Only the display
depends on it.
"""

from __future__ import annotations

from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from twofold.config import Config
from twofold.errors import RunEnded
from twofold.kafka.client import sorted_errors
from twofold.kafka.kafka_settings import kafka_settings, names_of
from twofold_common.mirror_place import MirrorPlace, parse_place

ASKED_S = 4.0
_TRIES = 5


class MirrorView:
    """A client of its own, made when it is asked first.

    It is a consumer that never joins its group. The same question through an admin client ends the
    whole process when the broker is away for longer than the question may take (librdkafka's issue
    4605).
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._consumer: Consumer | None = None

    def read(self) -> MirrorPlace | None:
        """None: no mirror has said where it is. Raises the reason why that is not known."""
        group = f"{self._config.prefix}.mirror"
        with sorted_errors("asking how far the mirror is"):
            if self._consumer is None:
                self._consumer = kafka_settings(self._config).open_consumer({"group.id": group})
            place = self._ask()
            if place.error is not None:  # the library throws only what concerns the whole request
                raise KafkaException(place.error)
        return None if place.offset < 0 else parse_place(place.metadata, group)

    def _ask(self) -> TopicPartition:
        assert self._consumer is not None
        wanted = [TopicPartition(names_of(self._config).commits, 0)]
        for _ in range(_TRIES):
            with suppress(
                UnicodeDecodeError
            ):  # librdkafka reads on behind the text; the next answer lies elsewhere in memory
                (place,) = self._consumer.committed(wanted, ASKED_S)
                return place
        raise RunEnded(f"Kafka's answer about the mirror's progress could not be read, {_TRIES} times in a row")
