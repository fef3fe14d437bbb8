"""The worker: the one thread that writes to Kafka, job after job in the order of submission.

One thread and one queue make the order: Kafka transactions commit in the source's commit order, and
no two producers write into one partition at once. The queue is bounded. The thread that reads waits
for room, and tends the replication connection meanwhile.

A job may leave its answer for later (`Pending`): the next jobs do not wait for that answer. The
worker looks for pending answers after each job, before the job's own answer, and while there is no
job.

A job that fails ends the run, and so does a pending answer that fails. Jobs behind it do not begin;
recovery does their work again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from twofold.bridge import Event


class Pending(NamedTuple):
    """An answer that is not true yet when its job returns."""

    is_true: Callable[[], bool]
    answer: Event


Job = Callable[[], Event | Pending | None]
JOBS_MAX = 16
_WAIT_SLICE_S = 0.2
_ASK_S = 0.001
"""How often the worker looks for pending answers while there is no job."""


class Worker:
    """The worker. One thread uses it; it owns another."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=JOBS_MAX)
        self._answers: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._pending: list[Pending] = []
        self._submitted = 0
        self._finished = 0
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def submit(self, job: Job, *, meanwhile: Callable[[], None]) -> None:
        """Put a job at the queue's end; `meanwhile` is called now and then while it is full."""
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
        """Whether a job is not finished, or an answer is pending."""
        return self._submitted != self._finished or bool(self._pending)

    @property
    def failure(self) -> BaseException | None:
        """The error of a job; the job's rows were submitted earlier."""
        return self._failure

    def check(self) -> None:
        """Raise what a job raised."""
        if self._failure is not None:
            raise self._failure

    def close(self, wait_s: float) -> bool:
        """Take no more jobs and wait for the current one. Return False if it still works."""
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
        while True:
            try:
                job = self._jobs.get(timeout=_ASK_S if self._pending else None)
            except queue.Empty:
                self._run_job(lambda: None)
                continue
            if job is None:
                return
            if self._failure is None:
                self._run_job(job)
            self._finished += 1

    def _run_job(self, job: Job) -> None:
        try:
            answer = job()
            true = [pending for pending in self._pending if pending.is_true()]
        except BaseException as error:
            self._failure = error
            self._pending.clear()
            return
        for pending in true:
            self._answers.put(pending.answer)
            self._pending.remove(pending)
        if isinstance(answer, Pending):
            self._pending.append(answer)
        elif answer is not None:
            self._answers.put(answer)
