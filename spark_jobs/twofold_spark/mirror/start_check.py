"""Checks what a start of the mirror of one prefix finds, before its stream resumes from the
checkpoint.

Spark's checkpoint only says where to read on, and it may be wrong: tables that were restored from a
backup are behind it, and another mirror may have used it. Then the stream would begin beyond what
the tables lack, or wait without a word. So a start compares the last cut with the commit records at
the checkpoint's end.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from twofold_spark.errors import Refused
from twofold_spark.sinks.cuts import Cut
from twofold_spark.sources.commit_records import CommitRecord, is_other, recreated_refusal
from twofold_spark.sources.commit_topic import CommitTopic


@dataclass(frozen=True, slots=True)
class Found:
    """The commit records that Kafka has, and where the stream would go on."""

    first_offset: int
    """Of the topic; above 0 if retention has removed records."""
    next: CommitRecord | None
    """The first one that the stream would read."""
    last: CommitRecord | None
    """The last one, where there is no next."""
    has_position: bool
    """Whether the stream goes on from a checkpoint whose records Kafka has."""


def choose_catch_up(prefix: str, cut: Cut | None, found: Found) -> int:
    """Return up to which commit record the tables lack what the stream will not read; 0: nothing.

    Refuse another stream, and a topic whose commit records are all gone before any was applied.
    """
    read = found.next or found.last
    applied = cut.sequence if cut is not None else 0
    if read is not None and cut is not None and is_other(read.identity, cut.identity):
        raise recreated_refusal(read.sequence, prefix)
    if read is None and not applied and found.first_offset:
        raise Refused(
            f"Kafka has no commit record of {prefix} any more: retention has removed all that there were",
            at_stake="every change that they declared: these tables have none of them",
            repair="run the mirror with --on-table-error go-on, then `twofold backfill start` each table. "
            "From now on keep <prefix>.commits as long as the data",
        )
    if not found.has_position or read is None:
        return 0
    passed = read.sequence - 1 if found.next is not None else read.sequence
    return passed if passed > applied else 0


def find_records(spark: SparkSession, topic: CommitTopic, checkpoint: str) -> Found:
    """Look at the commit records where the stream would go on."""
    first, end = topic.find_bounds(spark)
    position = read_checkpoint_end(spark, checkpoint, topic.name)
    has_position = position is not None and first <= position <= end
    start = position if has_position and position is not None else first
    with closing(topic.read_after(spark, start - 1)) as records:
        following = next(records, None)
    last = topic.read_last(spark, first, end) if following is None and first < end else None
    return Found(first, following, last, has_position)


def read_checkpoint_end(spark: SparkSession, checkpoint: str, topic: str) -> int | None:
    """Return the offset up to which the last micro-batch that ended has read; None if none ended.

    Spark repeats a micro-batch that did not end.
    """
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint, "commits")
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(folder):
        return None
    names = [status.getPath().getName() for status in files.listStatus(folder)]
    ended = max((int(name) for name in names if name.isdigit()), default=None)
    if ended is None:
        return None
    text = spark.read.text(f"{checkpoint}/offsets/{ended}", wholetext=True).collect()[0][0]
    return parse_offset(text, topic)


def parse_offset(text: str, topic: str) -> int | None:
    """Return a topic's offset in a file of a checkpoint's `offsets`: its last line, as JSON."""
    try:
        return int(json.loads(text.strip().splitlines()[-1])[topic]["0"])
    except (ValueError, KeyError, TypeError, IndexError):
        return None
