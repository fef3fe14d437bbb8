"""A step of recovery, done on another thread: meanwhile PostgreSQL hears from us, and a stop is noticed at once, not when the step's own limits are over.

A step that is still at work when we are told to stop is left to itself. It can harm nobody: whatever it does is what a connector does that is killed a moment later. What it opens after that it closes itself.
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
    """Told to stop before there was a run."""


class InterruptibleStep:
    """Of one recovery: `aside(step)` gives what the step gives. `opened` holds what steps open, `tend` is called now and then."""

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
