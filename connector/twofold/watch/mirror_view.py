"""Reads how far the mirror has come, which the mirror writes beside its offset in the consumer
group `<prefix>.mirror` of the commits topic.

A mirror with another group, or without the right to write this one, is not seen. Only the display
depends on it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from twofold.config import Config
from twofold.errors import RunEnded, SetupError
from twofold.kafka.client import sorted_errors
from twofold.kafka.kafka_settings import kafka_settings, names_of
from twofold_common.positions import Lsn

ASKED_S = 4.0
_TRIES = 5


@dataclass(frozen=True, slots=True)
class MirrorPlace:
    """The mirror's last published cut, and when the mirror wrote of it."""

    sequence: int
    applied_lsn: Lsn
    committed_us: int
    told_at: float | None = None
    """By the clock of its machine. None: a mirror of a version that tells only of its cuts."""
    ended: bool = False
    """Whether the mirror said that it ends."""


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
        """None: no mirror has said yet where it is. Raises the error that says why that is not
        known.
        """
        group = f"{self._config.prefix}.mirror"
        with sorted_errors("asking how far the mirror is"):
            if self._consumer is None:
                settings = kafka_settings(self._config)
                self._consumer = settings.secrets.open(Consumer, {**settings.consumer(), "group.id": group})
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


def parse_place(text: str | None, group: str) -> MirrorPlace:
    """Read a mirror's JSON. Behind it may stand anything: librdkafka does not end a group's
    metadata with a NUL.
    """
    try:
        said, _ = json.JSONDecoder().raw_decode(text or "")
        told_ms = said.get("told_ms")
        return MirrorPlace(
            int(said["sequence"]),
            Lsn(int(said["applied_lsn"])),
            int(said["committed_us"]),
            None if told_ms is None else int(told_ms) / 1000,
            bool(said.get("ended", False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(
            f"the consumer group {group} has an offset that no mirror wrote ({(text or '')[:60]!r}); another program wrote"
            " it, and the mirror replaces it with its next cut"
        ) from error
