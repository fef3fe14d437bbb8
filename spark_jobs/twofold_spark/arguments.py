"""What the command line takes: argparse, because the jobs bring no dependencies to a cluster. Refuses before Spark starts."""

from __future__ import annotations

import argparse
import datetime as dt
import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

from twofold_spark import __version__, session
from twofold_spark.running import Trigger
from twofold_spark.sinks.choice import SinkChoice

T = TypeVar("T")


class _Line(argparse.ArgumentParser):
    """Of a word that it does not know it says which one was meant, as the connector's command line does."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)'|unrecognized arguments: (\S+)", message)
        if wrong:
            word = (wrong[1] or wrong[2]).partition("=")[0]
            if near := difflib.get_close_matches(word, list(self._words()), 1):
                message = f"{message}; did you mean {near[0]}?"
        super().error(message)

    def _words(self) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings
            yield from map(str, action.choices or ())
            if isinstance(action.choices, dict):
                for command in action.choices.values():
                    yield from command._option_string_actions


def parser() -> argparse.ArgumentParser:
    line = _Line(prog="twofold-spark", description="From Twofold's topics to tables.")
    line.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = line.add_subparsers(dest="command", required=True, parser_class=_Line)
    commands.add_parser("jars", help="fetch the locked jars and print the class path")
    machine = _Line(add_help=False)
    machine.add_argument(
        "--warehouse", type=session.place, required=True, help="the tables' folder, under spark-submit also s3a://..."
    )
    machine.add_argument("--prefix", required=True, help="the connector's topic prefix")
    machine.add_argument("--catalog", default=session.CATALOG, help="the Iceberg catalog's name in Spark")
    machine.add_argument("--java-home", help="Java 17 or 21; else JAVA_HOME, else the newest of this machine that fits")
    machine.add_argument("--memory", default="512m", help="the driver's memory (not under spark-submit)")
    job = _Line(add_help=False)
    job.add_argument("--checkpoint", help="the stream's checkpoint (default: in the warehouse, one for each sink)")
    job.add_argument("--trigger", type=_checked(Trigger.parse), default=Trigger.parse("continuous"), help=Trigger.HELP)
    job.add_argument("--batch-rows", type=_count, default=500_000, help="rows that are applied at once, about")
    job.add_argument(
        "--on-table-error",
        choices=("stop", "go-on"),
        default="stop",
        help="when one table's changes cannot be applied: stop all, or that one (mirror: until it is reloaded; changelog: until the next start)",
    )
    job.add_argument(
        "--unreadable", choices=("stop", "skip"), default="stop", help="after a record went to the quarantine table"
    )
    job.add_argument("--metrics", type=_address, metavar="HOST:PORT", help="serve Prometheus' /metrics there")
    kept = _Line(add_help=False)
    kept.add_argument("--sink", type=_checked(SinkChoice.parse), default=SinkChoice("iceberg"), help=SinkChoice.HELP)
    mirror = commands.add_parser(
        "mirror",
        parents=[machine, _kafka_parser(required=True), job, kept],
        help="current-state tables, one consistent cut after another",
    )
    mirror.add_argument(
        "--batch-bytes",
        type=_count,
        default=512 << 20,
        help="bytes that are applied at once, about; the lesser of both counts",
    )
    mirror.add_argument("--maintain-every", type=_count, default=100, help="cuts from one compaction to the next")
    mirror.add_argument("--group", help="the consumer group that says how far it is (default: PREFIX.mirror)")
    mirror.add_argument("--keep-cuts", type=_hours, default=1, metavar="HOURS", help="how far back readers may ask")
    commands.add_parser(
        "changelog",
        parents=[machine, _kafka_parser(required=True), job],
        help="every change, appended to a table per source table",
    )
    verify = commands.add_parser(
        "verify", parents=[machine, _kafka_parser(required=False), kept], help="compare source and mirror"
    )
    verify.add_argument("--source", required=True, help="the source: jdbc:postgresql://host:port/database?user=...")
    verify.add_argument("--publication", help="the connector's, if it has not the prefix's name")
    verify.add_argument("--patience", type=float, default=60, help="seconds that the mirror may take to catch up")
    return line


def _kafka_parser(*, required: bool) -> _Line:
    why = "" if required else ", to name the last commit of a row that differs"
    kafka = _Line(add_help=False)
    kafka.add_argument("--bootstrap", required=required, help=f"Kafka's address{why}")
    kafka.add_argument("--registry", required=required, help=f"the schema registry's address{why}")
    kafka.add_argument(
        "--kafka", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="a setting of Kafka's client"
    )
    kafka.add_argument(
        "--kafka-file",
        type=_checked(_properties),
        metavar="FILE",
        help="a properties file with more of them, for secrets: what Kafka's own tools take as --command-config",
    )
    return kafka


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """What argparse calls: a ValueError's own message reaches the user."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _hours(text: str) -> float:
    try:
        hours = float(text)
        dt.timedelta(hours=hours)
    except (ValueError, OverflowError):
        hours = -1
    if hours < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours from 0 on")
    return hours


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, with a port from 1 to 65535")
    return host, int(port)


def _properties(file: str) -> dict[str, str]:
    try:
        lines = [line.strip() for line in Path(file).read_text().splitlines()]
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
