"""`twofold prepared list`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.cli.output import say
from twofold.config import load
from twofold.gids import describe

if TYPE_CHECKING:
    from twofold.inspect.in_doubt import InDoubt


@click.group(help="Prepared transactions in doubt.\n\nExample: twofold prepared list")
def command() -> None:
    pass


@command.command(
    name="list",
    help="""List the prepared transactions of the source's database that have no outcome, oldest first, and where their rows are.

    The outcome is the coordinator's to decide, never Twofold's. For each one the statements that a person could run are shown. Of a global transaction that is the outcome of its other branches, as the members of its source group know it; none while no outcome is known.

    Example: twofold -c bank.toml prepared list --json""",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON array.")
@click.pass_obj
def list_(config_file: Path | None, *, as_json: bool) -> None:
    from twofold.inspect.in_doubt import add_branches, read_in_doubt  # noqa: PLC0415  (loads the clients)
    from twofold.inspect.status_report import read_progress  # noqa: PLC0415

    config = load(config_file)
    found, unread = add_branches(config, read_in_doubt(config, read_progress(config)))
    if as_json:
        click.echo(json.dumps([each.to_json() for each in found], indent=2))
        return
    say(*([] if found else ["nothing is in doubt"]))
    for number, each in enumerate(found):
        say(*([""] if number else []), *_report(each))
    for topic in unread:
        say("", f"not searched for other branches: {topic}")


def _report(each: InDoubt) -> list[str]:
    from twofold.inspect.in_doubt import NOT_KNOWN  # noqa: PLC0415  (loads the clients)

    late = "  IN DOUBT TOO LONG (prepared.doubt_warning)" if each.too_long else ""
    rows = "" if each.rows is None else f", {each.rows} rows in {', '.join(each.topics)}"
    lines = [
        f"{describe(each.gid)}  xid {each.xid}, owner {each.owner}, {each.age_s:.0f} s old, {each.in_kafka}{rows}{late}"
    ]
    lines += [f"sibling {sibling}" for sibling in each.siblings]
    if each.held_back:
        lines.append(f"holds back {', '.join(map(str, each.held_back))}")
    if each.torn:
        lines.append("TORN: branches of it are committed and others rolled back; ask its coordinator")
    elif len(each.statements) == 1:
        lines.append("this alone keeps the global transaction whole:")
    elif not each.statements:
        lines.append(f"no statement is offered: {NOT_KNOWN}")
    first, *others = [*lines, *each.statements]
    return [first, *(f"  {line}" for line in others)]
