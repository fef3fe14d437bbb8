"""`make interface`: what is promised under semantic versioning, listed from the code into
docs/reference/interface.json.

    python deploy/interface.py > docs/reference/interface.json

A test compares the list with the code, so that a change of the interface is noticed and meant. What
the words of the list stand for is in docs/reference/interface.md. Reads the code and two tables of
docs/ that tests hold to it; contacts nothing.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

import twofold
import twofold_avro
import twofold_common
import twofold_reader
import twofold_spark
from settings_page import settings
from twofold import cli, errors
from twofold.kafka.names import Names
from twofold_avro.names import topic_of
from twofold_avro.schemas import envelope_schema, fixed
from twofold_avro.shapes import TableShape
from twofold_spark import errors as job_errors
from twofold_spark.job.arguments import build_parser

DOCS: Final = Path(__file__).parents[1] / "docs"
_METRIC: Final = re.compile(r"^\| (`twofold_\w+.*) \|$", re.MULTILINE)
_NAME: Final = re.compile(r"`(twofold_\w+)(?:\{(.*?)\})?`")


def interface() -> dict[str, Any]:
    """All of it, as JSON."""
    names = Names("PREFIX", "NAME")
    return {
        "python": {
            module.__name__: dict(_names(module))
            for module in (twofold, twofold_avro, twofold_common, twofold_reader, twofold_spark)
        },
        "commands": {
            "twofold": dict(_click(cli.twofold, "twofold")),
            "twofold-spark": dict(_argparse(build_parser(), "twofold-spark")),
        },
        "settings": {name: f"{kind}, {default}" for name, kind, default in settings()},
        "exit statuses": {
            "twofold": _statuses(errors, errors.TwofoldError),
            "twofold-spark": _statuses(job_errors, job_errors.TwofoldError),
        },
        "topics": [
            topic_of("PREFIX", "SCHEMA", "TABLE"),
            names.messages,
            names.commits,
            names.prepared,
            names.progress,
            names.frontiers,
        ],
        "schemas": {
            "envelope": _fields(envelope_schema(TableShape(0, "public", "t", ()), "p")),
            **{
                name: _fields(fixed(name))
                for name in ("commit", "frontier", "message", "prepared", "source", "special", "transaction")
            },
        },
        "metrics": {
            page: sorted(_metrics((DOCS / page).read_text())) for page in ("reference/metrics.md", "use/spark.md")
        },
    }


def _names(module: Any) -> Iterator[tuple[str, str]]:
    """The names that a module exports, with how they are called."""
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, Exception):
            yield name, "an exception"
        else:
            yield name, str(inspect.signature(value)) if callable(value) else type(value).__name__


def _click(command: click.Command, path: str) -> Iterator[tuple[str, list[str]]]:
    yield path, sorted(_parameter(each) for each in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _click(inner, f"{path} {name}")


def _parameter(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(click.Context(click.Command("")))
    return "/".join((*parameter.opts, *parameter.secondary_opts))


def _argparse(line: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, list[str]]]:
    actions = line._actions  # noqa: SLF001  (argparse tells them in no other way)
    yield path, sorted("/".join(each.option_strings) for each in actions if each.option_strings)
    for action in actions:
        for name, inner in (action.choices or {}).items() if isinstance(action.choices, dict) else ():
            yield from _argparse(inner, f"{path} {name}")


def _statuses(module: Any, base: type[Exception]) -> list[int]:
    """Those of the errors that are raised on purpose."""
    classes: Iterator[Any] = (each for each in vars(module).values() if isinstance(each, type))
    return sorted({each.exit_status for each in classes if issubclass(each, base)})


def _fields(schema: Any) -> list[str]:
    return [field["name"] for field in schema["fields"]]


def _metrics(page: str) -> Iterator[str]:
    """Those of a page's tables, with their labels: behind the type, as "gauge by `state`", or in
    braces behind the name.
    """
    for row in _METRIC.findall(page):
        cells = row.split(" | ")
        own = re.findall(r"`(\w+)`", cells[1].partition(" by ")[2]) if len(cells) > 2 else []
        for name, braced in _NAME.findall(cells[0]):
            labels = own or re.findall(r"\w+", braced)
            yield f"{name}{{{', '.join(labels)}}}" if labels else name


if __name__ == "__main__":
    json.dump(interface(), sys.stdout, indent=1)
    print()  # noqa: T201
