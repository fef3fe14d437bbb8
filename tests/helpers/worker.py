"""A thread of a test that works until it is told to stop."""

from __future__ import annotations

import threading
from typing import Self

_LONGEST_S = 300
"""One step may wait for a job that a test has stopped."""


class Worker(threading.Thread):
    """`stop`, or the end of a `with`, ends it and raises what failed: a thread's exception is seen
    by nobody else.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self._stopped = threading.Event()
        self.failure: Exception | None = None

    def work(self) -> None:
        """Work until `_stopped` is set."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # `stop` raises it
            self.failure = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self.join(_LONGEST_S)
        assert self.failure is None, self.failure
        assert not self.is_alive(), f"{self.name} goes on"
