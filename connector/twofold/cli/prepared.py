"""`twofold prepared list`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from twofold.config import load


@click.group(help="Prepared transactions in doubt.\n\nExample: twofold prepared list")
def command() -> None:
    pass


@command.command(
    name="list",
    help="""List the prepared transactions of the source's database that have no outcome, oldest first, and where their rows are.

    The outcome is the coordinator's to decide, never Twofold's. For each one the two statements that a person could run are shown.

    Example: twofold -c bank.toml prepared list --json""",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON array.")
@click.pass_obj
def list_(config_file: Path | None, *, as_json: bool) -> None:
    from twofold.runner.report import in_doubt, read_progress  # noqa: PLC0415  (loads the clients)

    config = load(config_file)
    found = in_doubt(config, read_progress(config).unresolved.values())
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    if not found:
        click.echo("nothing is in doubt")
    for each in found:
        late = "  IN DOUBT TOO LONG (prepared.doubt_warning)" if each.too_long else ""
        statements = "\n  ".join(each.statements)
        branch = f"  global transaction {each.global_id}, branch {each.branch}\n" if each.global_id else ""
        click.echo(
            f"{each.gid}  xid {each.xid}, owner {each.owner}, {each.age_s:.0f} s old, {each.in_kafka}"
            f"{'' if each.rows is None else f', {each.rows} rows in ' + ', '.join(each.topics)}{late}\n{branch}"
            f"  {statements}"
        )
