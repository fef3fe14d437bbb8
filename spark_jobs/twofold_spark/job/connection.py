"""What every job opens by its options: Kafka and metrics."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from twofold_spark.job.metrics import JobMetrics, serve_metrics
from twofold_spark.sources.kafka_client import Kafka, require_connector


@contextmanager
def listening(spark: SparkSession, options: argparse.Namespace) -> Iterator[JobMetrics]:
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
