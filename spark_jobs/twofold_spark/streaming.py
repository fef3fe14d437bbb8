"""Runs a streaming query until it ends, fails, or a signal asks for the end after the batch that it is in, or within it where its handler raises `AskedToEnd`."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from twofold_spark.errors import JobError, Refused

_GONE = "Some data may have been lost because they are not available in Kafka any more"
_PATIENCE_S = 60.0
_AROUND_A_BATCH_S = 2.0


class AskedToEnd(Exception):
    """A batch's handler leaves the rest of it: Spark gives the whole of it to the next start again."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """When the next micro-batch starts."""

    HELP: ClassVar[str] = "available-now (then end) | continuous (at once) | interval=1s"
    name: str
    interval: str = "0 seconds"

    @classmethod
    def parse(cls, text: str) -> Trigger:
        if text in ("available-now", "continuous"):
            return cls(text)
        if found := re.fullmatch(r"interval=(\d+)(ms|s|m)", text):
            unit = {"ms": "milliseconds", "s": "seconds", "m": "minutes"}[found[2]]
            return cls("interval", f"{found[1]} {unit}")
        raise ValueError(f"{text!r} is none of: {cls.HELP}")

    def on(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.name == "available-now":
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self.interval)


class Job:
    """A streaming query and what it calls for each micro-batch; keeps the error that Spark would turn into text."""

    def __init__(self, name: str, handle: Callable[[DataFrame, int], None]) -> None:
        self._name = name
        self._handle = handle
        self._failure: Exception | None = None
        self._query: StreamingQuery | None = None
        self._cut_off = False
        self._in_a_batch = False

    def start(self, stream: DataFrame, checkpoint: Path | str, trigger: Trigger) -> None:
        writer = stream.writeStream.queryName(self._name).option("checkpointLocation", str(checkpoint))
        self._query = trigger.on(writer.foreachBatch(self._batch)).start()

    def _batch(self, batch: DataFrame, number: int) -> None:
        self._in_a_batch = True
        try:
            _as_many_tasks_as_cores(batch.sparkSession)
            self._handle(batch, number)
        except Exception as error:
            if self._cut_off or isinstance(error, AskedToEnd):
                _log_no_failure(batch.sparkSession)
                raise AskedToEnd from None
            if isinstance(error, JobError):  # a sentence that the command ends with
                _log_no_failure(batch.sparkSession)
            self._failure = error
            raise
        finally:
            self._in_a_batch = False

    def run(self, listened: threading.Event | None = None) -> None:
        """Until the stream ends, fails, or SIGTERM or Ctrl-C asks for the end; `listened` if that was asked for before."""
        assert self._query is not None, "the job was started"
        with asked_to_end(listened) as asked:
            try:
                while self._query.isActive and not asked.wait(0.1):
                    pass
                if asked.is_set():
                    self._after_this_batch()
            finally:
                self._cut_off = True
                self._query.stop()
        failure = self._failure or self._query.exception()
        if failure is not None and "CONCURRENT_STREAM_LOG_UPDATE" in str(failure):
            raise Refused(
                f"another job runs on the checkpoint of {self._name}",
                at_stake="nothing: only one of two gets to write down a batch",
                repair="end one of them",
            ) from failure
        if failure is not None and _GONE in str(failure):
            raise Refused(
                f"the checkpoint of {self._name} names records that Kafka does not have: they are gone, or it is another prefix's",
                at_stake="what they held; nothing, if they were another prefix's",
                repair="another --checkpoint, or without this one: the job then begins with what Kafka has, and is refused "
                "again, with what is missing, if its tables lack any of it",
            ) from failure
        if failure is not None and not (asked.is_set() and self._failure is None):
            raise failure

    def _after_this_batch(self) -> None:
        """What is cut off would only be repeated: a batch is given a minute. Around it Spark asks Kafka, which may not answer, or writes down what is done."""
        assert self._query is not None
        deadline = time.monotonic() + _PATIENCE_S
        while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < deadline:
            if not self._in_a_batch:
                deadline = min(deadline, time.monotonic() + _AROUND_A_BATCH_S)
            time.sleep(0.05)


@contextmanager
def asked_to_end(asked: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set, in place of what they do else."""
    asked = asked or threading.Event()
    before = {n: signal.signal(n, lambda *_: asked.set()) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_many_tasks_as_cores(spark: SparkSession) -> None:
    """Batches of a stream run without adaptive execution, which joins small partitions: Spark's 200 would be 200 tasks and as many files for a thousand rows."""
    cores = spark.sparkContext.defaultParallelism
    if int(spark.conf.get("spark.sql.shuffle.partitions") or 0) > cores:
        spark.conf.set("spark.sql.shuffle.partitions", cores)


def _log_no_failure(spark: SparkSession) -> None:
    """Spark takes a batch for done unless its handler raises, and logs what it raises as the query's failure, pages of it."""
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel("org.apache.spark.sql.execution.streaming", log4j.Level.OFF)


def say(line: str) -> None:
    """A line of progress; stdout belongs to what a command answers."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
