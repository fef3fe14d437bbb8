"""`twofold prepared`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold.errors import UsageError
from twofold_common.gids import describe
from twofold_common.printable import counted

if TYPE_CHECKING:
    from twofold.inspect.in_doubt import InDoubt
    from twofold.inspect.open_rows import OpenRows


@click.group(help="Prepared transactions in doubt: list, show.\n\nExample: twofold prepared list")
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


@command.command(
    help="""Show one prepared transaction in doubt: what `prepared list` says of it, its tables, and of each how many changes there are and the first five.

    GID is the transaction's gid, or what `prepared list` prints in its place. The rows are as consumers will get them, under the data policy. An open transaction's rows are read from Kafka, where nobody sees them under read_committed. Those of a parked one, or of one that is not yet read, wait in the connector. Changes nothing; the line on stderr says where it reads.

    Example: twofold -c bank.toml prepared show 'order 7'"""
)
@click.argument("gid")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def show(config_file: Path | None, gid: str, *, as_json: bool) -> None:
    from twofold.inspect.in_doubt import add_branches, read_in_doubt  # noqa: PLC0415  (loads the clients)
    from twofold.inspect.open_rows import read_open_rows  # noqa: PLC0415
    from twofold.inspect.status_report import read_progress  # noqa: PLC0415

    config = load(config_file)
    found = _choose(read_in_doubt(config, read_progress(config)), gid)
    is_open = found.in_kafka == "open"
    where = f"database {found.database}, {config.prefix}.prepared at {config.kafka.bootstrap}"
    say(f"reading {where}{', and the topics of its rows, read_uncommitted' * is_open}", err=True)
    (each,), unread = add_branches(config, (found,))
    rows = read_open_rows(config, each) if is_open else ()
    if as_json:
        click.echo(json.dumps({**each.to_json(), "tables": [asdict(table) for table in rows]}, indent=2))
        return
    say(*_report(each), *_rows_report(each, rows))
    for topic in unread:
        say(f"not searched for other branches: {topic}")


def _choose(found: Sequence[InDoubt], gid: str) -> InDoubt:
    """Return the transaction that a person has named."""
    chosen = [each for each in found if each.gid == gid] or [each for each in found if describe(each.gid) == gid]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        raise UsageError(f"{len(chosen)} are shown as {gid}; give the gid: {', '.join(each.gid for each in chosen)}")
    alike = get_close_matches(gid, [name for each in found for name in (each.gid, describe(each.gid))], n=1)
    hint = f"; did you mean {alike[0]!r}?" if alike else ""
    raise UsageError(f"no prepared transaction {gid!r} is in doubt{hint}: see twofold prepared list")


def _rows_report(each: InDoubt, rows: Sequence[OpenRows]) -> list[str]:
    from twofold.cli.tail import change_line  # noqa: PLC0415

    if each.in_kafka != "open":
        return [f"  its rows are not in Kafka ({each.in_kafka}): the connector keeps them until the outcome"]
    if not any(table.changes for table in rows):
        return ["  Kafka has none of its rows now: the connector does not run, or is about to send them again"]
    lines = []
    for table in rows:
        lines.append(f"{table.table}  {counted(table.changes, 'change')}")
        lines += [change_line(change) for change in table.first]
        if (more := table.changes - len(table.first)) > 0:
            lines.append(f"  and {more} more")
    return lines


def _report(each: InDoubt) -> list[str]:
    from twofold.inspect.in_doubt import NOT_KNOWN  # noqa: PLC0415  (loads the clients)

    late = "  IN DOUBT TOO LONG (prepared.doubt_warning)" if each.too_long else ""
    rows = "" if each.rows is None else f", {counted(each.rows, 'row')} in {', '.join(each.topics)}"
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
