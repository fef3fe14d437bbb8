"""How far the mirror has come: what it has written, with its place, into its consumer group `<prefix>.mirror` in the commits topic.

A mirror in another group, or one that may not write it, is not seen; nothing but the display depends on it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

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
    """A client of its own, made when it is asked first."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._admin: AdminClient | None = None

    def look(self) -> MirrorPlace | None:
        """None: there is no mirror, or none that says where it is."""
        with sorted_errors("asking how far the mirror is"):
            if self._admin is None:
                self._admin = AdminClient(kafka_settings(self._config).admin())
            asked = ConsumerGroupTopicPartitions(
                f"{self._config.prefix}.mirror", [TopicPartition(names_of(self._config).commits, 0)]
            )
            (answer,) = self._admin.list_consumer_group_offsets([asked], request_timeout=ASKED_S).values()
            (place,) = answer.result(ASKED_S).topic_partitions
        return _place(place.metadata)


def _place(words: str | None) -> MirrorPlace | None:
    try:
        said = json.loads(words or "")
        return MirrorPlace(said["sequence"], Lsn(said["applied_lsn"]), said["committed_us"])
    except (ValueError, KeyError, TypeError):
        # Nobody has written there yet, or another program has: there is nothing to show.
        return None
