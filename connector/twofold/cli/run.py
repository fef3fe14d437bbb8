"""`twofold run`."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import nullcontext
from pathlib import Path

import click

from twofold.config import load


@click.command(
    help="""Publish changes until SIGTERM or Ctrl-C.

    It recovers by itself from errors that a restart can remedy. If continuing could lose or repeat data, it refuses, names the command that repairs it, and ends with status 5.
    A second instance waits until the first one is gone (source.standby).

    While it runs, http://127.0.0.1:8787/ shows what it does (status.listen).

    Example: twofold -c bank.toml run"""
)
@click.option(
    "--take-over",
    is_flag=True,
    help="First end the server's process that holds the slot. For a predecessor whose machine is dead: PostgreSQL gives its connection up only after wal_sender_timeout.",
)
@click.pass_obj
def command(config_file: Path | None, *, take_over: bool) -> None:
    from twofold.row_path import slowness  # noqa: PLC0415
    from twofold.run.supervisor import supervise  # noqa: PLC0415
    from twofold.watch.logs import last_line_as_json, set_up  # noqa: PLC0415  (loads the clients)
    from twofold.watch.watching import serve_status  # noqa: PLC0415

    config = load(config_file)
    set_up(config.log.format, config.log.level)
    if slow := slowness():
        logging.getLogger(__name__).warning(slow)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    told = last_line_as_json() if config.log.format == "json" else nullcontext()
    with told, serve_status(config) as observer:
        supervise(config, stop, observer, take_over=take_over)
