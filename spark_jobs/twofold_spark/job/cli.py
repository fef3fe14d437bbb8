"""The command line of the jobs.

    twofold-spark mirror    --bootstrap 127.0.0.1:9092 --registry http://127.0.0.1:8081 --prefix shop
                            --warehouse ./lake --trigger interval=1s
    twofold-spark changelog (the same)
    twofold-spark verify    --source 'host=127.0.0.1 dbname=shop user=me'
                            --prefix shop --warehouse ./lake [--bootstrap ... --registry ...]
    twofold-spark jars      fetches the locked jars and prints the class path

A job ends on SIGTERM or Ctrl-C after what it is applying, with exit status 0. Before it is at work, and verify always, Ctrl-C ends it at once with 130.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from twofold_spark import jars, session
from twofold_spark.changelog.changelog_job import Appended, Changelog
from twofold_spark.errors import BadUsage, JobError
from twofold_spark.job.arguments import parser
from twofold_spark.job.metrics import Metrics, serve
from twofold_spark.mirror.mirror_job import Applied, Mirror
from twofold_spark.mirror.mirror_progress import Whereabouts
from twofold_spark.sources.kafka_reader import Kafka, check_answers
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.source_database import Source, jdbc_url
from twofold_spark.streaming import Job, say
from twofold_spark.verify.last_change import Touches
from twofold_spark.verify.verification import Verify

_INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = parser().parse_args(arguments)
    try:
        match options.command:
            case "jars":
                print(os.pathsep.join(str(jar) for jar in jars.fetch()))  # noqa: T201  (what the command is for)
            case "mirror":
                with _session(options) as spark:
                    _mirror(spark, options)
            case "changelog":
                with _session(options) as spark:
                    _changelog(spark, options)
            case "verify":
                return _verify(options)
    except JobError as error:
        say(f"{options.command}: {error}")
        return error.exit_status
    except KeyboardInterrupt:
        say(f"{options.command}: interrupted")
        return _INTERRUPTED
    return 0


def _mirror(spark: SparkSession, options: argparse.Namespace) -> None:
    where = _kafka(spark, options)
    metrics = _metrics(spark, options)
    ending = threading.Event()
    whereabouts = Whereabouts(spark, where, options.prefix, options.group or f"{options.prefix}.mirror", say)

    def report(applied: Applied) -> None:
        metrics.applied(
            applied.changes,
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
        ending=ending,
        report=report,
    )
    job = Job("mirror", mirror)
    checkpoint = options.checkpoint or options.sink.checkpoint(options.warehouse, options.prefix)
    job.start(mirror.stream(spark), checkpoint, options.trigger)
    try:
        job.run(ending)
    finally:
        mirror.close()
        whereabouts.close()


def _changelog(spark: SparkSession, options: argparse.Namespace) -> None:
    where = _kafka(spark, options)
    metrics = _metrics(spark, options)

    def report(appended: Appended) -> None:
        say(str(appended))
        stages = {"append": appended.seconds}
        metrics.applied(appended.records, stages, tables_stopped=appended.stopped, offsets_behind=appended.behind)

    changelog = Changelog(
        spark,
        where,
        Registry(options.registry),
        options.prefix,
        catalog=options.catalog,
        batch_rows=options.batch_rows,
        unreadable=options.unreadable,
        on_table_error=options.on_table_error,
        report=report,
    )
    try:
        changelog.run(options.checkpoint or f"{options.warehouse}/checkpoints/changelog", options.trigger)
    finally:
        changelog.close()


def _verify(options: argparse.Namespace) -> int:
    url = jdbc_url(options.source)
    if (options.bootstrap is None) != (options.registry is None):
        raise BadUsage("the last commits are looked up with both of --bootstrap and --registry, or not at all")
    with _session(options) as spark:
        source = Source(spark, url)
        try:
            return _compared(spark, source, options)
        finally:
            source.close()


def _compared(spark: SparkSession, source: Source, options: argparse.Namespace) -> int:
    """The exit status."""
    verify = Verify(
        spark,
        source,
        reader=options.sink.reader(spark, catalog=options.catalog),
        prefix=options.prefix,
        publication=options.publication or options.prefix,
        patience=options.patience,
        touches=Touches(spark, _kafka(spark, options), Registry(options.registry)) if options.bootstrap else None,
        say=print,
    )
    differing = any(result.buckets for result in verify.run())
    if differing and not options.bootstrap:
        say("with --bootstrap and --registry, verify names the last commit of each row that differs")
    return 1 if verify.missing() or differing else 0


def _metrics(spark: SparkSession, options: argparse.Namespace) -> Metrics:
    metrics = Metrics(options.command)
    spark.streams.addListener(metrics)
    if options.metrics is not None:
        serve(metrics, options.metrics)
    return metrics


def _kafka(spark: SparkSession, options: argparse.Namespace) -> Kafka:
    """Where the brokers are; they have answered."""
    where = Kafka(options.bootstrap, {**(options.kafka_file or {}), **dict(options.kafka)})
    check_answers(spark, where)
    return where


@contextmanager
def _session(options: argparse.Namespace) -> Iterator[SparkSession]:
    """Ends with the command, unless Spark ran before it."""
    ran_before = SparkContext._active_spark_context is not None
    spark = session.open_session(
        options.warehouse, catalog=options.catalog, memory=options.memory, java_home=options.java_home
    )
    try:
        yield spark
    finally:
        if not ran_before:
            # Spark tells our listener what is left while we can still hear it: afterwards it would log pages of py4j's errors.
            with suppress(Py4JError):  # the JVM is gone
                spark.stop()
