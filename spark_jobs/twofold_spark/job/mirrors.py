"""`twofold-spark mirror`: the mirror of one prefix, or of a source group."""

from __future__ import annotations

import argparse
import datetime as dt
import threading
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from twofold_spark import session
from twofold_spark.job.arguments import check_partitioning, connect_kafka, listening
from twofold_spark.job.metrics import JobMetrics
from twofold_spark.mirror.batching import AppliedBatch
from twofold_spark.mirror.group_mirror import GroupMirror
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.mirror.mirror_progress import ProgressPublisher
from twofold_spark.mirror.wait_report import NAMED_AFTER_S
from twofold_spark.sinks.cuts import GlobalCut
from twofold_spark.sinks.place import Place
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.source_groups import find_members
from twofold_spark.streaming import StreamingJob, print_progress


def run_mirror(spark: SparkSession, options: argparse.Namespace) -> None:
    """Run until the stream ends or a signal asks for the end."""
    if options.source_group is not None:
        prefixes = find_members(spark, connect_kafka(spark, options), Registry(options.registry), options.source_group)
        print_progress(f"mirror: the source group {options.source_group} has the members {', '.join(prefixes)}")
    else:
        prefixes = tuple(dict.fromkeys(options.prefixes))
    kafka = connect_kafka(spark, options, *prefixes)
    with listening(spark, options) as metrics:
        _run(spark, kafka, metrics, prefixes, options)


def _run(
    spark: SparkSession, kafka: Kafka, metrics: JobMetrics, prefixes: Sequence[str], options: argparse.Namespace
) -> None:
    ending = threading.Event()
    check_partitioning(Registry(options.registry), prefixes, options.sink.partitioning)
    first, *others = prefixes
    place = options.sink.make_place(
        of_group=bool(others),
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
    mirrors = {
        prefix: _make_mirror(kafka, options, prefix, place, ending, _reporter(metrics, progress[prefix]))
        for prefix in prefixes
    }
    whole: Mirror | GroupMirror = mirrors[first]
    job = StreamingJob("mirror", whole)
    if others:
        whole = _make_group_mirror(kafka, options, mirrors, place, metrics)
        job = StreamingJob("mirror", whole, meanwhile=whole.look_if_due)
    checkpoint = options.checkpoint or options.sink.default_checkpoint(options.warehouse, None if others else first)
    try:
        if not others:
            last = options.sink.make_reader(spark, catalog=options.catalog).find_cut()
            mirrors[first].catch_up(spark, last.find_part(first) if last is not None else None, checkpoint)
        job.start(whole.open_stream(spark), checkpoint, options.trigger)
        for publisher in progress.values():
            publisher.start()
        job.run(ending)
    finally:
        whole.close()
        for publisher in progress.values():
            publisher.close()


def _make_group_mirror(
    kafka: Kafka, options: argparse.Namespace, mirrors: Mapping[str, Mirror], place: Place, metrics: JobMetrics
) -> GroupMirror:
    return GroupMirror(
        kafka,
        Registry(options.registry),
        mirrors,
        place,
        maintain_every=options.maintain_every,
        keep_cuts=dt.timedelta(hours=options.keep_cuts),
        # A run to the end of what is there has no time to look again.
        named_after_s=0 if options.trigger.ends else NAMED_AFTER_S,
        report=_print_global_cut,
        report_waits=lambda count: metrics.set_gauge("twofold_job_global_waits", count),
        report_publishing=lambda seconds: metrics.add("twofold_job_stage_seconds_total", seconds, "publish"),
    )


def _make_mirror(
    kafka: Kafka,
    options: argparse.Namespace,
    prefix: str,
    place: Place,
    ending: threading.Event,
    report: Callable[[AppliedBatch], None],
) -> Mirror:
    return Mirror(
        kafka,
        Registry(options.registry),
        prefix,
        place,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        unreadable=options.unreadable,
        on_table_error=options.on_table_error,
        maintain_every=options.maintain_every,
        maintain_at_once=options.trigger.ends,
        keep_cuts=dt.timedelta(hours=options.keep_cuts),
        ending=ending,
        report=report,
    )


def _reporter(metrics: JobMetrics, progress: ProgressPublisher) -> Callable[[AppliedBatch], None]:
    def report(applied: AppliedBatch) -> None:
        metrics.record_batch(
            applied.changes,
            applied.stages,
            lag_seconds=applied.lag_seconds,
            cut_sequence=applied.cut.sequence,
            tables_stopped=len(applied.cut.stopped_tables),
        )
        if applied.is_shown:
            progress.publish(applied)
        print_progress(str(applied))

    return report


def _print_global_cut(cut: GlobalCut) -> None:
    print_progress(f"mirror: global cut {cut}")
