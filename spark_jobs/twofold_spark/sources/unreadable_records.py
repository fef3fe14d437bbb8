"""Records that cannot be decoded, with place, bytes and reason, for the quarantine table.

With `stop` (the default) the job then ends, because what the record said is unknown and its table
may be wrong without it. With `skip` the job continues without the record. The quarantine table
keeps each record once, for the person who repairs it. No record is dropped unseen.
"""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from twofold_spark.sources import decoding
from twofold_spark.sources.registry import Subject

UnreadableChoice = Literal["stop", "skip"]

RECORD_PLACE = ("topic", "partition", "offset")


def select_unreadable(records: DataFrame, subject: Subject, topic: str) -> DataFrame:
    """Select the records that cannot be decoded, and add the reason."""
    value = f.col("value")
    identifier = f.conv(f.hex(f.substring(value, 2, 4)), 16, 10)
    reason = f.when(
        decoding.has_unknown_schema(value, subject),
        f.concat(f.lit("not framed, or unknown schema id "), f.coalesce(identifier, f.lit("-"))),
    ).otherwise("malformed Avro")
    return (
        records.where(value.isNotNull())
        .withColumn("e", decoding.decode_envelope(value, subject))
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
