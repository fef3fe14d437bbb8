"""What commands print for people: line by line, each of them printable."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from twofold.errors import TwofoldError
from twofold_common.printable import printable

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


EVERY_S = 2.0


def show(report: Callable[[], str], console: Console, until: threading.Event, every_s: float = EVERY_S) -> None:
    """Use a screen of its own on a terminal; write one report after another into a pipe."""
    with (
        ended_at_once(RESTORE_SCREEN if console.is_terminal else ""),
        Live(console=console, screen=console.is_terminal, auto_refresh=False) as screen,
    ):
        for text in _reports(report, until, every_s):
            screen.update(
                Group(Rule(f"twofold status  {time.strftime('%H:%M:%S')}  (Ctrl-C ends it)", align="left"), text),
                refresh=True,
            )


def _reports(report: Callable[[], str], until: threading.Event, every_s: float) -> Iterator[Text]:
    last = Text("asking ...")
    while not until.is_set():
        try:
            last = _coloured(report())
            yield last
        except TwofoldError as error:
            yield Text.assemble(
                (printable(str(error), lines=True) + "\n\n", "bold red"), ("the last report:\n", "dim"), last
            )
        until.wait(every_s)


def _coloured(report: str) -> Text:
    text = Text(report)
    for words, style in (("TOO LONG", "bold red"), ("not running", "bold red"), ("does not answer", "bold red"), ("has not answered", "bold red"), ("running", "green"), ("open", "blue"), ("parked", "magenta")):  # fmt: skip
        text.highlight_words([words], style)
    text.highlight_regex(r"(?m)^\w[\w ]{0,11}(?=  )", "bold")
    return text


def say(*lines: str, err: bool = False) -> None:
    """Print lines. A line break within one is not ours, and is shown as what it is."""
    for line in lines:
        click.echo(printable(line), err=err)
