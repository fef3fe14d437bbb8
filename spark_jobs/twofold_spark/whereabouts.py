"""Tells Kafka how far the mirror has come: the offsets of the consumer group `<prefix>.mirror` in the commits topic, as any tool that watches lag reads them.

With the offset go the cut's sequence number, position and time, which the connector's status page shows. They are written
again every few seconds while the mirror runs, and once more when it ends, so that the page sees a mirror that does not
run. Nothing depends on it: what was applied is known from the tables alone, and a group whose offset cannot be written is
told once and costs the mirror nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from twofold_spark import kafka
from twofold_spark.kafka import Kafka
from twofold_spark.mirror import Applied

EVERY_S = 10.0
_ASKED_S = 5


class Whereabouts:
    """Through the Kafka client that Spark brings. `say` is for a person."""

    def __init__(self, spark: SparkSession, where: Kafka, prefix: str, group: str, say: Callable[[str], None]) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._admin = kafka.admin(spark, where)
        self._partition = jvm.org.apache.kafka.common.TopicPartition(f"{prefix}.commits", 0)
        self._group = group
        self._say = say
        self._asked: Any = None
        self._told = False
        self._lock = threading.Lock()
        self._last: tuple[int, dict[str, int]] | None = None
        """The offset and the cut that were written last, by this process or by one before it."""
        self._ending = threading.Event()
        self._beat = threading.Thread(target=self._tell_again, name="mirror-progress", daemon=True)
        self._beat.start()

    def tell(self, applied: Applied) -> None:
        """Does not wait: how the last one went is looked at when the next one is due."""
        cut = applied.cut
        said = {"sequence": cut.sequence, "applied_lsn": cut.applied_lsn, "committed_us": cut.committed_us}
        with self._lock:
            self._last = applied.offset + 1, said
            self._write(*self._last)

    def close(self) -> None:
        """Tell that the mirror ends; waits some seconds for that."""
        self._ending.set()
        self._beat.join(2 * _ASKED_S)
        with self._lock:
            if self._last is not None:
                self._write(*self._last, ended=True)
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(5))
        self._look_back()

    def _tell_again(self) -> None:
        try:
            found = self._read()
            with self._lock:
                self._last = self._last or found
            while not self._ending.is_set():
                with self._lock:
                    if self._last is not None:
                        self._write(*self._last)
                self._ending.wait(EVERY_S)
        except (Py4JError, OSError) as error:  # no right to read the group; or the process ends, and Java was first
            if not self._ending.is_set():
                self._say(f"mirror: it does not tell that it runs: group {self._group}: {error}")

    def _read(self) -> tuple[int, dict[str, int]] | None:
        """What a mirror before this one wrote, so that one that has nothing to do tells that it runs."""
        asked = self._admin.listConsumerGroupOffsets(self._group).partitionsToOffsetAndMetadata()
        found = asked.get(_ASKED_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS).get(self._partition)
        try:
            said, _ = json.JSONDecoder().raw_decode(found.metadata() if found is not None else "")
            return found.offset(), {name: int(said[name]) for name in ("sequence", "applied_lsn", "committed_us")}
        except (ValueError, KeyError, TypeError):
            return None

    def _write(self, offset: int, said: dict[str, int], *, ended: bool = False) -> None:
        self._look_back()
        words = json.dumps({**said, "told_ms": time.time_ns() // 1_000_000, "ended": ended})
        words += "\0"  # clients on librdkafka read on into their memory until there is one
        offsets = self._jvm.java.util.HashMap()
        offsets.put(self._partition, self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset, words))
        self._asked = self._admin.alterConsumerGroupOffsets(self._group, offsets).all()

    def _look_back(self) -> None:
        if self._told or self._asked is None or not self._asked.isDone():
            return
        try:
            self._asked.get()
        except Py4JJavaError as error:
            self._told = True
            self._say(f"mirror: its place cannot be shown: group {self._group}: {error.java_exception.getMessage()}")
