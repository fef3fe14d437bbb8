"""`twofold config show|check`: the configuration after file and environment."""

from __future__ import annotations

import json
from pathlib import Path

import click

from twofold.config import load
from twofold.errors import Unreachable, UsageError
from twofold_common.secret_sources import SecretFile


@click.group(help="Show or check the configuration.\n\nExample: twofold -c bank.toml config check")
def command() -> None:
    pass


@command.command(help="Print the configuration as JSON, defaults included.\n\nExample: twofold config show")
@click.pass_obj
def show(config_file: Path | None) -> None:
    click.echo(json.dumps(load(config_file).model_dump(mode="json"), indent=2))


@command.command(
    help="Read the configuration and say whether it is usable; contacts no server.\n\nExample: twofold config check"
)
@click.pass_obj
def check(config_file: Path | None) -> None:
    from twofold.kafka.kafka_settings import kafka_settings, open_registry, topic_policy  # noqa: PLC0415  (loads the clients)
    from twofold.run.source_settings import wanted_publication  # noqa: PLC0415

    config = load(config_file)
    for reads in (lambda c: c.policy.hash_key, wanted_publication, kafka_settings, topic_policy, open_registry):
        reads(config)
    for source in config.secrets:
        if isinstance(source, SecretFile):
            try:
                source.ask()
            except Unreachable as error:
                raise UsageError(str(error)) from None
    click.echo(f"configuration of connector {config.name} is usable")
