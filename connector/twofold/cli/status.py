"""`twofold status`."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from twofold.config import load
from twofold.positions import format_lsn

if TYPE_CHECKING:
    from twofold.ops.mirror_view import MirrorPlace
    from twofold.runner.report import Backfill, Status

    Seen: TypeAlias = "tuple[Status, Sequence[Backfill], MirrorPlace | None]"


@click.command(
    help="""Where the connector stands: positions, lag, who holds the slot, transactions in doubt, backfills, the mirror.

    Asks PostgreSQL and Kafka, so it works whether the connector runs or not. Changes nothing.

    Example: twofold -c bank.toml status --live"""
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object; positions are numbers.")
@click.option("--live", is_flag=True, help="Go on showing it, every two seconds, until Ctrl-C.")
@click.pass_obj
def command(config_file: Path | None, *, as_json: bool, live: bool) -> None:
    from twofold.ops.mirror_view import MirrorView  # noqa: PLC0415  (loads the clients)
    from twofold.runner.report import backfills, look  # noqa: PLC0415

    config = load(config_file)
    mirror = MirrorView(config)

    def seen() -> Seen:
        status = look(config)
        return status, backfills(config) if status.backfilling else (), mirror.look() if status.initialised else None

    if live:
        from rich.console import Console  # noqa: PLC0415

        from twofold.cli.live import show  # noqa: PLC0415

        show(lambda: _words(*seen()), Console(), threading.Event())
        return
    status, loads, place = seen()
    if as_json:
        more = {"backfills": [asdict(each) for each in loads], "mirror": place and asdict(place)}
        click.echo(json.dumps({**asdict(status), **more}, indent=2))
    else:
        click.echo(_words(status, loads, place))


def _words(status: Status, loads: Sequence[Backfill], mirror: MirrorPlace | None) -> str:
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
    if mirror is not None:
        behind = max(0, (status.sequence or 0) - mirror.sequence)
        lines.append(
            f"mirror      {lsn(mirror.applied_lsn)}, commit record {mirror.sequence}, "
            + (f"{behind} commit records behind" if behind else "up to date")
        )
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
