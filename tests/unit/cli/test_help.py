"""What the command line says of itself: an example on each command, the exit statuses,
completion.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from twofold import __version__, errors
from twofold.cli import COMMANDS, EXIT_STATUSES, twofold
from twofold.kafka.watch import EXIT_STALLED

DOCS = Path(__file__).parents[3] / "docs/reference"


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            yield (*path, name)
            if isinstance(command, click.Group):
                yield from commands(command, *path, name)


ALL = list(commands(twofold))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_with_an_example_of_itself(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(twofold, [*path, "--help"])
    assert shown.exit_code == 0
    example = re.search(r"Example:\s+twofold (?:-c \S+ )?(.*)", shown.output)
    assert example, shown.output
    assert example[1].startswith(" ".join(path))


def test_what_reports_takes_json() -> None:
    for path in (
        ("status",),
        ("doctor",),
        ("prepared", "list"),
        ("prepared", "show"),
        ("tail",),
        ("backfill", "estimate"),
        ("stack", "status"),
        ("backfill", "status"),
        ("version",),
    ):
        assert "--json" in CliRunner().invoke(twofold, [*path, "--help"]).output, path


def statuses() -> dict[int, str]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TwofoldError)]
    return {kind.exit_status: kind.__name__ for kind in kinds} | {EXIT_STALLED: "stalled"}


def test_every_exit_status_is_distinct_and_documented() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TwofoldError)]
    statuses_of_kinds = (vars(kind).get("exit_status", 1) for kind in kinds)  # others inherit theirs
    own = [status for status in statuses_of_kinds if status != 1] + [EXIT_STALLED]
    assert len(own) == len(set(own))
    table = (DOCS / "command-line.md").read_text()
    for status in statuses():
        assert re.search(rf"^\| {status} \|", table, re.MULTILINE), status
        assert re.search(rf"(^|\s){status}  ", EXIT_STATUSES), status


def test_every_command_is_in_the_documentation() -> None:
    table = (DOCS / "command-line.md").read_text()
    for name in COMMANDS:
        assert f"`{name}" in table, name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from twofold.cli import main; main()"],
        env={**os.environ, "_TWOFOLD_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "_TWOFOLD_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("prep", {"prepared"}),
        ("prepared s", {"show"}),
        ("backfill s", {"start", "status"}),
        ("status --l", {"--live"}),
        ("stack up --postgres 1", {"15", "16", "17", "18"}),
    ],
)
def test_bash_completes(typed: str, offered: set[str]) -> None:
    words = ["twofold", *typed.split()]
    done = subprocess.run(
        [sys.executable, "-c", "from twofold.cli import main; main()"],
        env={
            **os.environ,
            "_TWOFOLD_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert {line.partition(",")[2] for line in done.stdout.split()} == offered


@pytest.mark.parametrize(
    ("given", "meant"),
    [(["statsu"], "'status'"), (["prepred", "list"], "'prepared'"), (["backfill", "strat"], "'start'")],
)
def test_a_mistyped_command_is_told_what_was_meant(given: list[str], meant: str) -> None:
    shown = CliRunner().invoke(twofold, given)
    assert shown.exit_code == 2
    assert re.search(f"Did you mean.*{meant}", shown.output)
    assert "Did you mean" not in CliRunner().invoke(twofold, ["xyzzy"]).output


def test_the_version_is_an_option_too() -> None:
    assert CliRunner().invoke(twofold, ["--version"]).output == f"twofold {__version__}\n"
