"""The branches of global transactions, across sources.

A coordinator that commits one global transaction in several databases prepares a branch in each. Every source's commit
records say which prepared transactions they hold, and of a gid in a known form which global transaction and which branch
it is. So one table says where the whole of it is, and `id` leads to its rows in each source's changelog
(`transaction_id`).

    found = branches(spark, [(kafka, registry, "orders"), (kafka, registry, "stock")])
    found.where("global_id = '...'")
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import BadUsage, MissingGround
from twofold_spark.sources import decoding
from twofold_spark.sources.kafka_reader import Kafka
from twofold_spark.sources.registry import Registry


def branches(spark: SparkSession, sources: Iterable[tuple[Kafka, Registry, str]]) -> DataFrame:
    """Every prepared transaction that the sources committed and Kafka still knows: prefix, global_id, branch, gid, ..."""
    found = [_of_source(spark, *source) for source in sources]
    if not found:
        raise BadUsage("no source is given: (kafka, registry, prefix) of each")
    return reduce(DataFrame.unionByName, found)


def _of_source(spark: SparkSession, where: Kafka, registry: Registry, prefix: str) -> DataFrame:
    topic = f"{prefix}.commits"
    subject = registry.refreshed(f"{topic}-value")
    if subject is None:
        raise MissingGround(f"the registry has no subject {topic}-value: is it the connector's registry?")
    commits = (
        spark.read.format("kafka")
        .options(**where.options("read_committed"))
        .option("subscribe", topic)
        .load()
        .select(decoding.record(f.col("value"), subject).alias("c"))
    )
    return commits.select(f.lit(prefix).alias("prefix"), "c.sequence", f.explode("c.prepared").alias("p")).select(
        "prefix",
        "p.global_id",
        "p.branch",
        "p.gid",
        "p.id",
        "p.prepare_lsn",
        "p.commit_lsn",
        "p.committed_at",
        "sequence",
    )
