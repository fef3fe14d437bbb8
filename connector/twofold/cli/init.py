"""`twofold init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold.errors import SetupError

if TYPE_CHECKING:
    from twofold.doctor.dry_run import InitPlan


@click.command(
    help="""Make the publication (if source.tables names any), the replication slot and the topics.

    May be run again at any time; existing parts stay as they are. Making a slot waits for running transactions, prepared ones included; it names them.

    With --dry-run it changes nothing, and shows what it would create, each table with its key, its rows by PostgreSQL's estimate and its topic, then the findings of `twofold doctor`, also those of tables that are not published yet. Status 3 if init would refuse.

    Example: twofold -c bank.toml init --dry-run"""
)
@click.option("--dry-run", is_flag=True, help="Only show what would be created.")
@click.pass_obj
def command(config_file: Path | None, *, dry_run: bool) -> None:
    config = load(config_file)
    if not dry_run:
        from twofold.run.initialisation import initialise  # noqa: PLC0415  (loads the clients)

        initialise(config, say)
        return
    from twofold.doctor import Severity  # noqa: PLC0415
    from twofold.doctor.dry_run import plan_init  # noqa: PLC0415  (loads the clients)

    plan = plan_init(config)
    say(*_report(plan))
    if any(each.severity is Severity.MUST for each in plan.findings):
        sys.exit(SetupError.exit_status)


def _report(plan: InitPlan) -> list[str]:
    from twofold.cli.doctor import report  # noqa: PLC0415

    lines = [f"would create  {each}" for each in plan.creates] + [f"is there      {each}" for each in plan.there]
    for each in plan.tables:
        key = f"key {', '.join(each.key)}" if each.key else "NO KEY"
        rows = "rows not known" if each.rows is None else f"about {each.rows:,} rows"
        lines.append(f"table         {each.table}  {key}, {rows}, {each.topic or 'an outbox'}")
    for finding in plan.findings:
        lines += ["", *report(finding)]
    return [*lines, "", "nothing was changed"]
