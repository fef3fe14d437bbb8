"""How far the mirror has come: what it has written, with its place, into its consumer group `<prefix>.mirror` in the commits topic.

A mirror in another group, or one that may not write it, is not seen; nothing but the display depends on it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from twofold.config import Config
from twofold.errors import RunEnded, SetupError
from twofold.runner.sink_settings import kafka_settings, names_of
from twofold.sink.client import sorted_errors
from twofold_common.positions import Lsn

ASKED_S = 4.0
_TRIES = 5


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
        """None: no mirror has said yet where it is. Raises what says why that is not known."""
        group = f"{self._config.prefix}.mirror"
        with sorted_errors("asking how far the mirror is"):
            if self._consumer is None:
                settings = kafka_settings(self._config).consumer()
                self._consumer = Consumer({**settings, "group.id": group})
            place = self._place()
            if place.error is not None:  # the library throws only what concerns the whole request
                raise KafkaException(place.error)
        return None if place.offset < 0 else _read(place.metadata, group)

    def _place(self) -> TopicPartition:
        assert self._consumer is not None
        wanted = [TopicPartition(names_of(self._config).commits, 0)]
        for _ in range(_TRIES):
            with suppress(UnicodeDecodeError):  # of what lies behind the text in memory; the next answer lies elsewhere
                (place,) = self._consumer.committed(wanted, ASKED_S)
                return place
        raise RunEnded(f"what Kafka said of the mirror's place could not be read {_TRIES} times")


def _read(words: str | None, group: str) -> MirrorPlace:
    """librdkafka does not end a group's metadata with a NUL: whatever follows in memory may stand behind the JSON. A mirror ends it with one."""
    try:
        said, _ = json.JSONDecoder().raw_decode(words or "")
        return MirrorPlace(int(said["sequence"]), Lsn(int(said["applied_lsn"])), int(said["committed_us"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"the consumer group {group} has an offset without a mirror's words ({(words or '')[:60]!r}): another program wrote it; the mirror writes its own with its next cut"
        ) from error
