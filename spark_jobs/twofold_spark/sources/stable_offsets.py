"""Asks Kafka how far read_committed readers can read: the last stable offsets, at which the oldest transaction begins that is open in a partition.

A range whose end lies below is decided: read under read_committed it has the records that are committed, and no others. So a commit record that names rows of an aborted transaction shows in the count.
A range above it is only behind a transaction that is open: a prepared one in doubt, mostly, which may stay so for long and says nothing of the range.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark.sources import kafka_reader
from twofold_spark.sources.commit_records import Range
from twofold_spark.sources.kafka_reader import Kafka

MARKERS_S = 5.0
"""The broker writes the markers of a transaction some milliseconds after it has answered the commit; so long they are waited for."""
_LOOK_S = 0.01
_ANSWER_MS = 5000


class StableOffsets:
    """Several threads may ask; `close` it."""

    def __init__(self, where: Kafka) -> None:
        self._where = where
        self._admin: Any = None
        self._making = threading.Lock()

    def have_passed(self, spark: SparkSession, ranges: Iterable[Range]) -> bool:
        """Whether all of the topic's ranges are decided. False: in some partition another transaction is open below one."""
        lasts: dict[tuple[str, int], int] = {}
        firsts = set()
        for r in ranges:
            firsts.add((r.topic, r.partition, r.first))
            lasts[r.topic, r.partition] = max(r.last, lasts.get((r.topic, r.partition), -1))
        deadline = time.monotonic() + MARKERS_S
        while lasts:
            try:
                stable = self._ask(spark, lasts)
            except Py4JJavaError:
                return False  # of a deleted topic, mostly: whoever reads it now learns that, and a range that is read otherwise is counted too
            lasts = {place: last for place, last in lasts.items() if stable[place] <= last}
            own = all((*place, stable[place]) in firsts for place in lasts)
            if not own or (lasts and time.monotonic() > deadline):
                return False
            if lasts:
                time.sleep(_LOOK_S)
        return True

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()

    def _ask(self, spark: SparkSession, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        with self._making:
            self._admin = self._admin or kafka_reader.admin(spark, self._where)
        jvm: Any = spark._jvm
        common, client = jvm.org.apache.kafka.common, jvm.org.apache.kafka.clients.admin
        partitions = {place: common.TopicPartition(*place) for place in places}
        wanted = jvm.java.util.HashMap()
        for partition in partitions.values():
            wanted.put(partition, client.OffsetSpec.latest())
        committed = client.ListOffsetsOptions(common.IsolationLevel.READ_COMMITTED).timeoutMs(_ANSWER_MS)
        answers = self._admin.listOffsets(wanted, committed).all().get()
        return {place: answers[partition].offset() for place, partition in partitions.items()}
