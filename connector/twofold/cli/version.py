"""`twofold version`."""

from __future__ import annotations

import click

from twofold import __version__


@click.command(help="Print the version of Twofold.\n\nExample: twofold version")
def command() -> None:
    click.echo(f"twofold {__version__}")
