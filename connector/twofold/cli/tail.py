"""`twofold tail`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold_common.gids import describe
from twofold_common.printable import counted

if TYPE_CHECKING:
    from twofold.inspect.changes import TopicChange
    from twofold.inspect.tail import TailBegin, TailEnd


@click.command(
    help="""Show changes as they become visible to consumers, each between the begin and the end of its transaction, until Ctrl-C.

    Begins with what is committed from now on. A prepared transaction appears at COMMIT PREPARED, a rolled back one never. Reads Kafka under read_committed and the registry; joins no consumer group and changes nothing. The first line, on stderr, says where it reads. In a commit record of more than 10,000 rows they stand in the order of their partitions.

    Example: twofold -c bank.toml tail public.account --json"""
)
@click.argument("table", required=False, metavar="[SCHEMA.TABLE]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: begin, change, end.")
@click.pass_obj
def command(config_file: Path | None, table: str | None, *, as_json: bool) -> None:
    from twofold.inspect.status_report import topics_of  # noqa: PLC0415
    from twofold.inspect.tail import Tail  # noqa: PLC0415  (loads the clients)

    config = load(config_file)
    tail = Tail(config, topics_of(config, [table]) if table else None)
    what = table or f"all topics of {config.prefix}"
    say(f"reading {what} at {config.kafka.bootstrap}, read_committed, by {tail.place} on", err=True)
    try:
        with closing(tail.changes()) as changes:
            for each in changes:
                if as_json:
                    click.echo(json.dumps(asdict(each)))
                else:
                    say(_line(each))
    except BrokenPipeError:  # as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line(each: TailBegin | TopicChange | TailEnd) -> str:
    from twofold.inspect.changes import TopicChange  # noqa: PLC0415
    from twofold.inspect.tail import TailEnd  # noqa: PLC0415

    if isinstance(each, TopicChange):
        return change_line(each)
    if isinstance(each, TailEnd):
        name = each.transaction or f"commit record {each.sequence}"
        return f"end    {name}  {counted(each.changes, 'change')}"
    gid = f", gid {describe(each.gid)}" if each.gid else ""
    return f"begin  {each.transaction or each.kind}  commit record {each.sequence}{gid}"


def change_line(change: TopicChange) -> str:
    """Return a change as a line for people."""
    place = change.table or change.topic
    if change.op in {"event", "tombstone"}:
        return f"  {change.op} {place}  {_short(change.key)} {_short(change.value)}"
    value = change.value
    if change.op == "m":
        return f"  m {place}  {_short(value['message'])}"
    rows = " -> ".join(_short(value[row]) for row in ("before", "after") if value[row] is not None)
    special = [f"{each['row']}.{each['column']} = {each['text']}" for each in value["special"]]
    notes = [*special, *(f"{column} unchanged and not sent" for column in value["unchanged"])]
    more = f"  ({'; '.join(notes)})" if notes else ""
    return f"  {change.op} {place}  {rows}{more}"


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
