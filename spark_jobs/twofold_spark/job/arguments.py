"""The options of the command line, checked before Spark starts.

argparse reads them, because the jobs bring no dependencies to a cluster.
"""

from __future__ import annotations

import argparse
import datetime as dt
import difflib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from twofold_spark import __version__, session
from twofold_spark.catalog_choice import CatalogChoice
from twofold_spark.sinks import partitioning
from twofold_spark.sinks.iceberg_tables import FORMAT_VERSION
from twofold_spark.sinks.merge_plan import WRITE_MODES
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sinks.sink_choice import SinkChoice
from twofold_spark.streaming import Trigger

T = TypeVar("T")


class _Parser(argparse.ArgumentParser):
    """Suggests the word that was probably meant, as the connector's command line does."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)'|unrecognized arguments: (\S+)", message)
        # A misspelt option leaves the one that was meant missing, and argparse names that first.
        words = [wrong[1] or wrong[2]] if wrong else [word for word in self._given if word.startswith("--")]
        for word in (each.partition("=")[0] for each in words):
            if near := self._near(word):
                message = f"{message}; {'' if wrong else f'{word} is unknown, '}did you mean {near}?"
                break
        super().error(message)

    def _near(self, word: str) -> str | None:
        known = list(self._known_words())
        if any(each.startswith(word) for each in known):
            return None  # argparse takes a beginning for the whole
        return next(iter(difflib.get_close_matches(word, known, 1)), None)

    def _known_words(self) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings
            yield from map(str, action.choices or ())
            if isinstance(action.choices, dict):
                for command in action.choices.values():
                    yield from command._option_string_actions


def build_parser() -> argparse.ArgumentParser:
    line = _Parser(prog="twofold-spark", description="Carries Twofold's topics into tables.")
    line.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = line.add_subparsers(dest="command", required=True, parser_class=_Parser)
    jars = commands.add_parser("jars", help="fetch the locked jars and print the class path")
    jars.add_argument("--s3", action="store_true", help="also those of a warehouse in S3")
    session_options, job_options, sink_option = _session_options(), _job_options(), _sink_option()
    group_options = _session_options(prefixes=True)
    mirror = commands.add_parser(
        "mirror",
        parents=[group_options, _kafka_options(required=True), job_options, sink_option],
        help="keep current-state tables, one consistent cut after another",
    )
    _add_mirror_options(mirror)
    commands.add_parser(
        "changelog",
        parents=[group_options, _kafka_options(required=True), job_options],
        help="append every change to a table for each source table, or for all shards of one",
    )
    verify = commands.add_parser(
        "verify",
        parents=[session_options, _kafka_options(required=False), sink_option],
        help="compare source and mirror",
    )
    verify.add_argument(
        "--source", required=True, help="the source database: jdbc:postgresql://host:port/database?user=..."
    )
    verify.add_argument("--publication", help="the connector's publication (default: the prefix)")
    verify.add_argument(
        "--patience", type=float, default=60, help="seconds that the mirror's cut may stand still while it is behind"
    )
    return line


def _session_options(*, prefixes: bool = False) -> _Parser:
    options = _Parser(add_help=False)
    options.add_argument(
        "--warehouse",
        type=session.absolute_folder,
        required=True,
        help="folder of the tables, or s3://... with a catalog",
    )
    if prefixes:
        sources = options.add_mutually_exclusive_group(required=True)
        sources.add_argument(
            "--prefix",
            action="append",
            dest="prefixes",
            help="the connector's topic prefix; again for each further member of a source group",
        )
        sources.add_argument(
            "--source-group", metavar="NAME", help="all members of this source group, by their connectors' frontiers"
        )
        options.add_argument(
            "--sharded",
            type=Sharding.parse,
            default=NO_SHARDING,
            metavar="SCHEMA.TABLE[,SCHEMA.TABLE]",
            help="tables that all members of a source group share: each becomes one table, with the member as its column "
            "_member; * stands for any letters",
        )
    else:
        options.add_argument("--prefix", required=True, help="the connector's topic prefix")
    options.add_argument("--catalog", default=session.CATALOG, help="name of the Iceberg catalog in Spark")
    options.add_argument(
        "--catalog-type",
        choices=CatalogChoice.KINDS,
        help="kind of the catalog (default: as --catalog-uri says; without one sqlite, a file in the warehouse)",
    )
    options.add_argument("--catalog-uri", metavar="URI", help="address of a catalog: http(s)://, jdbc:, thrift://")
    options.add_argument(
        "--catalog-file",
        type=_with_message(_read_properties),
        metavar="FILE",
        help="a properties file for Iceberg's client of the catalog, for secrets and the like: "
        "credential, token, warehouse, jdbc.user, jdbc.password",
    )
    options.add_argument(
        "--java-home", help="home of Java 17 or 21 (default: JAVA_HOME, then the newest on this machine that fits)"
    )
    options.add_argument(
        "--memory", type=_parse_memory, default="512m", help="memory of the driver, as 2g (ignored under spark-submit)"
    )
    return options


def _job_options() -> _Parser:
    options = _Parser(add_help=False)
    options.add_argument(
        "--checkpoint", help="folder of the stream's checkpoint (default: in the warehouse, one for each sink)"
    )
    options.add_argument(
        "--trigger", type=_with_message(Trigger.parse), default=Trigger.parse("continuous"), help=Trigger.HELP
    )
    options.add_argument(
        "--format-version",
        type=int,
        choices=(2, 3),
        default=FORMAT_VERSION,
        help="Iceberg's format of tables that are made; 2 for engines that read no deletion vectors",
    )
    options.add_argument("--batch-rows", type=_parse_count, default=500_000, help="rows of a batch, about")
    options.add_argument(
        "--on-table-error",
        choices=("stop", "go-on"),
        default="stop",
        help="if one table's changes cannot be applied: stop the job, or only that table "
        "(mirror: until it is reloaded; changelog: until the next start)",
    )
    options.add_argument(
        "--unreadable",
        choices=("stop", "skip"),
        default="stop",
        help="what to do after a record that cannot be decoded went to the quarantine table",
    )
    options.add_argument(
        "--metrics", type=_parse_address, metavar="HOST:PORT", help="serve Prometheus' /metrics at this address"
    )
    return options


def _sink_option() -> _Parser:
    option = _Parser(add_help=False)
    option.add_argument(
        "--sink", type=_with_message(SinkChoice.parse), default=SinkChoice("iceberg"), help=SinkChoice.HELP
    )
    return option


def _add_mirror_options(mirror: argparse.ArgumentParser) -> None:
    mirror.add_argument(
        "--batch-bytes",
        type=_parse_count,
        default=512 << 20,
        help="bytes of a batch, about; the smaller of both limits counts",
    )
    mirror.add_argument(
        "--partition-by",
        type=_with_message(partitioning.parse_partitioning),
        action="append",
        default=[],
        metavar="SCHEMA.TABLE=TRANSFORM[,TRANSFORM]",
        help=partitioning.HELP,
    )
    mirror.add_argument(
        "--unique-keys",
        action="store_true",
        help="refuse a cut in which two members have a row of one key in a sharded table (default: both rows are kept)",
    )
    mirror.add_argument(
        "--write-mode",
        choices=WRITE_MODES,
        default="by-size",
        help="what a merge writes in Iceberg: a table's files again (copy-on-write), what changed beside them "
        "(merge-on-read), or the first for small tables alone (default: by-size)",
    )
    mirror.add_argument("--maintain-every", type=_parse_count, default=100, help="cuts between two compactions")
    mirror.add_argument("--group", help="consumer group that shows the mirror's progress (default: PREFIX.mirror)")
    mirror.add_argument(
        "--keep-cuts",
        type=_parse_hours,
        default=1,
        metavar="HOURS",
        help="how long readers may ask for a cut that was replaced",
    )


def _kafka_options(*, required: bool) -> _Parser:
    why = "" if required else ", to name the last commit of a row that differs"
    options = _Parser(add_help=False)
    options.add_argument("--bootstrap", required=required, help=f"Kafka's address{why}")
    options.add_argument("--registry", required=required, help=f"the schema registry's address{why}")
    options.add_argument(
        "--kafka",
        type=_parse_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Kafka's client",
    )
    options.add_argument(
        "--kafka-file",
        type=_with_message(_read_properties),
        metavar="FILE",
        help="a properties file with such settings, for secrets: the file that Kafka's tools take as --command-config",
    )
    return options


def _with_message(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wrap a parser for argparse, so that the message of its ValueError reaches the user."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer >= 1")
    return int(text)


def _parse_memory(text: str) -> str:
    found = re.fullmatch("([0-9]+)([mg])", text.lower())
    # Batches are made for 512 MB. Java takes no `1gb`, and fails with a trace.
    if not found or int(found[1]) << (10 if found[2] == "g" else 0) < 512:
        raise argparse.ArgumentTypeError(f"{text!r} must be a size in m or g, at least 512m")
    return text.lower()


def _parse_hours(text: str) -> float:
    try:
        hours = float(text)
        dt.timedelta(hours=hours)
    except (ValueError, OverflowError):
        hours = -1
    if hours < 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of hours >= 0")
    return hours


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} must be HOST:PORT, with a port from 1 to 65535")
    return host, int(port)


def _read_properties(file: str) -> dict[str, str]:
    try:
        lines = [line.strip() for line in Path(file).read_text("utf-8-sig").splitlines()]
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read {file}: it is not UTF-8 at byte {error.start}") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    for name, value in found.items():
        if _is_empty_secret(name, value):
            raise ValueError(f"{file} has {name}, {_EMPTY}")
    return found


_SECRET = re.compile("password|secret|token$|credential|access[.-]key|sasl[.]jaas", re.IGNORECASE)
_NO_PASSWORD = re.compile(r"""password\s*=\s*(""|''|;|\s|$)""", re.IGNORECASE)
_EMPTY = "which is empty, and no secret is: give it a value, or leave it out"


def _is_empty_secret(name: str, value: str) -> bool:
    """Tell whether a setting is a secret without content, by itself or in a login module's line."""
    return _SECRET.search(name) is not None and (not value.strip() or _NO_PASSWORD.search(value) is not None)


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("must be NAME=VALUE")  # what was given may be a secret
    if _is_empty_secret(name, value):
        raise argparse.ArgumentTypeError(f"has {name}, {_EMPTY}")
    return name, value
