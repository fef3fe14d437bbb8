"""Runs a streaming query until it ends, fails, or a signal asks it to end.

After a signal the batch in progress is finished first. A batch handler that raises `EndRequested`
ends within its batch instead.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from twofold_common.printable import printable
from twofold_spark.errors import Refused
from twofold_spark.java_classes import set_log_level
from twofold_spark.signals import catch_end_signals

_BATCH_PATIENCE_S = 60.0
_BETWEEN_BATCHES_PATIENCE_S = 2.0


class EndRequested(Exception):
    """A batch's handler leaves the rest of the batch.

    Spark repeats the whole batch after the next start.
    """


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
        raise ValueError(f"{text!r} must be one of: {cls.HELP}")

    @property
    def ends(self) -> bool:
        """Whether the job ends when it has applied what is there."""
        return self.name == "available-now"

    def apply_to(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.ends:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self.interval)


class StreamingJob:
    """A streaming query and its handler of micro-batches.

    It keeps the handler's error, which Spark would turn into text. `meanwhile` is called ten times
    a second, beside the handler: it may begin work that no micro-batch begins. It is told whether
    the stream has ended, which has read what there was.
    """

    def __init__(
        self, name: str, handle: Callable[[DataFrame, int], None], *, meanwhile: Callable[[bool], None] = lambda _: None
    ) -> None:
        self._name = name
        self._handle = handle
        self._meanwhile = meanwhile
        self._failure: Exception | None = None
        self._query: StreamingQuery | None = None
        self._is_stopping = False
        self._is_in_batch = False

    def start(self, stream: DataFrame, checkpoint: Path | str, trigger: Trigger) -> None:
        writer = stream.writeStream.queryName(self._name).option("checkpointLocation", str(checkpoint))
        self._query = trigger.apply_to(writer.foreachBatch(self._handle_batch)).start()

    def _handle_batch(self, batch: DataFrame, number: int) -> None:
        self._is_in_batch = True
        try:
            self._handle(batch, number)
        except Exception as error:
            is_failure = not (self._is_stopping or isinstance(error, EndRequested))
            self._failure = error if is_failure else None
            # Spark takes a batch as done unless its handler raises, and logs whatever the handler
            # raises with pages of stack traces. The command says what it was, or raises it.
            set_log_level(batch.sparkSession, "org.apache.spark.sql.execution.streaming", "OFF")
            if is_failure:
                raise
            raise EndRequested from None
        finally:
            self._is_in_batch = False

    def run(self, requested: threading.Event | None = None) -> None:
        """Run until the stream ends, fails, or a signal asks it to end.

        `requested` is set if the end was requested before.
        """
        assert self._query is not None, "the job was started"
        with catch_end_signals(requested) as end:
            try:
                with suppress(EndRequested):
                    has_ended = False
                    while not has_ended and not end.wait(0.1):
                        has_ended = not self._query.isActive
                        if not has_ended or self._query.exception() is None:
                            self._meanwhile(has_ended)
                if end.is_set():
                    self._finish_batch()
            finally:
                self._is_stopping = True
                self._query.stop()
        failure = self._failure or self._query.exception()
        if failure is not None:
            self._raise(failure, end_requested=end.is_set())

    def _raise(self, failure: Exception, *, end_requested: bool) -> None:
        if "CONCURRENT_STREAM_LOG_UPDATE" in str(failure):
            raise Refused(
                f"another job runs on the checkpoint of {self._name}",
                at_stake="nothing: Spark lets only one of the two record a batch",
                repair="end one of them",
            ) from failure
        if not (end_requested and self._failure is None):
            raise failure

    def _finish_batch(self) -> None:
        """Wait for the batch in progress, a minute at most: an interrupted batch is only repeated.

        Between batches Spark asks Kafka, which may not answer, or records what is done: it gets two
        seconds.
        """
        assert self._query is not None
        deadline = time.monotonic() + _BATCH_PATIENCE_S
        while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < deadline:
            if not self._is_in_batch:
                deadline = min(deadline, time.monotonic() + _BETWEEN_BATCHES_PATIENCE_S)
            time.sleep(0.05)


def print_progress(line: str) -> None:
    """Print a line of progress to stderr; stdout holds what a command answers."""
    print(printable(line, lines=True), file=sys.stderr, flush=True)  # noqa: T201
