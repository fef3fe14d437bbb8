"""What commands share on a terminal: printable lines, and an end at Ctrl-C.

Python's own handler of Ctrl-C runs only after a call into a C library returns.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from twofold_common.printable import printable

GRACE_S = 1.0
"""How long Python's own handler has."""
EXIT_STOPPED = 130
RESTORE_SCREEN = "\x1b[?1049l\x1b[?25h"
"""Leaves a terminal's alternate screen, and shows the cursor."""


def say(*lines: str, err: bool = False) -> None:
    """Print lines. A line break within one is not ours, and is shown as what it is."""
    for line in lines:
        click.echo(printable(line), err=err)


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
