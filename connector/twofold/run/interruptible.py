"""Runs a step of recovery on another thread: PostgreSQL's keepalives are answered meanwhile, and a
stop is noticed at once.

A step that still works at a stop is abandoned. It does no more harm than a connector that is killed
a moment later. It closes what it opens after that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import TypeVar

_T = TypeVar("_T")

CHECK_INTERVAL_S = 0.2


class StopRequested(Exception):
    """A stop was requested before there was a run."""


class InterruptibleStep:
    """Runs the steps of one recovery: `interruptible(step)` returns the step's result.

    `opened` closes what steps opened; `tend` is called now and then.
    """

    def __init__(self, stop: threading.Event, opened: ExitStack) -> None:
        self._stop = stop
        self._opened = opened
        self.tend: Callable[[], None] = lambda: None

    def __call__(self, step: Callable[[], _T]) -> _T:
        done: Future[_T] = Future()
        left = threading.Event()

        def work() -> None:
            try:
                done.set_result(step())
            except BaseException as error:
                done.set_exception(error)
            if left.is_set():
                self._opened.close()

        threading.Thread(target=work, name="recovery", daemon=True).start()
        while not wait((done,), CHECK_INTERVAL_S).done:
            if self._stop.is_set():
                left.set()
                raise StopRequested
            self.tend()
        return done.result()
