"""Ctrl-C while the main thread waits inside a C library: Python's own handler runs only after the
call returns.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_S = 1.0
"""So long Python's own handler has."""
EXIT_STOPPED = 130


RESTORE_SCREEN = "\x1b[?1049l\x1b[?25h"
"""Leaves a terminal's alternate screen, and shows the cursor."""


@contextmanager
def ended_at_once(restore: str = "") -> Iterator[None]:
    """Inside, Ctrl-C ends the process within a second or so, whatever it waits for.

    `restore` is written to stdout then. Not for a command that must clean up otherwise.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    left = threading.Event()
    threading.Thread(target=_wait_for_it, args=(reader, left, restore), name="interrupts", daemon=True).start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        os.close(writer)  # which ends the thread


def _wait_for_it(reader: int, left: threading.Event, restore: str) -> None:
    with os.fdopen(reader, "rb", buffering=0) as signals:
        while number := signals.read(1):
            if number[0] == signal.SIGINT and not left.wait(GRACE_S):
                os.write(sys.stdout.fileno(), restore.encode())
                sys.stderr.write("stopped\n")
                os._exit(EXIT_STOPPED)
