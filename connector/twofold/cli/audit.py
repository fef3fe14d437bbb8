"""`twofold audit`."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold.errors import Refused
from twofold_common.printable import counted

if TYPE_CHECKING:
    from twofold.inspect.audit import Audit
    from twofold.inspect.comparison import ComparisonResult

SHOWN = 20
"""Damages shown of a topic; --json has up to a thousand of each partition."""


@click.command(
    help="""Compare every commit record with what consumers see: rows that are missing, rows that nobody committed, numbers that do not follow each other.

    Reads all topics of the prefix once, whether the connector runs or not, and changes nothing. Status 5 if a table is damaged or its topic is gone; the message names the repair. Damage before a table's
    last reload is told and does not count.

    Example: twofold -c bank.toml audit --json"""
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--since",
    type=click.IntRange(min=0),
    default=0,
    metavar="SEQUENCE",
    help="Judge only what was committed after this commit record.",
)
@click.pass_obj
def command(config_file: Path | None, *, as_json: bool, since: int) -> None:
    from twofold.inspect.audit import audit  # noqa: PLC0415  (loads the clients)

    config = load(config_file)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    progress = Progress()
    try:
        found = audit(config, since=since, report=progress)
    finally:
        progress.clear()
    if as_json:
        click.echo(json.dumps({"whole": not found.troubles, **asdict(found)}, indent=2))
    else:
        say(*_report(found))
    if found.troubles:
        sys.exit(Refused.exit_status)


class Progress:
    """A line of progress on a terminal's stderr; nothing elsewhere."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._next_at = self._begun + 0.5
        self._shows = sys.stderr.isatty()

    def __call__(self, compared: ComparisonResult) -> None:
        now = time.monotonic()
        if not self._shows or now < self._next_at:
            return
        self._next_at = now + 0.5
        done, all_ = compared.offsets
        left_s = (now - self._begun) * (all_ - done) / done if done else 0
        words = f"{100 * done // max(1, all_):3d} %, {compared.rows:,} rows, {compared.commits:,} commit records"
        click.echo(f"\r{words}, {left_s:,.0f} s left\x1b[K", err=True, nl=False)

    def clear(self) -> None:
        if self._shows:
            click.echo("\r\x1b[K", err=True, nl=False)


def _report(found: Audit) -> list[str]:
    numbers = f", {found.first_sequence} to {found.last_sequence}" if found.commits else ""
    lines = [f"{counted(found.commits, 'commit record')}{numbers}"]
    for topic in found.topics:
        lines.append(f"{topic.table or topic.topic}  {topic.description}")
        lines += [f"  {each.description}" for each in topic.damages[:SHOWN]]
        if (more := len(topic.damages) + topic.more - min(len(topic.damages), SHOWN)) > 0:
            lines.append(f"  and {more} more")
    for name, many in found.gone.items():
        lines.append(f"{name}  {counted(many, 'range')} not judged: in partitions that no longer exist")
    for trouble in found.troubles:
        lines += ["", *trouble.refusal.lines]
    return lines
