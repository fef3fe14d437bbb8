"""The branches of global transactions, across sources.

A coordinator that commits one global transaction in several databases prepares a branch in each.
The commit records of every source name the prepared transactions that they hold. For a gid in a
known form they also name the global transaction and the branch. So one table shows all branches,
and `id` leads to the rows in each source's changelog (`transaction_id`).

    found = branches(spark, [(kafka, registry, "orders"), (kafka, registry, "stock")])
    found.where("global_id = '...'")
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.errors import SetupError, UsageError
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.commit_topic import CommitTopic
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry


def branches(spark: SparkSession, sources: Iterable[tuple[Kafka, Registry, str]]) -> DataFrame:
    """List every prepared transaction that the sources committed and Kafka still has.

    The columns are prefix, global_id, branch, gid and more. A commit record that cannot be decoded
    fails the read.
    """
    found = [_list_of_source(spark, *source) for source in sources]
    if not found:
        raise UsageError("branches needs at least one source: (kafka, registry, prefix) of each")
    return reduce(DataFrame.unionByName, found)


def _list_of_source(spark: SparkSession, kafka: Kafka, registry: Registry, prefix: str) -> DataFrame:
    topic = CommitTopic(kafka, registry, prefix).name
    subject = registry.refresh_subject(f"{topic}-value")
    if subject is None:
        raise SetupError(f"the registry has no subject {topic}-value: give the registry of the connector of {prefix}")
    records = kafka_reader.read_from(spark, kafka, topic, kafka_reader.EARLIEST)
    commits = records.select(decoding.decode_record(f.col("value"), subject).alias("c"), "offset")
    unreadable = f.concat(
        f.lit(f"the commit record in {topic} [0] at offset "),
        f.col("offset").cast("string"),
        f.lit(" cannot be read: check the registry's subject, and find who else writes to the topic"),
    )
    prepared = f.when(f.col("c.sequence").isNull(), f.raise_error(unreadable)).otherwise(f.col("c.prepared"))
    return commits.select(f.lit(prefix).alias("prefix"), "c.sequence", f.explode(prepared).alias("p")).select(
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
