"""`twofold-spark changelog`: the changes of one prefix, or of a source group."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import SparkSession

from twofold_spark import session
from twofold_spark.changelog.changelog_job import Changelog, TurnReport
from twofold_spark.job.members import choose_sharding
from twofold_spark.job.metrics import JobMetrics
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.streaming import print_progress


def run_changelog(
    spark: SparkSession, kafka: Kafka, metrics: JobMetrics, prefixes: Sequence[str], options: argparse.Namespace
) -> None:
    """Append until the stream ends or a signal asks for the end."""

    def report(turn: TurnReport) -> None:
        print_progress(str(turn))
        stages = {"append": turn.seconds}
        metrics.record_batch(turn.records, stages, tables_stopped=turn.stopped, offsets_behind=turn.behind)

    sharding = choose_sharding(options, prefixes)
    if len(prefixes) > 1:
        session.open_member_catalogs(spark, options.warehouse, options.catalog, prefixes)
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
        changelog.run(options.checkpoint or f"{options.warehouse}/checkpoints/changelog", options.trigger)
    finally:
        changelog.close()
