"""`twofold doctor`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold.errors import SetupError

if TYPE_CHECKING:
    from twofold.doctor import Finding


@click.command(
    help="""Find problems and fixes: what is or will be wrong in PostgreSQL, Kafka, the registry or on this machine, why it matters, and the remedy.

    Changes nothing. Works before init, while the connector runs, and when a server is away. Status 3 if anything is missing that it cannot run without.

    Example: twofold -c bank.toml doctor --json"""
)
@click.option("--json", "as_json", is_flag=True, help="A JSON array, the most severe first.")
@click.pass_obj
def command(config_file: Path | None, *, as_json: bool) -> None:
    from twofold.doctor import Severity, examine  # noqa: PLC0415  (loads the clients)

    found = examine(load(config_file))
    if as_json:
        click.echo(json.dumps([{**asdict(each), "severity": each.severity.name.lower()} for each in found], indent=2))
    else:
        say(*([] if found else ["no findings"]))
        for number, each in enumerate(found):
            say(*([""] if number else []), *report(each))
    if any(each.severity is Severity.MUST for each in found):
        sys.exit(SetupError.exit_status)


def report(finding: Finding) -> list[str]:
    """Return a finding as lines for people."""
    sign = {"MUST": "must", "SHOULD": "should", "NOTE": "note"}[finding.severity.name]
    remedy = (f"          {line}" for line in finding.remedy)
    return [f"{sign:<7} {finding.where}: {finding.what}", f"  why     {finding.why}", "  remedy", *remedy]
