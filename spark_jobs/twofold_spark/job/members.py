"""Runs a job for the members of a source group, or for one prefix, and says which tables they
share.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from twofold_spark.errors import UsageError
from twofold_spark.job.arguments import connect_kafka, listening
from twofold_spark.job.metrics import JobMetrics
from twofold_spark.sinks.sharding import Sharding
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry
from twofold_spark.sources.source_groups import find_members
from twofold_spark.streaming import print_progress

Run = Callable[[SparkSession, Kafka, JobMetrics, Sequence[str], argparse.Namespace], None]
"""A job, for these prefixes."""


def run_for_members(spark: SparkSession, options: argparse.Namespace, run: Run) -> None:
    """Run a job for the prefixes that the options name, with its metrics."""
    prefixes = _choose_prefixes(spark, options)
    kafka = connect_kafka(spark, options, *prefixes)
    with listening(spark, options) as metrics:
        run(spark, kafka, metrics, prefixes, options)


def _choose_prefixes(spark: SparkSession, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the prefixes of the options, or those of the source group's members."""
    if options.source_group is None:
        return tuple(dict.fromkeys(options.prefixes))
    prefixes = find_members(spark, connect_kafka(spark, options), Registry(options.registry), options.source_group)
    print_progress(f"{options.command}: the source group {options.source_group} has the members {', '.join(prefixes)}")
    return prefixes


def choose_sharding(options: argparse.Namespace, prefixes: Sequence[str]) -> Sharding:
    """Return which tables are sharded; refuse them for one source."""
    sharding: Sharding = options.sharded
    if sharding.patterns and len(prefixes) == 1:
        raise UsageError(
            "--sharded is for the members of a source group: give --source-group, or a --prefix for each member"
        )
    return sharding
