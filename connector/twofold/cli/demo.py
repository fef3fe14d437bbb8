"""`twofold demo`."""

from __future__ import annotations

import shutil
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import click


@click.command(
    help="""Tell a story on this machine: a small bank, prepared transfers, a kill -9, a mirror table.

    With --databases 2: a transfer between two banks whose coordinator dies halfway, and a total that never changes. With --shards 2: one bank over two databases, an account that moves, and one table.

    Starts PostgreSQL, Kafka, a schema registry, the connector and a Spark job, all on loopback, and ends them. Ends with status 0 only if the mirror tables are as the story says.

    Example: twofold demo --keep"""
)
@click.option(
    "--keep", is_flag=True, help="Leave everything running at the end, print where it is, and wait for Ctrl-C."
)
@click.option(
    "--databases",
    type=click.Choice(["1", "2"]),
    default="1",
    show_default=True,
    help="2: the story of a transaction over two databases.",
)
@click.option(
    "--shards",
    type=click.Choice(["1", "2"]),
    default="1",
    show_default=True,
    help="2: the story of a table over two databases.",
)
@click.option(
    "--postgres",
    "version",
    type=click.Choice(["15", "16", "17", "18"]),
    help="PostgreSQL's version  [default: this machine's own].",
)
def command(*, keep: bool, databases: str, shards: str, version: str | None) -> None:
    from rich.console import Console  # noqa: PLC0415  (the demo alone needs these)

    from twofold.demo import check_spark, tell_group_story, tell_shard_story, tell_story  # noqa: PLC0415
    from twofold.demo.teller import Teller  # noqa: PLC0415
    from twofold.stack import LocalStack, temporary_folder  # noqa: PLC0415

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(soft_wrap=True)
    folder = temporary_folder()
    with console.status("looking whether Spark can run"):
        check_spark()
    with ExitStack() as ending:
        with console.status("starting PostgreSQL, Kafka and a schema registry"):
            stack = ending.enter_context(LocalStack(folder / "servers", postgres=version))
        console.print("PostgreSQL, Kafka and a schema registry are running on this machine", highlight=False)
        tell, moral = (
            (tell_shard_story, "Every global cut had every account once.")
            if shards == "2"
            else (tell_group_story, "Every global cut had the whole total.")
            if databases == "2"
            else (tell_story, "The mirror equals the source.")
        )
        cast = tell(Teller(console), stack, folder, ending)
        console.print(f"\n[bold green]{moral}[/]")
        if keep:
            _wait(cast.config, stack.postgres.dsn(), stack.kafka.bootstrap, stack.registry.url, cast.warehouse)
    shutil.rmtree(folder, ignore_errors=True)


def _wait(config: Path, postgres: str, kafka: str, registry: str, warehouse: Path) -> None:
    click.echo("\nAll of it is still running; Ctrl-C ends it.")
    for name, where in (
        ("PostgreSQL", postgres),
        ("Kafka", kafka),
        ("registry", registry),
        ("warehouse", warehouse),
        ("configuration", config),
    ):
        click.echo(f"  {name:<14} {where}")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        click.echo()
