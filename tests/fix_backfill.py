"""A backfill that a test holds up between two chunks, and what of the connector's state such tests wait for."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest

from fix_connector import Installation, wait_until
from twofold.backfill.loader import Loader
from twofold.config import load
from twofold.runner.report import look

HOLD_S_MAX = 120


class Between:
    """Readers go on to their next chunk only when the test says so: it takes the place of the limit of rows a second."""

    def __init__(self) -> None:
        self._further = threading.Semaphore(0)

    def hold(self, _begun: float) -> None:
        assert self._further.acquire(timeout=HOLD_S_MAX)

    def further(self, chunks: int = 1) -> None:
        self._further.release(chunks)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    made = Between()
    monkeypatch.setattr(Loader, "_slow_down", made.hold)
    yield made
    made.further(10_000)


def ready(here: Installation, within_s: float = 60) -> None:
    wait_until(lambda: not look(load(here.file)).backfilling, within_s, "all tables are ready")


def chunks(here: Installation) -> int:
    """How many are committed."""
    return sum(commit["kind"] == "backfill" for commit in here.records("commits"))


def until_chunks(here: Installation, number: int, within_s: float = 60) -> None:
    wait_until(lambda: chunks(here) >= number, within_s, f"{number} chunks")


def ask_to_load(here: Installation, *tables: str) -> None:
    subprocess.run(here.command("backfill", "start", *tables), check=True, capture_output=True, timeout=60)
