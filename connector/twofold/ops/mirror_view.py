"""How far the mirror has come: what it has written, with its place, into its consumer group `<prefix>.mirror` in the commits topic.

A mirror in another group, or one that may not write it, is not seen; nothing but the display depends on it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from twofold.config import Config
from twofold.positions import Lsn
from twofold.runner.ground import kafka_settings, names_of
from twofold.sink.client import sorted_errors

ASKED_S = 4.0


@dataclass(frozen=True, slots=True)
class MirrorPlace:
    """The last cut that it has published."""

    sequence: int
    applied_lsn: Lsn
    committed_us: int


class MirrorView:
    """A client of its own, made when it is asked first.

    A consumer that never joins its group: the same question through an admin client ends the whole process when the broker is away for longer than it may take (librdkafka's issue 4605).
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._consumer: Consumer | None = None

    def look(self) -> MirrorPlace | None:
        """None: there is no mirror, or none that says where it is."""
        with sorted_errors("asking how far the mirror is"):
            if self._consumer is None:
                settings = kafka_settings(self._config).consumer()
                self._consumer = Consumer({**settings, "group.id": f"{self._config.prefix}.mirror"})
            (place,) = self._consumer.committed([TopicPartition(names_of(self._config).commits, 0)], ASKED_S)
            if place.error is not None:  # the library throws only what concerns the whole request
                raise KafkaException(place.error)
        return _place(place.metadata)


def _place(words: str | None) -> MirrorPlace | None:
    try:
        said = json.loads(words or "")
        return MirrorPlace(said["sequence"], Lsn(said["applied_lsn"]), said["committed_us"])
    except (ValueError, KeyError, TypeError):
        # Nobody has written there yet, or another program has: there is nothing to show.
        return None
