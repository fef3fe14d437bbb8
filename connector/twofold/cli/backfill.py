"""`twofold backfill`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold_common.printable import counted

if TYPE_CHECKING:
    from twofold.inspect.load_estimate import LoadEstimate


@click.group(help="Load tables: start, pause, resume, cancel, status, estimate.\n\nExample: twofold backfill status")
def command() -> None:
    pass


def _requests(what: str) -> Callable[..., None]:
    """Return the function of a command that asks a running connector to do something to tables."""

    @click.argument("tables", nargs=-1, required=True, metavar="SCHEMA.TABLE...")
    @click.pass_obj
    def request(config_file: Path | None, tables: tuple[str, ...]) -> None:
        from twofold.inspect.status_report import topics_of  # noqa: PLC0415
        from twofold.kafka.backfill_commands import send_command  # noqa: PLC0415
        from twofold.kafka.kafka_settings import kafka_settings, names_of  # noqa: PLC0415  (loads the clients)

        config = load(config_file)
        topics = topics_of(config, tables)
        send_command(kafka_settings(config), names_of(config), topics, what)
        say(f"requested {what}: {', '.join(topics)}; a running connector does it, see twofold backfill status")

    return request


command.command(
    "start",
    help="""Reload tables from the beginning: a truncate goes to their topics first, so that rows deleted long ago do not survive it.

    Example: twofold backfill start public.account""",
)(_requests("start"))
command.command(
    "pause",
    help="Stop reading tables for a while; their stream continues.\n\nExample: twofold backfill pause public.account",
)(_requests("pause"))
command.command("resume", help="Resume paused loads.\n\nExample: twofold backfill resume public.account")(
    _requests("resume")
)
command.command(
    "cancel",
    help="Cancel loads: rows that are not read yet come only when they change.\n\nExample: twofold backfill cancel public.account",
)(_requests("cancel"))


@command.command(
    help="""Tables that are being loaded: rows so far, rows there may be, rows a second, the time that is left, and who is waited for.

    Example: twofold -c bank.toml backfill status --json"""
)
@click.option("--json", "as_json", is_flag=True, help="A JSON array.")
@click.pass_obj
def status(config_file: Path | None, *, as_json: bool) -> None:
    from dataclasses import asdict  # noqa: PLC0415

    from twofold.inspect.status_report import (  # noqa: PLC0415  (loads the clients)
        backfills,
        read_progress,
        read_source_status,
    )

    config = load(config_file)
    is_initialised = read_source_status(config).initialised is not False
    found = backfills(config, read_progress(config)) if is_initialised else ()
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    if not is_initialised:
        say(f"connector {config.name} is not initialised: run twofold init")
    elif not found:
        say("all tables are ready")
    for each in found:
        say(f"{each.table}  {each.state}, {each.words}")
        for holder in each.waits_for:
            say(f"  may have to wait for {holder}")


@command.command(
    help="""Estimate a load, before `twofold init` or before a reload: rows and bytes by PostgreSQL's statistics, what they take on the brokers' disks, and the time at the rate that earlier loads of this prefix have shown. Without tables: all published ones.

    Changes nothing. Without an earlier load the time is not known. ANALYZE makes the rows exact.

    Example: twofold -c bank.toml backfill estimate public.account --json"""
)
@click.argument("tables", nargs=-1, metavar="[SCHEMA.TABLE]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def estimate(config_file: Path | None, tables: tuple[str, ...], *, as_json: bool) -> None:
    from dataclasses import asdict  # noqa: PLC0415

    from twofold.inspect import load_estimate  # noqa: PLC0415  (loads the clients)
    from twofold.run.source_settings import wanted_publication  # noqa: PLC0415

    config = load(config_file)
    found = load_estimate.estimate(config, wanted_publication(config), tables)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    say(*_estimate_report(found, config.kafka.replication))


def _estimate_report(found: LoadEstimate, replicas: int) -> list[str]:
    from twofold.inspect import load_estimate  # noqa: PLC0415  (loads the clients)

    lines = [
        f"{each.table}  {'rows not known' if each.rows is None else f'about {each.rows:,} rows'}, {_size(each.bytes)} in PostgreSQL, about {_size(each.kafka_bytes)} in Kafka"
        for each in found.tables
    ]
    time = (
        f"the time is not known before {load_estimate.ROWS_MIN:,} rows were loaded"
        if found.seconds is None
        else f"about {found.seconds:,.0f} s at {found.per_second:,.0f} rows a second, as earlier loads have shown"
    )
    disks = f"about {_size(found.kafka_bytes)} on the brokers' disks with {counted(replicas, 'replica')}"
    return [*lines, f"together about {found.rows:,} rows, {disks}; {time}"]


def _size(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
