"""Publishes the mirror's progress to Kafka, as a consumer group's offset in the commits topic.

Any tool that watches consumer lag reads the offset of the group `<prefix>.mirror`. With the offset
go the cut's sequence number, position and time, which the connector's status page shows and who
waits for a position goes by. They are written again every few seconds, and once more at the end, so
that the page sees whether the mirror runs. A start writes the last cut of its place, which may be a
new one, or one from a backup. The mirror itself goes by the tables alone. If the offset cannot be
written, it says so once and continues.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from twofold_avro.names import TopicNames
from twofold_spark.errors import grant_command
from twofold_spark.java_classes import java_class
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sources.kafka_client import Kafka, open_admin

HEARTBEAT_S = 10.0
_ANSWER_S = 5


class ProgressPublisher:
    """Writes the offset through Spark's Kafka client; `warn` gets a message for a person."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: Kafka,
        prefix: str,
        group: str,
        warn: Callable[[str], None],
        *,
        of_group: bool = False,
    ) -> None:
        self._spark = spark
        self._admin = open_admin(spark, kafka)
        self._partition = java_class(spark, "org.apache.kafka.common.TopicPartition")(TopicNames(prefix).commits, 0)
        self._group = group
        self._bootstrap = kafka.bootstrap
        self._warn = warn
        self._of_group = of_group
        self._pending: Any = None
        self._has_warned = False
        self._lock = threading.Lock()
        self._last: tuple[int, dict[str, int | str]] | None = None
        """The offset and the cut that were written last."""
        self._ending = threading.Event()
        self._heartbeat = threading.Thread(target=self._repeat, name="mirror-progress", daemon=True)

    def start(self) -> None:
        """Publish again and again, from now on, that the mirror runs."""
        self._heartbeat.start()

    def publish(self, cut: Cut) -> None:
        """Send the offset without waiting; the next call looks at the answer."""
        progress: dict[str, int | str] = {
            "sequence": cut.sequence,
            "applied_lsn": cut.applied_lsn,
            "committed_us": cut.committed_us,
            "stream_id": cut.stream_id,
        }
        with self._lock:
            self._last = cut.offset + 1, progress
            self._write(*self._last)

    def close(self) -> None:
        """Publish that the mirror ends; wait some seconds for the answer."""
        self._ending.set()
        if self._heartbeat.ident is not None:
            self._heartbeat.join(2 * _ANSWER_S)
            with self._lock:
                if self._last is not None:
                    self._write(*self._last, ended=True)
        if self._pending is not None:
            with suppress(Py4JError):  # no answer, or an error: the page then learns the end by silence
                self._pending.get(_ANSWER_S, self._seconds)
        self._admin.close(java_class(self._spark, "java.time.Duration").ofSeconds(_ANSWER_S))

    def _repeat(self) -> None:
        while not self._ending.is_set():
            try:
                with self._lock:
                    if self._last is not None:
                        self._write(*self._last)
            except Py4JJavaError as error:  # no right to read the group, or no answer yet: the next beat asks again
                self._warn_once(error)
            except (Py4JError, OSError):  # the process ends, and Java was first
                return
            self._ending.wait(HEARTBEAT_S)

    def _write(self, offset: int, progress: dict[str, int | str], *, ended: bool = False) -> None:
        if self._pending is not None and self._pending.isDone():
            try:
                self._pending.get()
            except Py4JJavaError as error:
                self._warn_once(error)
        told = {"told_ms": time.time_ns() // 1_000_000, "ended": ended}
        text = json.dumps({**progress, **told, **({"of_group": True} if self._of_group else {})})
        text += "\0"  # clients on librdkafka read beyond the text until they meet a zero byte
        offsets = java_class(self._spark, "java.util.HashMap")()
        place_of = java_class(self._spark, "org.apache.kafka.clients.consumer.OffsetAndMetadata")
        offsets.put(self._partition, place_of(offset, text))
        self._pending = self._admin.alterConsumerGroupOffsets(self._group, offsets).all()

    @property
    def _seconds(self) -> Any:
        return java_class(self._spark, "java.util.concurrent.TimeUnit").SECONDS

    def _warn_once(self, error: Py4JJavaError) -> None:
        if not self._has_warned and not self._ending.is_set():
            self._has_warned = True
            cause, repair = error.java_exception, ""
            if "GroupAuthorizationException" in cause.toString():
                right = grant_command(self._bootstrap, f"--operation Read --group {self._group}")
                repair = f": grant Read: {right}"
            self._warn(
                f"mirror: cannot publish the mirror's progress to consumer group {self._group}: "
                f"{cause.getMessage()}{repair}"
            )
