"""SIGTERM and Ctrl-C as an event that a job looks at between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def catch_end_signals(requested: threading.Event | None = None) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set, in place of their usual effect."""
    requested = requested or threading.Event()
    before = {n: signal.signal(n, lambda *_: requested.set()) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
