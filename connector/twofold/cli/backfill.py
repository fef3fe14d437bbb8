"""`twofold backfill`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from twofold.cli.output import say
from twofold.config import load


@click.group(help="Load tables: start, pause, resume, cancel, status.\n\nExample: twofold backfill status")
def command() -> None:
    pass


def _send(config_file: Path | None, tables: tuple[str, ...], what: str) -> None:
    from twofold.inspect.status_report import topics_of  # noqa: PLC0415
    from twofold.kafka.backfill_commands import send_command  # noqa: PLC0415
    from twofold.kafka.kafka_settings import kafka_settings, names_of  # noqa: PLC0415  (loads the clients)

    config = load(config_file)
    topics = topics_of(config, tables)
    send_command(kafka_settings(config), names_of(config), topics, what)
    say(f"requested {what}: {', '.join(topics)}; a running connector does it, see twofold backfill status")


@command.command(
    help="""Reload tables from the beginning: a truncate goes to their topics first, so that rows deleted long ago do not survive it.

    Example: twofold backfill start public.account"""
)
@click.argument("tables", nargs=-1, required=True, metavar="SCHEMA.TABLE...")
@click.pass_obj
def start(config_file: Path | None, tables: tuple[str, ...]) -> None:
    _send(config_file, tables, "start")


@command.command(
    help="Stop reading tables for a while; their stream continues.\n\nExample: twofold backfill pause public.account"
)
@click.argument("tables", nargs=-1, required=True, metavar="SCHEMA.TABLE...")
@click.pass_obj
def pause(config_file: Path | None, tables: tuple[str, ...]) -> None:
    _send(config_file, tables, "pause")


@command.command(help="Resume paused loads.\n\nExample: twofold backfill resume public.account")
@click.argument("tables", nargs=-1, required=True, metavar="SCHEMA.TABLE...")
@click.pass_obj
def resume(config_file: Path | None, tables: tuple[str, ...]) -> None:
    _send(config_file, tables, "resume")


@command.command(
    help="Cancel loads: rows that are not read yet come only when they change.\n\nExample: twofold backfill cancel public.account"
)
@click.argument("tables", nargs=-1, required=True, metavar="SCHEMA.TABLE...")
@click.pass_obj
def cancel(config_file: Path | None, tables: tuple[str, ...]) -> None:
    _send(config_file, tables, "cancel")


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
