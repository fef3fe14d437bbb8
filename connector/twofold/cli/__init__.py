"""The command line: one module a command, errors on one line, exit statuses with a meaning.

Importing this package must stay quick: a command imports what it needs when it runs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from twofold import __version__
from twofold.errors import TwofoldError
from twofold_common.crashes import leave_no_core
from twofold_common.printable import keep_stderr_printable, printable

COMMANDS = {
    "init": "Make publication, slot and topics.",
    "run": "Publish changes until stopped.",
    "status": "Show progress.",
    "doctor": "Find problems and fixes.",
    "audit": "Compare commit records with what consumers see.",
    "backfill": "Load tables: start, pause, resume, cancel, status, estimate.",
    "skip": "Leave out one row that cannot be published.",
    "prepared": "Prepared transactions in doubt.",
    "tail": "Show changes as they become visible.",
    "wait": "Wait until a position of the source is visible.",
    "reset": "Remove what init made.",
    "config": "Show or check the configuration.",
    "stack": "PostgreSQL, Kafka and a registry on this machine, without Docker.",
    "demo": "A story to watch, on this machine.",
    "version": "Print the version.",
}

EXIT_STATUSES = """\b
Exit statuses:
  0  done                       4  a server does not answer
  1  unforeseen error           5  refused: going on could lose or repeat data
  2  wrong usage, configuration 6  fenced: another instance took over
  3  something is missing       7  a server sent malformed bytes
                                8  Kafka's client hung: start it again
"""


_CLEANS_UP = {"run", "stack", "demo", "status"}
"""Commands that end something of theirs after Ctrl-C: servers, sessions, a screen."""


class _Lazy(click.Group):
    """Knows the commands' names, and imports a command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and (alike := get_close_matches(name, COMMANDS, n=1)):
            ctx.fail(f"No such command {name!r}. Did you mean {alike[0]!r}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"twofold.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=_Lazy, epilog=EXIT_STATUSES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "--config",
    "-c",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TWOFOLD_CONFIG",
    help="Configuration file [default: twofold.toml if it is there].",
)
@click.version_option(__version__, message="twofold %(version)s")
@click.pass_context
def twofold(ctx: click.Context, config_file: Path | None) -> None:
    """Copy PostgreSQL's changes into Kafka exactly once, prepared transactions included.

    Try it on this machine, with nothing installed: twofold demo
    """
    from twofold.cli.terminal import ended_at_once  # noqa: PLC0415

    ctx.obj = config_file
    leave_no_core()
    if ctx.invoked_subcommand not in _CLEANS_UP:
        ctx.with_resource(ended_at_once())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, this process's own if no other is given.

    An error raised on purpose is one message on stderr and an exit status.
    """
    keep_stderr_printable()
    try:
        twofold.main(arguments, prog_name="twofold", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and error.option_name in {"-c", "--config"}:
            click.echo("It stands before the command: twofold -c FILE COMMAND", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):
            raise error.__cause__ from None  # click takes every EOFError for a terminal's; this one is a bug
        click.echo("stopped", err=True)
        sys.exit(130)
    except TwofoldError as error:
        click.echo(printable(f"twofold: {error}", lines=True), err=True)
        sys.exit(error.exit_status)
