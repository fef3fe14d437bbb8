"""`twofold version`."""

from __future__ import annotations

import click

from twofold import __version__


@click.command(help="Print the version of Twofold, and whether its row path is compiled.\n\nExample: twofold version")
def command() -> None:
    from twofold_avro.transcode import is_compiled  # noqa: PLC0415  (what a command needs is imported when it runs)

    slow = "not compiled, some 25 times slower; for the fast one install a C compiler, then twofold-avro anew"
    click.echo(f"twofold {__version__} (row path: {'compiled' if is_compiled() else slow})")
