"""The command line of the jobs.

    twofold-spark mirror    --bootstrap 127.0.0.1:9092 --registry http://127.0.0.1:8081
                            --prefix shop --warehouse ./lake --trigger interval=1s
    twofold-spark changelog (the same)
    twofold-spark verify    --source 'host=127.0.0.1 dbname=shop user=me'
                            --prefix shop --warehouse ./lake [--bootstrap ... --registry ...]
    twofold-spark jars      fetches the locked jars and prints the class path

SIGTERM and Ctrl-C end a job after the batch in progress, with exit status 0. Before its first
batch, and during `verify`, Ctrl-C ends the command at once, with exit status 130.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from twofold_common.crashes import leave_no_core
from twofold_common.printable import keep_stderr_printable, printable
from twofold_spark import jars, session
from twofold_spark.catalog_choice import CatalogChoice
from twofold_spark.errors import SPARK_ERRORS, TwofoldError, UsageError, explain
from twofold_spark.job.arguments import build_parser
from twofold_spark.job.running import connect_kafka, run_job
from twofold_spark.signals import ended_at_once
from twofold_spark.sinks import partitioning
from twofold_spark.sinks.interface import Reader
from twofold_spark.sources.kafka_client import require_reachable
from twofold_spark.sources.postgres_connection import build_jdbc_url
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.source_database import SourceDatabase
from twofold_spark.streaming import print_progress
from twofold_spark.verify.last_change import LastChangeFinder
from twofold_spark.verify.verification import Verification

_INTERRUPTED = 130
"""The exit status that a shell shows for a command that Ctrl-C has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = build_parser().parse_args(arguments)
    leave_no_core()
    keep_stderr_printable()
    try:
        match options.command:
            case "jars":
                print(os.pathsep.join(str(jar) for jar in jars.fetch(s3=options.s3)))  # noqa: T201  (what the command is for)
            case "verify":
                return _run_verify(options)
            case _:
                _set_partitioning(options)
                with _open_session(options) as spark:
                    run_job(spark, options)
    except TwofoldError as error:
        print_progress(f"{options.command}: {error}")
        return error.exit_status
    except SPARK_ERRORS as error:
        explained = explain(error, options.bootstrap)
        if explained is None:
            raise
        print_progress(f"{options.command}: {explained}")
        return explained.exit_status
    except KeyboardInterrupt:
        print_progress(f"{options.command}: interrupted")
        return _INTERRUPTED
    return 0


def _set_partitioning(options: argparse.Namespace) -> None:
    if options.command != "mirror" or not options.partition_by:
        return
    if options.sink.name != "iceberg":
        raise UsageError("--partition-by is for tables in Iceberg: leave it out, or use --sink iceberg")
    options.sink = replace(options.sink, partitioning=partitioning.gather(options.partition_by))


def _run_verify(options: argparse.Namespace) -> int:
    url = build_jdbc_url(options.source)
    if (options.bootstrap is None) != (options.registry is None):
        raise UsageError("verify needs both --bootstrap and --registry to name last commits, or neither")
    with _open_session(options) as spark, closing(SourceDatabase(spark, url)) as source:
        return _compare(spark, source, options)


def _compare(spark: SparkSession, source: SourceDatabase, options: argparse.Namespace) -> int:
    """Compare all tables; return the exit status."""
    # Else the text of a decimal is another one than PostgreSQL's.
    spark.conf.set("spark.sql.ansi.enabled", "true")
    finder, registry = None, Registry(options.registry) if options.registry else None
    if registry is not None:
        finder = LastChangeFinder(spark, connect_kafka(spark, options, options.prefix), registry)
    verification = Verification(
        source,
        reader=_open_reader(spark, options),
        prefix=options.prefix,
        publication=options.publication or options.prefix,
        patience=options.patience,
        last_changes=finder,
        read_policy=registry.read_policy if registry is not None else lambda _: {},
        report=lambda line: print(printable(line, lines=True)),  # noqa: T201  (its answer)
        progress=print_progress,
    )
    differs = not all(result.is_as_known for result in verification.run())
    if differs and not options.bootstrap:
        print_progress("with --bootstrap and --registry, verify names the last commit of each row that differs")
    return 1 if verification.list_missing() or differs else 0


def _open_reader(spark: SparkSession, options: argparse.Namespace) -> Reader:
    """Open the mirror that is compared; a group's member may have a catalog of its own."""
    reader: Reader = options.sink.make_reader(spark, catalog=options.catalog)
    if options.sink.name == "iceberg" and reader.find_cut() is not None and reader.is_of_group():
        session.open_member_catalogs(spark, options.warehouse, options.catalog, (options.prefix,))
    return reader


@contextmanager
def _open_session(options: argparse.Namespace) -> Iterator[SparkSession]:
    """Open a session that ends with the command, unless Spark ran before the command."""
    ran_before = SparkContext._active_spark_context is not None
    choice = CatalogChoice.choose(options.catalog_type, options.catalog_uri, options.catalog_file)
    may_end_all = not ran_before and threading.current_thread() is threading.main_thread()
    with ended_at_once(options.command) if may_end_all else nullcontext():
        require_reachable(options.bootstrap)
        spark = session.open_session(
            options.warehouse,
            catalog=options.catalog,
            choice=choice,
            memory=options.memory,
            java_home=options.java_home,
            checkpoint=getattr(options, "checkpoint", None),
        )
    try:
        yield spark
    finally:
        if not ran_before:
            # Stop Spark while Python still answers its listener calls. Later, py4j would log pages
            # of errors.
            with suppress(Py4JError):  # the JVM is gone
                spark.stop()
