"""What commands print for people: line by line, each of them printable."""

from __future__ import annotations

import click

from twofold_common.printable import printable


def say(*lines: str, err: bool = False) -> None:
    """Print lines. A line break within one is not ours, and is shown as what it is."""
    for line in lines:
        click.echo(printable(line), err=err)
