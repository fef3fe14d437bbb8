"""Ends the process when a call into librdkafka does not return.

Every call has its own bound, so the watch acts only if that bound failed: the library hangs. Ending
the process is then the only safe reaction, and it is always safe: it equals kill -9 at that
instant. The status is `EXIT_STALLED`, and the stacks go to stderr.

There are two watchers, because `begin_transaction` keeps Python's lock while it waits. A Python
thread watches all calls. The C thread of `faulthandler`, which needs no lock (its status is 1),
also watches `begin_transaction`. The Python thread counts its own ticks, not the clock: a process
that was stopped for an hour has not stalled. It has been fenced, and must find that out.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

EXIT_STALLED = 8

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Call:
    doing: str
    ticks_left: int


class Watch:
    """The watch of one thread's calls, one at a time: the worker's."""

    def __init__(self, tick_s: float = 1.0) -> None:
        self._tick_s = tick_s
        self._call: _Call | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def call(self, doing: str, bound_s: float, *, keeps_lock: bool = False) -> Iterator[None]:
        """Watch the body, which must end within the bound."""
        self._call = _Call(doing, math.ceil(bound_s / self._tick_s) + 1)
        if keeps_lock:
            faulthandler.dump_traceback_later(bound_s, exit=True, file=sys.__stderr__ or 2)
        try:
            yield
        finally:
            if keeps_lock:
                faulthandler.cancel_dump_traceback_later()
            self._call = None

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._tick_s):
            call = self._call
            if call is None:
                continue
            call.ticks_left -= 1
            if call.ticks_left <= 0:
                _log.critical(
                    "%s did not return in time: this process exits with status %d and recovers after a restart",
                    call.doing,
                    EXIT_STALLED,
                )
                faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
                os._exit(EXIT_STALLED)
