"""Tells Kafka how far the mirror has come: the offsets of the consumer group `<prefix>.mirror` in the commits topic, as any tool that watches lag reads them.

With the offset go the cut's sequence number, position and time, which the connector's status page shows. Nothing depends on it: what was applied is known from the tables alone, and a
group whose offset cannot be written is told once and costs the mirror nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.mirror.mirror_job import Applied
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.kafka_reader import Kafka


class Whereabouts:
    """Through the Kafka client that Spark brings. `say` is for a person."""

    def __init__(self, spark: SparkSession, where: Kafka, prefix: str, group: str, say: Callable[[str], None]) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._admin = kafka_reader.admin(spark, where)
        self._partition = jvm.org.apache.kafka.common.TopicPartition(f"{prefix}.commits", 0)
        self._group = group
        self._say = say
        self._asked: Any = None
        self._told = False

    def tell(self, applied: Applied) -> None:
        """Does not wait: how the last one went is looked at when the next one is due."""
        self._look_back()
        cut = applied.cut
        said = {"sequence": cut.sequence, "applied_lsn": cut.applied_lsn, "committed_us": cut.committed_us}
        words = json.dumps(said) + "\0"  # clients on librdkafka read on into their memory until there is one
        offsets = self._jvm.java.util.HashMap()
        offsets.put(
            self._partition, self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(applied.offset + 1, words)
        )
        self._asked = self._admin.alterConsumerGroupOffsets(self._group, offsets).all()

    def close(self) -> None:
        """Waits some seconds for the last one."""
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(5))
        self._look_back()

    def _look_back(self) -> None:
        if self._told or self._asked is None or not self._asked.isDone():
            return
        try:
            self._asked.get()
        except Py4JJavaError as error:
            self._told = True
            self._say(f"mirror: its place cannot be shown: group {self._group}: {error.java_exception.getMessage()}")
