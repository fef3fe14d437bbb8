"""What Kafka says of the tables' topics: which there are, which topic it is that has a name now, and its first and last offsets.

A topic that was deleted and made anew has its name and another id, and its offsets say nothing about what was read of the one before.
Only asks; one admin client, kept open because it is asked in every turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.sources import kafka_reader
from twofold_spark.sources.kafka_reader import Kafka

Offsets = Mapping[int, int]
"""By partition."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now."""

    name: str
    id: str
    """Empty where the broker gives topics none."""
    ends: Offsets
    """Below it all is decided: a transaction that is open begins there, or nothing is there yet."""


class Topics:
    """The topics whose names are of a pattern."""

    def __init__(self, spark: SparkSession, where: Kafka, pattern: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._common = jvm.org.apache.kafka.common
        self._client = jvm.org.apache.kafka.clients.admin
        self._admin = kafka_reader.admin(spark, where)
        self._pattern = re.compile(pattern)
        self._partitions: dict[tuple[str, int], Any] = {}
        """Java's objects: a call into the JVM takes longer than all that is done here."""

    def now(self) -> dict[str, Topic]:
        """Every topic, by its name."""
        listed = self._jvm.java.lang.String.join("\n", self._admin.listTopics().names().get())
        wanted = self._jvm.java.util.ArrayList()
        for name in listed.split("\n"):
            if self._pattern.fullmatch(name):
                wanted.add(name)
        described = self._admin.describeTopics(wanted).topicNameValues()
        found = {name: there for name in described if (there := _description(described[name])) is not None}
        committed = self._client.ListOffsetsOptions(self._common.IsolationLevel.READ_COMMITTED)
        ends = self._offsets(
            ((name, partition) for name, there in found.items() for partition in range(there.partitions().size())),
            self._client.OffsetSpec.latest(),
            committed,
        )
        nothing = self._common.Uuid.ZERO_UUID.toString()
        ids = {name: there.topicId().toString() for name, there in found.items()}
        return {name: Topic(name, "" if ids[name] == nothing else ids[name], ends.get(name, {})) for name in found}

    def beginnings(self, topics: Iterable[Topic]) -> dict[str, dict[int, int]]:
        """By topic, the first offset that each partition still has."""
        places = ((topic.name, partition) for topic in topics for partition in topic.ends)
        return self._offsets(places, self._client.OffsetSpec.earliest(), self._client.ListOffsetsOptions())

    def close(self) -> None:
        self._admin.close()

    def _offsets(self, places: Iterable[tuple[str, int]], which: Any, options: Any) -> dict[str, dict[int, int]]:
        asked = {place: self._partitions.get(place) or self._common.TopicPartition(*place) for place in places}
        if not asked:
            return {}
        self._partitions |= asked
        wanted = self._jvm.java.util.HashMap()
        for partition in asked.values():
            wanted.put(partition, which)
        answers = self._admin.listOffsets(wanted, options).all().get()
        found: dict[str, dict[int, int]] = {}
        for (name, number), partition in asked.items():
            found.setdefault(name, {})[number] = answers[partition].offset()
        return found


def _description(future: Any) -> Any | None:
    """None of a topic that was deleted since it was listed."""
    try:
        return future.get()
    except Py4JJavaError as error:
        if "UnknownTopicOrPartition" in str(error.java_exception):
            return None
        raise
