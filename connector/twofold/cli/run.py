"""`twofold run`."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import click

from twofold.config import load


@click.command(
    help="""Carry changes until stopped by SIGTERM or Ctrl-C.

    Errors that a new start can mend are mended by one: it recovers by itself. Where going on could lose or repeat data it refuses, says which command repairs it, and ends with status 5.
    A second instance waits until the first one is gone.

    Example: twofold -c bank.toml run"""
)
@click.pass_obj
def command(config_file: Path | None) -> None:
    from twofold.runner.supervisor import supervise  # noqa: PLC0415  (loads the clients)

    config = load(config_file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    supervise(config, stop)
