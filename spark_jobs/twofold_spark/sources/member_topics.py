"""What a group's mirror reads of one member before it chooses a cut: the last frontier, and of the
commit records their numbers, offsets and branches. The ranges of rows are read when they are due.

Each read continues where the last one ended, so a round costs what is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from twofold_common.global_cut import CommittedBranch, Frontier, Member
from twofold_spark.errors import Refused, SetupError
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry, Subject

_RECORDS_PER_TASK = "5000"


class MemberCommit(NamedTuple):
    """A commit record, as far as a global cut needs it."""

    sequence: int
    offset: int
    global_ids: tuple[str, ...]


class MemberTopics:
    """The frontiers and the commit records of one prefix, read_committed."""

    def __init__(self, kafka: Kafka, registry: Registry, prefix: str) -> None:
        self._kafka = kafka
        self._registry = registry
        self._prefix = prefix
        self._cut, self._offset = 0, kafka_reader.EARLIEST - 1
        self._pending: list[MemberCommit] = []
        """Behind the cut."""
        self._frontier: Frontier | None = None
        self._frontier_offset = kafka_reader.EARLIEST - 1

    @property
    def offset(self) -> int:
        """The offset of the cut's commit record."""
        return self._offset

    def start_from(self, sequence: int, offset: int) -> None:
        """Start behind a commit record that is in the last global cut."""
        self._cut, self._offset = sequence, offset

    def advance_to(self, sequence: int) -> None:
        """Forget what is in the new cut."""
        self._cut = sequence
        while self._pending and self._pending[0].sequence <= sequence:
            self._offset = self._pending.pop(0).offset

    def read_frontier(self, spark: SparkSession) -> None:
        """Read the frontiers that are new; the last one counts."""
        topic = f"{self._prefix}.frontiers"
        subject = self._registry.find_subject(f"{topic}-value")
        if subject is None:
            raise SetupError(
                f"the registry has no subject {topic}-value: run the connector of {self._prefix} with the [group] of all members"
            )
        new = kafka_reader.read_from(spark, self._kafka, topic, self._frontier_offset + 1)
        for row in self._decode(new.where("value IS NOT NULL"), subject, ("sequence", "lsn", "seen", "in_doubt")):
            seen = {each["prefix"]: each["sequence"] for each in row["seen"]}
            gids: dict[str, tuple[str, ...]] = {}
            for each in row["in_doubt"]:
                gids[each["global_id"]] = (*gids.get(each["global_id"], ()), each["gid"])
            self._frontier = Frontier(row["sequence"], seen, gids, row["lsn"])
            self._frontier_offset = row["offset"]

    def read_commits(self, spark: SparkSession) -> None:
        """Read the commit records that are new; a missing one is refused."""
        topic = f"{self._prefix}.commits"
        subject = self._registry.find_subject(f"{topic}-value")
        if subject is None:
            raise SetupError(f"the registry has no subject {topic}-value: give --registry the connector's registry")
        last, offset = self._last
        options = {"maxRecordsPerPartition": _RECORDS_PER_TASK}
        new = kafka_reader.read_from(spark, self._kafka, topic, offset + 1, **options)
        global_ids = f.expr("filter(r.prepared.global_id, each -> each IS NOT NULL)").alias("global_ids")
        for row in self._decode(new, subject, ("sequence", global_ids)):
            if row["sequence"] != last + 1:
                raise Refused(
                    f"commit record {last + 1} of {self._prefix} is missing: the next one that Kafka has is {row['sequence']}",
                    at_stake=f"every change of the Kafka transactions {last + 1} to {row['sequence'] - 1}, and which global transactions they belong to",
                    repair=f"keep {topic} as long as the data; start over with a new --warehouse, and load the tables again",
                )
            last += 1
            self._pending.append(MemberCommit(last, row["offset"], tuple(row["global_ids"])))

    def as_member(self) -> Member:
        """Return what the choice of a cut needs."""
        branches = (CommittedBranch(each.sequence, name) for each in self._pending for name in each.global_ids)
        return Member(self._cut, self._last[0], tuple(branches), self._frontier)

    @property
    def _last(self) -> tuple[int, int]:
        """The last commit record that was read, and its offset."""
        return self._pending[-1][:2] if self._pending else (self._cut, self._offset)

    def _decode(self, records: DataFrame, subject: Subject, columns: tuple[str | Column, ...]) -> Iterator[Row]:
        decode = partial(_decoded, columns=columns)
        for row in decoding.iterate_decoded(records, subject, self._registry, decode):
            if row["sequence"] is None:
                raise Refused(
                    f"the record at offset {row['offset']} of the subject {subject.name} cannot be decoded",
                    at_stake="global cuts: what it says of other sources is not known",
                    repair="check the registry's subject, and find who else writes to the topic",
                )
            yield row


def _decoded(records: DataFrame, subject: Subject, *, columns: tuple[str | Column, ...]) -> Iterator[Row]:
    selected = [f.col(f"r.{each}") if isinstance(each, str) else each for each in columns]
    decoded = records.select(decoding.decode_record(f.col("value"), subject).alias("r"), "offset")
    return decoded.select(*selected, "offset").toLocalIterator()
