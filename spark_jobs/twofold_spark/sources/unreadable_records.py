"""Records that cannot be decoded: kept with their place, bytes and reason, once each, and then the job's choice.

`stop` (the default) ends the job: what the record said is not known, so a table without it may be wrong. `skip` goes on
without it and says so; the record stays in the quarantine table for whoever repairs it. Nothing is ever dropped unseen.
"""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from twofold_spark.sources import decoding
from twofold_spark.sources.registry import Subject

Choice = Literal["stop", "skip"]

PLACE = ("topic", "partition", "offset")


def unreadable(records: DataFrame, subject: Subject, topic: str) -> DataFrame:
    """Of records with partition, offset, key and value, those that have no envelope, and why."""
    value = f.col("value")
    identifier = f.conv(f.hex(f.substring(value, 2, 4)), 16, 10)
    reason = f.when(
        decoding.unknown(value, subject),
        f.concat(f.lit("not framed, or unknown schema id "), f.coalesce(identifier, f.lit("-"))),
    ).otherwise("malformed Avro")
    return (
        records.where(value.isNotNull())
        .withColumn("e", decoding.envelope(value, subject))
        .where(f.col("e.op").isNull())
        .select(
            f.lit(topic).alias("topic"),
            "partition",
            "offset",
            "key",
            "value",
            reason.alias("reason"),
            f.current_timestamp().alias("seen_at"),
        )
    )
