"""`twofold-spark mirror`: the mirror of one prefix, or of a source group."""

from __future__ import annotations

import argparse
import datetime as dt
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from twofold_spark import session
from twofold_spark.job.arguments import check_partitioning
from twofold_spark.job.members import choose_sharding
from twofold_spark.job.metrics import JobMetrics
from twofold_spark.mirror.batching import AppliedBatch
from twofold_spark.mirror.mirror_job import Mirror
from twofold_spark.mirror.mirror_progress import ProgressPublisher
from twofold_spark.mirror.source_mirror import MirrorSettings
from twofold_spark.mirror.wait_report import NAMED_AFTER_S
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import StreamingJob, print_progress


def run_mirror(
    spark: SparkSession, kafka: Kafka, metrics: JobMetrics, prefixes: Sequence[str], options: argparse.Namespace
) -> None:
    """Mirror until the stream ends or a signal asks for the end."""
    ending = threading.Event()
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
        _choose_settings(options),
        ending=ending,
        # A run to the end of what is there has no time to look again.
        named_after_s=0 if options.trigger.ends else NAMED_AFTER_S,
        report=partial(_report, metrics, progress),
        **_report_group(metrics) if others else {},
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


def _choose_settings(options: argparse.Namespace) -> MirrorSettings:
    return MirrorSettings(
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        unreadable=options.unreadable,
        on_table_error=options.on_table_error,
        maintain_every=options.maintain_every,
        maintain_at_once=options.trigger.ends,
        keep_cuts=dt.timedelta(hours=options.keep_cuts),
        unique_keys=options.unique_keys,
    )


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
        progress[prefix].publish(applied)
    print_progress(str(applied))


def _report_group(metrics: JobMetrics) -> dict[str, Any]:
    """Report the cuts of a source group, and what they wait for."""
    return {
        "report_cut": lambda cut: print_progress(f"mirror: global cut {cut}"),
        "report_waits": lambda count: metrics.set_gauge("twofold_job_global_waits", count),
    }
