"""The command line of the jobs.

    python -m twofold_spark mirror    --bootstrap 127.0.0.1:9092 --registry http://127.0.0.1:8081 --prefix shop
                                      --warehouse ./lake --trigger interval=1s
    python -m twofold_spark changelog (the same)
    python -m twofold_spark verify    --source 'host=127.0.0.1 dbname=shop user=me'
                                      --prefix shop --warehouse ./lake [--bootstrap ... --registry ...]
    python -m twofold_spark jars      fetches the locked jars and prints the class path

A job ends on SIGTERM or Ctrl-C after what it is applying, with exit status 0.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import threading
from collections.abc import Sequence

from pyspark.sql import SparkSession

from twofold_spark import jars, session
from twofold_spark.arguments import parser
from twofold_spark.changelog import Appended, Changelog
from twofold_spark.errors import BadUsage, JobError
from twofold_spark.kafka import Kafka
from twofold_spark.metrics import Metrics, serve
from twofold_spark.mirror import Applied, Mirror
from twofold_spark.registry import Registry
from twofold_spark.running import Job, say
from twofold_spark.source import Source, jdbc_url
from twofold_spark.touched import Touches
from twofold_spark.verify import Verify
from twofold_spark.whereabouts import Whereabouts


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = parser().parse_args(arguments)
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
    ending = threading.Event()
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
        changelog.run(options.checkpoint or f"{options.warehouse}/checkpoints/changelog", options.trigger)
    finally:
        changelog.close()


def _verify(options: argparse.Namespace) -> int:
    url = jdbc_url(options.source)
    if (options.bootstrap is None) != (options.registry is None):
        raise BadUsage("the last commits are looked up with both of --bootstrap and --registry, or not at all")
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
            touches=Touches(spark, _kafka(options), Registry(options.registry)) if options.bootstrap else None,
            say=print,
        )
        differing = any(result.buckets for result in verify.run())
        if differing and not options.bootstrap:
            say("with --bootstrap and --registry, verify names the last commit of each row that differs")
        return 1 if verify.missing() or differing else 0
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
