"""The sink's one thread: carries out jobs strictly in the order in which they were given.

One thread and one queue make the order: Kafka transactions commit in the source's commit order, and
no two producers write into one partition at once. The queue is bounded. The thread that reads waits
for room, and tends the replication connection meanwhile.

A job that fails ends the run. Jobs behind it do not begin; recovery does their work again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from twofold.bridge import Event

Job = Callable[[], Event | None]
JOBS_MAX = 16
_WAIT_SLICE_S = 0.2


class Worker:
    """Use from one thread; it owns another."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=JOBS_MAX)
        self._answers: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._submitted = 0
        self._finished = 0
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)
        self._thread.start()

    def submit(self, job: Job, *, meanwhile: Callable[[], None]) -> None:
        """Put a job at the end of the queue; `meanwhile` is called now and then while it is
        full.
        """
        while True:
            self.check()
            try:
                self._jobs.put(job, timeout=_WAIT_SLICE_S)
            except queue.Full:
                meanwhile()
            else:
                self._submitted += 1
                return

    def answers(self, wait_s: float = 0) -> list[Event]:
        """Return the jobs' answers since the last call; wait up to `wait_s` for the first."""
        self.check()
        events: list[Event] = []
        try:
            events.append(self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait())
            while True:
                events.append(self._answers.get_nowait())
        except queue.Empty:
            pass
        self.check()
        return events

    @property
    def busy(self) -> bool:
        """Whether a job is not finished."""
        return self._submitted != self._finished

    def check(self) -> None:
        """Raise what a job raised."""
        if self._failure is not None:
            raise self._failure

    def close(self, wait_s: float) -> bool:
        """Take no more jobs and wait for the current one. False: it still works."""
        self._failure = self._failure or RuntimeError("the worker is closed")
        while True:
            try:
                self._jobs.put_nowait(None)
            except queue.Full:
                try:
                    self._jobs.get_nowait()
                except queue.Empty:
                    continue
            else:
                break
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._failure is None:
                try:
                    answer = job()
                except BaseException as error:
                    self._failure = error
                else:
                    if answer is not None:
                        self._answers.put(answer)
            self._finished += 1
