"""`twofold wait`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twofold.cli.terminal import say
from twofold.config import load
from twofold.errors import SetupError, Unreachable
from twofold_common.positions import Lsn

if TYPE_CHECKING:
    from twofold.config import Config
    from twofold.kafka.progress import RecoveredState


@click.command(
    help="""Wait until everything up to a position of the source is visible: to consumers of Kafka, or in the tables of a mirror.

    Give the position that the source has behind your COMMIT (SELECT pg_current_wal_lsn()); then your own rows are there, except those of a table without a key that is being loaded: such tables are named. Status 4 if it is not visible within the time; the message says how far it is. Reads the progress topic and what the mirror says in the consumer group PREFIX.mirror, and no table; status 5 if the source has another history than what is in Kafka. While nothing that is published happens in the source, a position may take turn.idle_progress.

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
    from twofold.inspect.status_report import held_tables, read_progress  # noqa: PLC0415  (loads the clients)
    from twofold.kafka.kafka_settings import kafka_settings, open_registry  # noqa: PLC0415
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
    waited_s = time.monotonic() - began
    recovered = read_progress(config)
    _refuse_other_history(config, recovered)
    say(f"{position} is visible {where}, after {waited_s:.1f} s")
    if waiting := held_tables(recovered):
        say(f"without the rows of {', '.join(waiting)}: no key, so they come with the end of the load")


def _refuse_other_history(config: Config, recovered: RecoveredState) -> None:
    """Raise what `run` would if the position may be of another history than what is in Kafka. One
    who cannot reach the source has the position of somebody who could, and is believed.
    """
    from twofold.inspect.checks import check_positions, slot_gone  # noqa: PLC0415
    from twofold.source.identity import read_facts, slot_state  # noqa: PLC0415  (loads the client)

    progress = recovered.progress
    if progress is None:
        return
    try:
        if slot_state(config.conninfo, config.slot) is None:
            raise slot_gone(config.slot, config.prefix, Lsn(progress.applied_lsn))
        source = read_facts(config.conninfo, config.slot)
    except (SetupError, Unreachable):
        return
    check_positions(progress, source, config.prefix)
