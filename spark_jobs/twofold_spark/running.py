"""Runs a streaming query, or turns that need no stream, until it ends, fails, or a signal asks for the end after the batch that it is in."""

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
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from twofold_spark.errors import Refused

_IDLE_S = 0.1
"""From one look at Kafka to the next, where nothing was new."""
_IDLE_SHARE = 4
"""So many times as long as it takes: a look at thousands of partitions is not free."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """When the next micro-batch starts."""

    HELP: ClassVar[str] = "available-now (then end) | continuous (at once) | interval=1s"
    name: str
    seconds: float = 0
    """From the start of one to that of the next, if it does not take longer."""

    @classmethod
    def parse(cls, text: str) -> Trigger:
        if text in ("available-now", "continuous"):
            return cls(text)
        if found := re.fullmatch(r"interval=(\d+)(ms|s|m)", text):
            return cls("interval", int(found[1]) * {"ms": 0.001, "s": 1, "m": 60}[found[2]])
        raise ValueError(f"{text!r} is none of: {cls.HELP}")

    def on(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.name == "available-now":
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{round(self.seconds * 1000)} milliseconds")


class Job:
    """A streaming query and what it calls for each micro-batch; keeps the error that Spark would turn into text."""

    def __init__(self, name: str, handle: Callable[[DataFrame, int], None]) -> None:
        self._name = name
        self._handle = handle
        self._failure: Exception | None = None
        self._query: StreamingQuery | None = None

    def start(self, stream: DataFrame, checkpoint: Path, trigger: Trigger) -> None:
        writer = stream.writeStream.queryName(self._name).option("checkpointLocation", str(checkpoint))
        self._query = trigger.on(writer.foreachBatch(self._batch)).start()

    def _batch(self, batch: DataFrame, number: int) -> None:
        try:
            _as_many_tasks_as_cores(batch.sparkSession)
            self._handle(batch, number)
        except Exception as error:
            self._failure = error
            raise

    def run(self) -> None:
        """Until the stream ends, fails, or SIGTERM or Ctrl-C asks for the end."""
        assert self._query is not None, "the job was started"
        with _asked_to_end() as asked:
            try:
                while self._query.isActive and not asked.wait(0.1):
                    pass
                if asked.is_set():
                    self._after_this_batch()
            finally:
                self._query.stop()
        failure = self._failure or self._query.exception()
        if failure is not None and "CONCURRENT_STREAM_LOG_UPDATE" in str(failure):
            raise Refused(
                f"another job runs on the checkpoint of {self._name}",
                at_stake="nothing: only one of two gets to write down a batch",
                repair="end one of them",
            ) from failure
        if failure is not None and not (asked.is_set() and self._failure is None):
            raise failure

    def _after_this_batch(self) -> None:
        """A batch that is cut off would only be repeated: it is given a minute."""
        assert self._query is not None
        deadline = time.monotonic() + 60
        while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.05)


def take_turns(turn: Callable[[], bool], trigger: Trigger) -> None:
    """Turn after turn at the trigger's pace; with `available-now` until one has found nothing to do. After the present one if SIGTERM or Ctrl-C asks for the end."""
    with _asked_to_end() as asked:
        while not asked.is_set():
            began = time.monotonic()
            found = turn()
            took = time.monotonic() - began
            if trigger.name != "available-now":
                asked.wait(max(trigger.seconds - took, 0 if found else max(_IDLE_S, _IDLE_SHARE * took)))
            elif not found:
                break


@contextmanager
def _asked_to_end() -> Iterator[threading.Event]:
    asked = threading.Event()
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


def say(line: str) -> None:
    """A line of progress; stdout belongs to what a command answers."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
