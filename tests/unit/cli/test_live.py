"""`twofold status --live`: one report after another, through failures, until it is told to stop."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from twofold.cli.live import show
from twofold.errors import Unreachable


def test_it_goes_on_through_a_failure_and_shows_what_was_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stop = threading.Event()
    asked: list[int] = []

    def report() -> str:
        asked.append(len(asked))
        match len(asked):
            case 1:
                return "in doubt    1\n  a[b]  parked"
            case 2:
                raise Unreachable("Kafka does not answer")
            case _:
                stop.set()
                return "in doubt    0"

    out = io.StringIO()
    show(report, Console(file=out, force_terminal=True, color_system=None, width=100), stop, every_s=0.01)
    said = out.getvalue()
    first, failed, last = (said.index(words) for words in ("a[b]", "Kafka does not answer", "in doubt    0"))
    assert first < failed < said.index("the last report") < last
