"""`twofold status`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.config import load
from twofold.positions import format_lsn

if TYPE_CHECKING:
    from twofold.runner.report import Backfill, Status


@click.command(
    help="""Where the connector stands: positions, lag, who holds the slot, transactions in doubt.

    Asks PostgreSQL and Kafka, so it works whether the connector runs or not. Changes nothing.

    Example: twofold -c bank.toml status --json"""
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object; positions are numbers.")
@click.pass_obj
def command(config_file: Path | None, *, as_json: bool) -> None:
    from twofold.runner.report import backfills, look  # noqa: PLC0415  (loads the clients)

    config = load(config_file)
    status = look(config)
    loads = backfills(config) if status.backfilling else ()
    if as_json:
        click.echo(json.dumps({**asdict(status), "backfills": [asdict(each) for each in loads]}, indent=2))
    else:
        click.echo(_words(status, loads))


def _words(status: Status, loads: Sequence[Backfill]) -> str:
    def lsn(position: int | None) -> str:
        return "-" if position is None else format_lsn(position)

    waits = [f"waits for   {holder}" for holder in status.waits_for]
    if not status.initialised:
        return "\n".join([f"connector {status.name} is not initialised: run twofold init", *waits])
    lines = [
        f"connector   {status.name}, "
        + (f"running (walsender {status.held_by_pid})" if status.held_by_pid else "not running: nobody holds the slot"),
        f"two_phase   {status.two_phase}",
        f"source      {lsn(status.source_lsn)}",
        f"in Kafka    {lsn(status.applied_lsn)}, commit record {status.sequence}, {status.behind_bytes} bytes of WAL behind",
        f"confirmed   {lsn(status.confirmed_lsn)}, slot {status.slot}, WAL {status.wal_status}",
    ]
    lines += waits
    lines += [f"backfill    {each.table}: {each.state}, {each.words}" for each in loads]
    lines.append(f"in doubt    {len(status.in_doubt)}")
    for each in status.in_doubt:
        lines.append(f"  {each.gid}  xid {each.xid}, {each.age_s:.0f} s, {each.in_kafka}, owner {each.owner}")
        if each.too_long:
            lines.append(
                f"    TOO LONG (prepared.doubt_warning): database {each.database}, {_known(each.wal_bytes)} bytes of WAL since, {_known(each.rows)} rows"
                f" in {', '.join(each.topics) or 'no topic'}; to end it: {' or '.join(each.statements)}"
            )
    return "\n".join(lines)


def _known(number: int | None) -> str:
    return "?" if number is None else str(number)
