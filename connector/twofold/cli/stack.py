"""`twofold stack`: PostgreSQL, Kafka and a registry on this machine."""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import asdict
from pathlib import Path

import click

from twofold.errors import Unreachable
from twofold.stack import LocalStack, Ports, running
from twofold.stack.local import fetch_all
from twofold.stack.running import Endpoints

_folder = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data and logs  [default: a folder of yours below the temporary one].",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(name="stack")
def command() -> None:
    """PostgreSQL, Kafka and a registry on this machine, without Docker.

    What they need is fetched once into a cache. They listen on loopback only, on free ports, and
    end with the command that runs them.

    Example: twofold stack up --postgres 17 --brokers 3
    """


@command.command()
@_folder
@click.option(
    "--postgres", "version", type=click.Choice(["15", "16", "17", "18"]), help="  [default: this machine's own]."
)
@click.option("--brokers", type=click.IntRange(1, 9), default=1, show_default=True, help="Kafka nodes; 3 replicate.")
@click.option("--registry/--no-registry", default=True, help="With a schema registry or without.")
@click.option("--postgres-port", type=click.IntRange(1024, 65535), help="  [default: a free one].")
@click.option("--kafka-port", type=click.IntRange(1024, 65535), help="  [default: a free one].")
@click.option("--registry-port", type=click.IntRange(1024, 65535), help="  [default: a free one].")
@click.option("--detach", is_flag=True, help="Return when it is ready; `twofold stack down` ends it.")
@_as_json
def up(
    *,
    folder: Path | None,
    version: str | None,
    brokers: int,
    registry: bool,
    postgres_port: int | None,
    kafka_port: int | None,
    registry_port: int | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Start it, print where it is, and run until Ctrl-C. Data of the folder is kept.

    Example: twofold stack up --detach
    """
    folder = (folder or running.default_folder()).absolute()
    if detach:
        # Here and not in the detached process, where nobody would see the progress.
        fetch_all(registry=registry)
        options = {
            "--postgres": version,
            "--brokers": brokers,
            "--postgres-port": postgres_port,
            "--kafka-port": kafka_port,
            "--registry-port": registry_port,
        }
        chosen = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        chosen.append("--registry" if registry else "--no-registry")
        _show(running.detach(folder, chosen, lambda line: click.echo(line, err=True)), as_json)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        running.holding(folder),
        LocalStack(
            folder,
            postgres=version,
            brokers=brokers,
            registry=registry,
            ports=Ports(postgres_port, kafka_port, registry_port),
            say=lambda words: click.echo(words, err=True),
        ) as stack,
    ):
        found = Endpoints.of(stack)
        running.publish(found)
        _show(found, as_json)
        if not as_json:
            click.echo("Ctrl-C ends it.")
        # Until Ctrl-C or SIGTERM, which is how it is meant to end.
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            click.echo("ending", err=True)


@command.command()
@_folder
def down(folder: Path | None) -> None:
    """End the running one. Data is kept.

    Example: twofold stack down
    """
    folder = (folder or running.default_folder()).absolute()
    click.echo("ended" if running.end(folder) else f"no stack runs in {folder}")


@command.command()
@_folder
@_as_json
def status(folder: Path | None, as_json: bool) -> None:
    """Print where the running stack is. Exit status 4 if there is none.

    Example: twofold stack status --json
    """
    folder = (folder or running.default_folder()).absolute()
    found = running.endpoints(folder)
    if found is None:
        raise Unreachable(f"no stack runs in {folder}: twofold stack up")
    _show(found, as_json)


def _show(found: Endpoints, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    click.echo(f"PostgreSQL {found.postgres_version}  {found.postgres}")
    click.echo(f"Kafka          {found.kafka}")
    if found.registry:
        click.echo(f"registry       {found.registry}")
    click.echo(f"data and logs  {found.folder}")
