"""`twofold wait`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from twofold.cli.terminal import say
from twofold.config import load


@click.command(
    help="""Wait until everything up to a position of the source is visible: to consumers of Kafka, or in the tables of a mirror.

    Give the position that the source has behind your COMMIT (SELECT pg_current_wal_lsn()); then your own rows are there. Status 4 if it is not visible within the time; the message says how far it is. Reads the end of the progress topic and what the mirror says in the consumer group PREFIX.mirror, and no table. While nothing that is published happens in the source, a position may take turn.idle_progress.

    Example: twofold -c bank.toml wait 0/1A2B3C --until mirror --timeout 10"""
)
@click.argument("position")
@click.option(
    "--until",
    type=click.Choice(["kafka", "mirror", "global"]),
    default="kafka",
    show_default=True,
    help="Where it must be visible; global: in the cuts of a source group's mirror.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@click.pass_obj
def command(config_file: Path | None, position: str, until: str, timeout_s: float) -> None:
    from twofold.kafka.kafka_settings import kafka_settings, open_registry  # noqa: PLC0415  (loads the clients)
    from twofold.kafka.metadata import ask_brokers  # noqa: PLC0415
    from twofold_reader import PositionWaiter  # noqa: PLC0415

    config = load(config_file)
    began = time.monotonic()
    settings = kafka_settings(config)
    ask_brokers(settings)
    registry = open_registry(config)
    with PositionWaiter(config.prefix, settings.open_consumer, registry.schema) as waiter:
        waiter.wait(position, until=until, timeout_s=timeout_s)  # type: ignore[arg-type]
    where = {"kafka": "in Kafka", "mirror": "in the mirror", "global": "in the global cut"}[until]
    say(f"{position} is visible {where}, after {time.monotonic() - began:.1f} s")
