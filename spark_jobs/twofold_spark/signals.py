"""SIGTERM and Ctrl-C as an event that a job looks at between two steps."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_EXIT_INTERRUPTED = 130


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


@contextmanager
def ended_at_once(command: str) -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once, together with the Java that it has started. A Java
    that is interrupted during its start would stay for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def ours(*_: object) -> None:
        """The thread does it. Spark's own takes its place in the midst of the start, and stays."""

    handler = signal.signal(signal.SIGINT, ours)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_wait_for_it, args=(reader, command), name="interrupts", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        if signal.getsignal(signal.SIGINT) is ours:
            signal.signal(signal.SIGINT, handler)
        os.close(writer)  # which ends the thread


class _Java:
    """Whether the processes that are started now are Spark's Java."""

    starts = False


def _ignore_sigterm() -> None:
    if _Java.starts:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_ignore_sigterm)


@contextmanager
def java_spared() -> Iterator[None]:
    """Inside, Spark's Java is started so that it does not hear SIGTERM.

    systemd sends it to all processes of a service. The job ends its batch and then Java; a Java
    that ended first would leave pages of errors. PySpark does the same for Ctrl-C, and a Java whose
    job was killed still ends with its standard input.
    """
    _Java.starts = True
    try:
        yield
    finally:
        _Java.starts = False


def _wait_for_it(reader: int, command: str) -> None:
    with os.fdopen(reader, "rb", buffering=0) as signals:
        while number := signals.read(1):
            if number[0] == signal.SIGINT:
                try:
                    for child in _children():
                        with suppress(OSError):  # it has ended, or is not ours to end
                            os.kill(child, signal.SIGKILL)
                    sys.stderr.write(f"{command}: interrupted\n")
                finally:
                    os._exit(_EXIT_INTERRUPTED)


def _children() -> Iterator[int]:
    """Yield this process's children. Linux lists them by the thread that has started them."""
    for each in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            yield from map(int, each.read_text().split())
