"""`twofold init`."""

from __future__ import annotations

from pathlib import Path

import click

from twofold.cli.output import say
from twofold.config import load


@click.command(
    help="""Make the publication (if source.tables names any), the replication slot and the topics.

    May be run again at any time; existing parts stay as they are. Making a slot waits for running transactions, prepared ones included; it names them.

    Example: twofold -c bank.toml init"""
)
@click.pass_obj
def command(config_file: Path | None) -> None:
    from twofold.run.initialisation import initialise  # noqa: PLC0415  (loads the clients)

    initialise(load(config_file), say)
