"""The command line of the jobs: argparse, because the jobs bring no dependencies to a cluster.

    python -m twofold_spark mirror    --bootstrap 127.0.0.1:9092 --registry http://127.0.0.1:8081 --prefix shop
                                      --warehouse ./lake --trigger interval=1s
    python -m twofold_spark changelog (the same)
    python -m twofold_spark verify    --source 'host=127.0.0.1 dbname=shop user=me'
                                      --prefix shop --warehouse ./lake
    python -m twofold_spark jars      fetches the locked jars and prints the class path

A job ends on SIGTERM or Ctrl-C after the batch that it is in, with exit status 0.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from twofold_spark import jars, session
from twofold_spark.changelog import Appended, Changelog
from twofold_spark.errors import Different, JobError
from twofold_spark.kafka import Kafka
from twofold_spark.metrics import Metrics, serve
from twofold_spark.mirror import Applied, Mirror
from twofold_spark.registry import Registry
from twofold_spark.running import Job, Trigger, say
from twofold_spark.sinks.choice import SinkChoice
from twofold_spark.source import Source, jdbc_url
from twofold_spark.verify import Verify
from twofold_spark.whereabouts import Whereabouts

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "jars":
                print(os.pathsep.join(str(jar) for jar in jars.fetch()))  # noqa: T201  (what the command is for)
            case "mirror":
                _mirror(options)
            case "changelog":
                _changelog(options)
            case "verify":
                return _verify(options)
    except JobError as error:
        say(f"{options.command}: {error}")
        return error.exit_status
    return 0


def _mirror(options: argparse.Namespace) -> None:
    spark = _session(options)
    metrics = _metrics(spark, options)
    where = _kafka(options)
    whereabouts = Whereabouts(spark, where, options.prefix, options.group or f"{options.prefix}.mirror", say)

    def report(applied: Applied) -> None:
        metrics.applied(
            applied.rows,
            applied.stages,
            lag_seconds=applied.lag_seconds,
            cut_sequence=applied.cut.sequence,
            tables_stopped=len(applied.cut.stopped_tables),
        )
        whereabouts.tell(applied)
        say(str(applied))

    mirror = Mirror(
        where,
        Registry(options.registry),
        options.prefix,
        lambda its: options.sink.sink(its, options.prefix, catalog=options.catalog),
        bite_rows=options.batch_rows,
        bite_bytes=options.batch_bytes,
        unreadable=options.unreadable,
        on_table_error=options.on_table_error,
        maintain_every=options.maintain_every,
        keep_cuts=dt.timedelta(hours=options.keep_cuts),
        report=report,
    )
    job = Job("mirror", mirror)
    job.start(mirror.stream(spark), options.checkpoint or options.warehouse / "checkpoints" / "mirror", options.trigger)
    try:
        job.run()
    finally:
        mirror.close()
        whereabouts.close()


def _changelog(options: argparse.Namespace) -> None:
    spark = _session(options)
    metrics = _metrics(spark, options)

    def report(appended: Appended) -> None:
        say(str(appended))
        stages = {"append": appended.seconds}
        metrics.applied(appended.records, stages, tables_stopped=appended.stopped, offsets_behind=appended.behind)

    changelog = Changelog(
        spark,
        _kafka(options),
        Registry(options.registry),
        options.prefix,
        catalog=options.catalog,
        batch_rows=options.batch_rows,
        unreadable=options.unreadable,
        on_table_error=options.on_table_error,
        report=report,
    )
    try:
        changelog.run(options.trigger)
    finally:
        changelog.close()


def _verify(options: argparse.Namespace) -> int:
    url = jdbc_url(options.source)
    spark = _session(options)
    reader = options.sink.reader(spark, catalog=options.catalog)
    source = Source(spark, url)
    try:
        verify = Verify(
            spark,
            source,
            reader=reader,
            prefix=options.prefix,
            publication=options.publication or options.prefix,
            patience=options.patience,
            say=print,
        )
        differing = any(result.buckets for result in verify.run())
        return Different.exit_status if verify.missing() or differing else 0
    finally:
        source.close()


def _metrics(spark: SparkSession, options: argparse.Namespace) -> Metrics:
    metrics = Metrics(options.command)
    spark.streams.addListener(metrics)
    if options.metrics is not None:
        serve(metrics, options.metrics)
    return metrics


def _kafka(options: argparse.Namespace) -> Kafka:
    return Kafka(options.bootstrap, {**(options.kafka_file or {}), **dict(options.kafka)})


def _session(options: argparse.Namespace) -> SparkSession:
    return session.open_session(
        options.warehouse, catalog=options.catalog, memory=options.memory, java_home=options.java_home
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m twofold_spark", description="From Twofold's topics to tables.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("jars", help="fetch the locked jars and print the class path")
    machine = argparse.ArgumentParser(add_help=False)
    machine.add_argument("--warehouse", type=lambda p: Path(p).absolute(), required=True, help="the tables' folder")
    machine.add_argument("--prefix", required=True, help="the connector's topic prefix")
    machine.add_argument("--catalog", default=session.CATALOG, help="the Iceberg catalog's name in Spark")
    machine.add_argument("--java-home", help="Java 17 or 21; else JAVA_HOME, else java on the PATH")
    machine.add_argument("--memory", default="512m", help="the driver's memory (not under spark-submit)")
    job = argparse.ArgumentParser(add_help=False)
    job.add_argument("--bootstrap", required=True, help="Kafka's address")
    job.add_argument("--registry", required=True, help="the schema registry's address")
    job.add_argument("--trigger", type=_checked(Trigger.parse), default=Trigger.parse("continuous"), help=Trigger.HELP)
    job.add_argument("--batch-rows", type=int, default=500_000, help="rows that are applied at once, about")
    job.add_argument(
        "--on-table-error",
        choices=("stop", "go-on"),
        default="stop",
        help="when one table's changes cannot be applied: stop all, or that one (mirror: until it is reloaded; changelog: until the next start)",
    )
    job.add_argument(
        "--unreadable", choices=("stop", "skip"), default="stop", help="after a record went to the quarantine table"
    )
    job.add_argument(
        "--kafka", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="a setting of Kafka's client"
    )
    job.add_argument("--metrics", type=_address, metavar="HOST:PORT", help="serve Prometheus' /metrics there")
    job.add_argument(
        "--kafka-file",
        type=_checked(_properties),
        metavar="FILE",
        help="a properties file with more of them, for secrets: what Kafka's own tools take as --command-config",
    )
    kept = argparse.ArgumentParser(add_help=False)
    kept.add_argument("--sink", type=_checked(SinkChoice.parse), default=SinkChoice("iceberg"), help=SinkChoice.HELP)
    mirror = commands.add_parser(
        "mirror", parents=[machine, job, kept], help="current-state tables, one consistent cut after another"
    )
    mirror.add_argument(
        "--batch-bytes",
        type=int,
        default=512 << 20,
        help="bytes that are applied at once, about; the lesser of both counts",
    )
    mirror.add_argument("--checkpoint", type=Path, help="the stream's checkpoint (default: in the warehouse)")
    mirror.add_argument("--maintain-every", type=int, default=1000, help="cuts from one compaction to the next")
    mirror.add_argument("--group", help="the consumer group that says how far it is (default: PREFIX.mirror)")
    mirror.add_argument("--keep-cuts", type=float, default=24, metavar="HOURS", help="how far back readers may ask")
    commands.add_parser("changelog", parents=[machine, job], help="every change, appended to a table per source table")
    verify = commands.add_parser("verify", parents=[machine, kept], help="compare source and mirror")
    verify.add_argument("--source", required=True, help="the source: jdbc:postgresql://host:port/database?user=...")
    verify.add_argument("--publication", help="the connector's, if it has not the prefix's name")
    verify.add_argument("--patience", type=float, default=60, help="seconds that the mirror may take to catch up")
    return parser


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """What argparse calls: a ValueError's own message reaches the user."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
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
