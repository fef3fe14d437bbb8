"""Runs `twofold-spark mirror` and `twofold-spark changelog`, for one prefix or for the members of a
source group.

A job begins again, in the same process, after a server was away. It begins by the one path: its
tables and cuts say what was applied. But Spark's Java stays, which needs minutes on a small machine
until it is as quick again. A job that has done nothing yet ends: mostly an address is wrong. A job
whose server stays away ends as well, and whoever keeps the job starts it again.
"""

from __future__ import annotations

import argparse
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from twofold_spark import session
from twofold_spark.changelog.changelog_job import Changelog, TurnReport
from twofold_spark.errors import SPARK_ERRORS, ServerAway, SetupError, UsageError, explain
from twofold_spark.job.metrics import JobMetrics, serve_metrics
from twofold_spark.mirror.batching import AppliedBatch, MirrorSettings
from twofold_spark.mirror.group_waiting import NAMED_AFTER_S
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.mirror.mirror_progress import ProgressPublisher
from twofold_spark.row_columns import MEMBER
from twofold_spark.signals import catch_end_signals
from twofold_spark.sinks.partitioning import Partitioning
from twofold_spark.sinks.sharding import NO_SHARDING, Sharding
from twofold_spark.sources.decoding import build_reader_schema, find_row_schema
from twofold_spark.sources.group_topics import find_members
from twofold_spark.sources.kafka_client import Kafka, require_connector
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.topic_names import subject_of
from twofold_spark.streaming import StreamingJob, print_progress

PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Before each try; behind the last one the job ends."""
_STEADY_S: Final = 60.0
"""A try that has worked and has run for so long has all tries before it. The time alone says
nothing: Kafka's client waits longer than that for a broker that is away.
"""


def run_job(spark: SparkSession, options: argparse.Namespace) -> None:
    """Run `mirror` or `changelog` for the prefixes that the options name, with its metrics."""
    prefixes = _choose_prefixes(spark, options)
    kafka = connect_kafka(spark, options, *prefixes)
    run = _mirror if options.command == "mirror" else _append
    with _listening(spark, options) as metrics:
        once = partial(run, spark, kafka, metrics, prefixes, options)
        if options.trigger.ends:
            once(threading.Event())
        else:
            run_while_servers_return(options.command, options.bootstrap, once, lambda: metrics.worked_at)


def _choose_prefixes(spark: SparkSession, options: argparse.Namespace) -> tuple[str, ...]:
    if options.source_group is None:
        return tuple(dict.fromkeys(options.prefixes))
    prefixes = find_members(spark, connect_kafka(spark, options), Registry(options.registry), options.source_group)
    print_progress(f"{options.command}: the source group {options.source_group} has the members {', '.join(prefixes)}")
    return prefixes


@contextmanager
def _listening(spark: SparkSession, options: argparse.Namespace) -> Iterator[JobMetrics]:
    """Listen to Spark, and serve the metrics if that is asked for.

    A session may outlive the job. A listener that stayed would be told of all its later queries,
    more slowly than they come, and what waits to be told keeps their plans.
    """
    metrics = JobMetrics(options.command)
    spark.streams.addListener(metrics)
    try:
        if options.metrics is not None:
            serve_metrics(metrics, options.metrics)
        yield metrics
    finally:
        spark.streams.removeListener(metrics)


def connect_kafka(spark: SparkSession, options: argparse.Namespace, *prefixes: str) -> Kafka:
    """Return where the brokers are, after one has answered that it has the connectors' topics."""
    kafka = Kafka(options.bootstrap, {**(options.kafka_file or {}), **dict(options.kafka)})
    for prefix in prefixes:
        require_connector(spark, kafka, prefix)
    return kafka


def check_partitioning(
    registry: Registry, prefixes: Iterable[str], partitioning: Partitioning, sharding: Sharding = NO_SHARDING
) -> None:
    """Look for each table among the prefixes, before anything is merged.

    Columns that the source has dropped count: a table that exists may be partitioned by one.
    """
    for table, transforms in partitioning.tables:
        names = [subject_of(prefix, table) for prefix in prefixes]
        subjects = [subject for name in names if (subject := registry.find_subject(name)) is not None]
        if not subjects:
            raise SetupError(
                f"--partition-by names the table {table}, and the registry has no subject {' or '.join(names)}: "
                "correct the name, or start the connector first, which registers it"
            )
        for subject in subjects:
            columns = [column["name"] for column in find_row_schema(build_reader_schema(subject))["fields"]]
            columns += [MEMBER] if sharding.covers(table) else []
            for transform in transforms:
                if transform.column not in columns:
                    raise SetupError(
                        f"--partition-by {table}={transform} names a column that {subject.name} does not have: "
                        f"give one of {', '.join(columns)}"
                    )


