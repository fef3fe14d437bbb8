"""The demo's output: colour and a spinner in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from twofold.errors import TwofoldError

LOOK_S = 0.01


class StoryFailed(TwofoldError):
    """Something that the story promises did not happen."""


class Teller:
    """Prints the story, and shows what it waits for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._chapter = 0

    def chapter(self, title: str) -> None:
        self._chapter += 1
        self._console.print(f"\n[bold cyan]{self._chapter}. {escape(title)}[/]", highlight=False)

    def say(self, text: str) -> None:
        self._console.print(f"   {escape(text)}", highlight=False)

    def sql(self, text: str) -> None:
        self._console.print(f"   [yellow]sql>[/] {escape(text)}", highlight=False)

    def good(self, text: str) -> None:
        self._console.print(f"   [bold green]\N{CHECK MARK}[/] {escape(text)}", highlight=False)

    def wait(self, what: str, happened: Callable[[], bool], *, seconds: float = 60) -> float:
        """Wait until `happened` is true; return how long that took."""
        begun = time.monotonic()
        with self._console.status(escape(what)):
            while not happened():
                if time.monotonic() - begun > seconds:
                    raise StoryFailed(f"waited {seconds:.0f} s in vain: {what}")
                time.sleep(LOOK_S)
        return time.monotonic() - begun

    def check(self, what: str, *, holds: bool) -> None:
        if not holds:
            raise StoryFailed(f"this must be true and is not: {what}")
        self.good(what)
