"""Asks Kafka for the tables' topics: which exist, their ids, and their first and last offsets.

A topic that was deleted and recreated has the same name and another id. Its offsets say nothing of
what was read from the former topic. This module only asks. It keeps one admin client open, because
the changelog asks in every turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.sources.kafka_client import Kafka, open_admin

Offsets = Mapping[int, int]
"""Offsets by partition."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is now."""

    name: str
    id: str
    """Empty where the broker gives topics no ids."""
    ends: Offsets
    """Below these offsets all is decided; an open transaction, or the end, begins here."""


class TopicCatalog:
    """The topics whose names match a pattern."""

    def __init__(self, spark: SparkSession, kafka: Kafka, pattern: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._common = jvm.org.apache.kafka.common
        self._client = jvm.org.apache.kafka.clients.admin
        self._admin = open_admin(spark, kafka)
        self._pattern = re.compile(pattern)
        self._partitions: dict[tuple[str, int], Any] = {}
        """Java's objects, kept because calls into the JVM take longer than all other work here."""

    def describe_topics(self) -> dict[str, TopicState]:
        """Describe every topic that exists now, by name."""
        listed = self._jvm.java.lang.String.join("\n", self._admin.listTopics().names().get())
        wanted = self._jvm.java.util.ArrayList()
        for name in listed.split("\n"):
            if self._pattern.fullmatch(name):
                wanted.add(name)
        futures = self._admin.describeTopics(wanted).topicNameValues()
        found = {name: topic for name in futures if (topic := _await_description(futures[name])) is not None}
        committed = self._client.ListOffsetsOptions(self._common.IsolationLevel.READ_COMMITTED)
        ends = self._list_offsets(
            ((name, partition) for name, topic in found.items() for partition in range(topic.partitions().size())),
            self._client.OffsetSpec.latest(),
            committed,
        )
        no_id = self._common.Uuid.ZERO_UUID.toString()
        ids = {name: topic.topicId().toString() for name, topic in found.items()}
        return {name: TopicState(name, "" if ids[name] == no_id else ids[name], ends.get(name, {})) for name in found}

    def list_first_offsets(self, topics: Iterable[TopicState]) -> dict[str, dict[int, int]]:
        """List the first offset that each partition still has, by topic."""
        places = ((topic.name, partition) for topic in topics for partition in topic.ends)
        return self._list_offsets(places, self._client.OffsetSpec.earliest(), self._client.ListOffsetsOptions())

    def close(self) -> None:
        self._admin.close()

    def _list_offsets(self, places: Iterable[tuple[str, int]], which: Any, options: Any) -> dict[str, dict[int, int]]:
        partitions = {place: self._partitions.get(place) or self._common.TopicPartition(*place) for place in places}
        if not partitions:
            return {}
        self._partitions |= partitions
        wanted = self._jvm.java.util.HashMap()
        for partition in partitions.values():
            wanted.put(partition, which)
        answers = self._admin.listOffsets(wanted, options).all().get()
        found: dict[str, dict[int, int]] = {}
        for (name, number), partition in partitions.items():
            found.setdefault(name, {})[number] = answers[partition].offset()
        return found


def _await_description(future: Any) -> Any | None:
    """Return a topic's description, or None if the topic was deleted since it was listed."""
    try:
        return future.get()
    except Py4JJavaError as error:
        if "UnknownTopicOrPartition" in str(error.java_exception):
            return None
        raise
