"""Show a report again and again in its place, until Ctrl-C. An error is shown and the report asked
for again: a screen that is left alone must outlast the server that it watches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from twofold.cli.terminal import RESTORE_SCREEN, ended_at_once
from twofold.errors import TwofoldError
from twofold_common.printable import printable

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
