"""`twofold version`."""

from __future__ import annotations

import json

import click

from twofold import __version__


@click.command(help="Print the version of Twofold, and whether its row path is compiled.\n\nExample: twofold version")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(*, as_json: bool) -> None:
    from twofold_avro.transcode import is_compiled  # noqa: PLC0415  (what a command needs is imported when it runs)

    if as_json:
        click.echo(json.dumps({"version": __version__, "compiled": is_compiled()}))
        return
    slow = "not compiled, some fifty times slower; for the fast one install the wheel, or install a C compiler and reinstall twofold-avro"
    click.echo(f"twofold {__version__} (row path: {'compiled' if is_compiled() else slow})")