def run_while_servers_return(
    command: str, bootstrap: str, run: Callable[[threading.Event], None], worked_at: Callable[[], float | None]
) -> None:
    """Run the job until it ends, fails, or a signal asks for its end.

    The job sets the event that it gets when a signal asks. `worked_at` returns when the job worked
    last, by the monotonic clock; None: never.
    """
    ending, pauses = threading.Event(), list(PAUSES_S)
    while True:
        began = time.monotonic()
        try:
            run(ending)
            break
        except (ServerAway, *SPARK_ERRORS) as error:
            away = error if isinstance(error, ServerAway) else explain(error, bootstrap)
            worked = worked_at()
            if worked is not None and worked > began and time.monotonic() > began + _STEADY_S:
                pauses = list(PAUSES_S)
            if not isinstance(away, ServerAway) or not pauses or worked is None or ending.is_set():
                raise
        pause_s = pauses.pop(0)
        print_progress(f"{command}: {away}; it begins again in {pause_s:g} s")
        with catch_end_signals(ending):
            if ending.wait(pause_s):
                break


def _mirror(
    spark: SparkSession,
    kafka: Kafka,
    metrics: JobMetrics,
    prefixes: Sequence[str],
    options: argparse.Namespace,
    ending: threading.Event,
) -> None:
    """Mirror until the stream ends or a signal asks for the end."""
    check_partitioning(Registry(options.registry), prefixes, options.sink.partitioning, options.sharded)
    first, *others = prefixes
    place = options.sink.make_place(
        of_group=bool(others),
        sharding=choose_sharding(options, prefixes),
        catalog=options.catalog,
        format_version=options.format_version,
        write_mode=options.write_mode,
    )
    if others and options.sink.name == "iceberg":
        session.open_member_catalogs(spark, options.warehouse, options.catalog, prefixes)
    progress = {
        prefix: ProgressPublisher(
            spark, kafka, prefix, options.group or f"{prefix}.mirror", print_progress, of_group=bool(others)
        )
        for prefix in prefixes
    }
    mirror = Mirror(
        spark,
        kafka,
        Registry(options.registry),
        prefixes,
        place,
        MirrorSettings(
            batch_rows=options.batch_rows,
            batch_bytes=options.batch_bytes,
            unreadable=options.unreadable,
            on_table_error=options.on_table_error,
            maintain_every=options.maintain_every,
            maintain_at_once=options.trigger.ends,
            keep_cuts=dt.timedelta(hours=options.keep_cuts),
            unique_keys=options.unique_keys,
        ),
        ending=ending,
        # A run to the end of what is there has no time to look again.
        named_after_s=0 if options.trigger.ends else NAMED_AFTER_S,
        report_place=lambda prefix, cut: progress[prefix].publish(cut),
        report=partial(_report, metrics, progress),
        report_cut=(lambda cut: print_progress(f"mirror: global cut {cut}")) if others else lambda _: None,
        report_waits=partial(metrics.set_gauge, "twofold_job_global_waits"),
    )
    job = StreamingJob("mirror", mirror, meanwhile=mirror.look_if_due)
    checkpoint = options.checkpoint or options.sink.default_checkpoint(options.warehouse, None if others else first)
    try:
        job.start(mirror.open_stream(), checkpoint, options.trigger)
        for publisher in progress.values():
            publisher.start()
        job.run(ending)
    finally:
        mirror.close()
        for publisher in progress.values():
            publisher.close()


def _report(metrics: JobMetrics, progress: Mapping[str, ProgressPublisher], prefix: str, applied: AppliedBatch) -> None:
    metrics.record_batch(
        applied.changes,
        applied.stages,
        lag_seconds=applied.lag_seconds,
        cut_sequence=applied.cut.sequence,
        tables_stopped=len(applied.cut.stopped_tables),
        offsets_behind=applied.behind,
    )
    if applied.is_shown:
        progress[prefix].publish(applied.cut)
    print_progress(str(applied))


def _append(
    spark: SparkSession,
    kafka: Kafka,
    metrics: JobMetrics,
    prefixes: Sequence[str],
    options: argparse.Namespace,
    ending: threading.Event,
) -> None:
    """Append until the stream ends or a signal asks for the end."""

    def report(turn: TurnReport) -> None:
        print_progress(str(turn))
        stages = {"append": turn.seconds}
        metrics.record_batch(turn.records, stages, tables_stopped=turn.stopped, offsets_behind=turn.behind)

    sharding = choose_sharding(options, prefixes)
    if len(prefixes) > 1:
        session.open_member_catalogs(spark, options.warehouse, options.catalog, prefixes)
    else:
        session.open_former_catalog(spark, options.warehouse, options.catalog, prefixes[0])
    changelog = Changelog(
        spark,
        kafka,
        Registry(options.registry),
        prefixes,
        sharding=sharding,
        catalog=options.catalog,
        format_version=options.format_version,
        batch_rows=options.batch_rows,
        unreadable=options.unreadable,
        on_table_error=options.on_table_error,
        report=report,
    )
    try:
        changelog.run(options.checkpoint or f"{options.warehouse}/checkpoints/changelog", options.trigger, ending)
    finally:
        changelog.close()


def choose_sharding(options: argparse.Namespace, prefixes: Sequence[str]) -> Sharding:
    """Return which tables are sharded; refuse them for one source."""
    sharding: Sharding = options.sharded
    if sharding.patterns and len(prefixes) == 1:
        raise UsageError(
            "--sharded is for the members of a source group: give --source-group, or a --prefix for each member"
        )
    return sharding
