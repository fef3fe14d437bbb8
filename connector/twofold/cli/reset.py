"""`twofold reset`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold.errors import UsageError


@click.command(
    help="""Remove what init made in PostgreSQL: the slot, the publication if init made it, and the event triggers with the schema twofold. Says first what would be lost, and asks.

    The topics stay: delete them by hand, or choose another kafka.prefix, before init is run again.

    Example: twofold -c bank.toml reset"""
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(config_file: Path | None, *, yes: bool) -> None:
    from twofold.run import last_refusal  # noqa: PLC0415
    from twofold.source.connection import connect  # noqa: PLC0415  (loads the client)
    from twofold.source.identity import identify  # noqa: PLC0415
    from twofold.source.provisioning import describe_loss, drop, shared_publication  # noqa: PLC0415

    config = load(config_file)
    database = identify(config.conninfo).database
    loss = describe_loss(config.conninfo, config.slot)
    say(*str(loss).split("\n") if loss else [f"slot {config.slot} does not exist"])
    with connect(config.conninfo) as connection:
        readers = shared_publication(config.publication).users(connection)
    if readers is not None and readers <= {config.slot}:
        say(f"publication {config.publication!r} of database {database}, which twofold init has made")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "nothing was removed: reset asks first, and there is no terminal; remedy: twofold reset --yes"
            )
        if not click.confirm("Remove it?"):
            raise UsageError("nothing was removed; remedy: answer y, or run twofold reset --yes")
    removal = drop(config.conninfo, config.slot, config.publication)
    last_refusal.forget(config)
    for removed in removal.removed:
        say(f"removed: {removed}")
    if removal.shared_with:
        say(
            f"publication {config.publication!r} stays: other slots read it: {', '.join(removal.shared_with)}; drop it by hand if they are gone"
        )
    for statement in removal.left:
        say(f"left, because the primary cannot be reached: run there {statement}")
    say(f"the topics {config.prefix}.* stay: delete them, or choose another kafka.prefix, before twofold init")
