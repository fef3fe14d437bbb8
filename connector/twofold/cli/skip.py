"""`twofold skip`."""

from __future__ import annotations

from pathlib import Path

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold.errors import UsageError
from twofold_common.positions import format_lsn, parse_lsn


@click.command(
    help="""Leave out exactly one row that cannot be published: a row that is too large or malformed, or whose schema the registry refuses.

    The refusal that stops the connector names the row, by its position and a name of its own, in a command to paste. The next `twofold run` skips the row and carries the rest of its transaction. Readers lack the row, and commit records, `twofold audit`, the mirror's cuts and `verify` say so: until a later whole row of that key, a truncate or a reload.

    Example: twofold -c bank.toml skip public.account --position 0/1A2B3C8 --row 3fa9c1d2"""
)
@click.argument("table", metavar="SCHEMA.TABLE")
@click.option("--position", required=True, metavar="LSN", help="Where the row lies in the write-ahead log.")
@click.option("--row", required=True, metavar="NAME", help="The row's name among those of this position.")
@click.option("--withdraw", is_flag=True, help="Take the command back, if no run has executed it.")
@click.pass_obj
def command(config_file: Path | None, table: str, position: str, row: str, *, withdraw: bool) -> None:
    from twofold.inspect.status_report import topics_of  # noqa: PLC0415  (loads the clients)
    from twofold.kafka.backfill_commands import send_skip  # noqa: PLC0415
    from twofold.kafka.kafka_settings import kafka_settings, names_of  # noqa: PLC0415

    config = load(config_file)
    try:
        lsn = parse_lsn(position)
    except ValueError as error:
        raise UsageError(f"--position: {error}") from None
    (topic,) = topics_of(config, (table,))
    names, skip = names_of(config), (topic, lsn, row)
    if names.skipped_row(names.skip_key(*skip)) != skip:
        raise UsageError(f"--row {row!r} is no row's name: paste the command that the refusal names")
    send_skip(kafka_settings(config), names, skip, withdraw=withdraw)
    at = f"row {row} of {topic} at {format_lsn(lsn)}"
    if withdraw:
        say(f"withdrawn: the next twofold run does not skip {at}")
        return
    say(f"the next twofold run skips {at}; readers then lack it, see twofold audit")
