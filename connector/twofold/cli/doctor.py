"""`twofold doctor`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.config import load
from twofold.errors import SetupError

if TYPE_CHECKING:
    from twofold.ops.doctor import Finding


@click.command(
    help="""Look at PostgreSQL, Kafka, the registry and this machine: what is wrong or will be, why it matters, and the statement that mends it.

    Changes nothing. Works before init, while the connector runs, and when a server is away. Status 3 if there is anything without which it does not run.

    Example: twofold -c bank.toml doctor --json"""
)
@click.option("--json", "as_json", is_flag=True, help="A JSON array, the heaviest first.")
@click.pass_obj
def command(config_file: Path | None, *, as_json: bool) -> None:
    from twofold.ops.doctor import Severity, examine  # noqa: PLC0415  (loads the clients)

    found = examine(load(config_file))
    if as_json:
        click.echo(json.dumps([{**asdict(each), "weight": each.weight.name.lower()} for each in found], indent=2))
    else:
        click.echo("\n\n".join(map(_words, found)) or "nothing to mend")
    if any(each.weight is Severity.MUST for each in found):
        sys.exit(SetupError.exit_status)


def _words(finding: Finding) -> str:
    sign = {"MUST": "must", "SHOULD": "should", "NOTE": "note"}[finding.weight.name]
    mend = "\n".join(f"          {line}" for line in finding.mend)
    return f"{sign:<7} {finding.where}: {finding.what}\n  why     {finding.why}\n  mend\n{mend}"
