"""Publishes the mirror's progress to Kafka, as a consumer group's offset in the commits topic.

Any tool that watches consumer lag reads the offset of the group `<prefix>.mirror`. With the offset
go the cut's sequence number, position and time, which the connector's status page shows. Nothing
depends on it: the tables alone say what was applied. If the offset cannot be written, the mirror
says so once and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.mirror.applied_batch import AppliedBatch
from twofold_spark.sources.kafka_client import Kafka, open_admin


class ProgressPublisher:
    """Writes the offset through Spark's Kafka client; `warn` gets a message for a person."""

    def __init__(self, spark: SparkSession, kafka: Kafka, prefix: str, group: str, warn: Callable[[str], None]) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._admin = open_admin(spark, kafka)
        self._partition = jvm.org.apache.kafka.common.TopicPartition(f"{prefix}.commits", 0)
        self._group = group
        self._warn = warn
        self._pending: Any = None
        self._has_warned = False

    def publish(self, applied: AppliedBatch) -> None:
        """Send the offset without waiting; the next call looks at the answer."""
        self._check_answer()
        cut = applied.cut
        progress = {"sequence": cut.sequence, "applied_lsn": cut.applied_lsn, "committed_us": cut.committed_us}
        text = json.dumps(progress) + "\0"  # clients on librdkafka read beyond the text until they meet a zero byte
        offsets = self._jvm.java.util.HashMap()
        offsets.put(
            self._partition, self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(applied.offset + 1, text)
        )
        self._pending = self._admin.alterConsumerGroupOffsets(self._group, offsets).all()

    def close(self) -> None:
        """Wait some seconds for the last answer."""
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(5))
        self._check_answer()

    def _check_answer(self) -> None:
        if self._has_warned or self._pending is None or not self._pending.isDone():
            return
        try:
            self._pending.get()
        except Py4JJavaError as error:
            self._has_warned = True
            self._warn(
                f"mirror: cannot publish the mirror's progress to consumer group {self._group}: "
                f"{error.java_exception.getMessage()}"
            )
