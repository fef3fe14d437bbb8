"""`twofold version`."""

from __future__ import annotations

import json

import click

from twofold import __version__


@click.command(help="Print the version of Twofold, and whether its row path is compiled.\n\nExample: twofold version")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(*, as_json: bool) -> None:
    from twofold.row_path import slowness  # noqa: PLC0415  (what a command needs is imported when it runs)

    slow = slowness()
    if as_json:
        click.echo(json.dumps({"version": __version__, "compiled": slow is None}))
        return
    click.echo(f"twofold {__version__} ({slow or 'the row path is compiled'})")
