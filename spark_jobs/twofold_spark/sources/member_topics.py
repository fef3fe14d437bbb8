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
from twofold_spark.errors import SPARK_ERRORS, Refused, SetupError
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.commit_records import CommitIdentity, recreated_refusal
from twofold_spark.sources.kafka_client import Kafka, read_first_offset
from twofold_spark.sources.registry import Registry, Subject

_RECORDS_PER_TASK = "5000"
_BEHIND_END = "is greater than the resolved end offset"
"""What Spark says if the topic ends before the offset: a topic that only grows never does."""
UNKNOWN = kafka_reader.EARLIEST - 1
"""An offset before all: who reads behind it begins with the first record."""


class MemberCommit(NamedTuple):
    """A commit record, as far as a global cut needs it."""

    identity: CommitIdentity
    offset: int
    global_ids: tuple[str, ...]
    rows: int
    ranges: int

    @property
    def sequence(self) -> int:
        return self.identity.sequence


class MemberTopics:
    """The frontiers and the commit records of one prefix, read_committed."""

    def __init__(self, kafka: Kafka, registry: Registry, prefix: str) -> None:
        self._kafka = kafka
        self._registry = registry
        self._prefix = prefix
        self._topic = f"{prefix}.commits"
        self._cut, self._offset = 0, UNKNOWN
        self._known = CommitIdentity(0, 0, 0)
        """The last commit record that was read, or that the member's mirror has applied."""
        self._pending: list[MemberCommit] = []
        """Behind the cut."""
        self._frontier: Frontier | None = None
        self._frontier_offset = UNKNOWN

    @property
    def offset(self) -> int:
        """The offset of the cut's commit record, or UNKNOWN."""
        return self._offset

    def start_from(self, sequence: int, offset: int, applied: CommitIdentity) -> None:
        """Start behind a commit record that is in the last global cut.

        `applied`: the last one that the member's mirror has applied, which may be further.
        """
        self._cut, self._offset, self._known = sequence, offset, applied

    def start_with_first(self, applied: CommitIdentity) -> None:
        """Start with the first commit record that Kafka has: the last global cut has none of it."""
        self._known = applied

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
        """Read the commit records that are new; a missing one is refused.

        The last one is read again, because recreated topics may have others under the same numbers
        and offsets.
        """
        begin, offset = last, _ = self._last
        is_found = not begin
        for row in self._read_from(spark, offset):
            this = CommitIdentity(row["sequence"], row["applied_lsn"], row["us"])
            self._check_known(this, row["offset"], begin, offset)
            if this.sequence <= begin:
                is_found |= this.sequence == begin
                continue
            if not is_found:
                self._require_removed(spark, offset)
                is_found = True
            if not last and this.sequence > 1:
                # Retention has removed the first ones. The member's mirror decides what becomes of
                # its tables.
                self._cut = last = this.sequence - 1
            if this.sequence != last + 1:
                raise self._gap_refusal(last, this.sequence)
            last += 1
            self._known = max(self._known, this)
            self._pending.append(
                MemberCommit(this, row["offset"], tuple(row["global_ids"]), row["rows"], row["ranges"])
            )
        if not is_found or self._known.sequence > last:
            self._require_removed(spark, offset)

    def as_member(self) -> Member:
        """Return what the choice of a cut needs."""
        branches = (CommittedBranch(each.sequence, name) for each in self._pending for name in each.global_ids)
        return Member(self._cut, self._last[0], tuple(branches), self._frontier)

    def find_limit(self, rows: int, ranges: int) -> int:
        """Return the last commit record up to which there are at most so many rows and ranges.

        It is at least the first one behind the cut, if there is one.
        """
        limit = self._cut
        for each in self._pending:
            rows, ranges = rows - each.rows, ranges - each.ranges
            if limit > self._cut and (rows < 0 or ranges < 0):
                break
            limit = each.sequence
        return limit

    @property
    def _last(self) -> tuple[int, int]:
        """The last commit record that was read, and its offset."""
        return (self._pending[-1].sequence, self._pending[-1].offset) if self._pending else (self._cut, self._offset)

    def _read_from(self, spark: SparkSession, offset: int) -> Iterator[Row]:
        subject = self._registry.find_subject(f"{self._topic}-value")
        if subject is None:
            raise SetupError(
                f"the registry has no subject {self._topic}-value: give --registry the connector's registry"
            )
        # What retention has removed shows in the numbers.
        options = {"maxRecordsPerPartition": _RECORDS_PER_TASK, "failOnDataLoss": "false"}
        new = kafka_reader.read_from(spark, self._kafka, self._topic, max(offset, kafka_reader.EARLIEST), **options)
        global_ids = f.expr("filter(r.prepared.global_id, each -> each IS NOT NULL)").alias("global_ids")
        committed_us = f.unix_micros("r.committed_at").alias("us")
        ranges = f.size("r.ranges").alias("ranges")
        try:
            columns = ("sequence", "applied_lsn", committed_us, global_ids, "rows", ranges)
            yield from self._decode(new, subject, columns)
        except SPARK_ERRORS as error:
            if _BEHIND_END in str(error):
                raise recreated_refusal(self._known.sequence, self._prefix) from None
            raise

    def _check_known(self, this: CommitIdentity, at: int, begin: int, offset: int) -> None:
        """Refuse a commit record under a known number or offset that is another one.

        `begin` and `offset`: the last one before this read; the offset may not be known.
        """
        is_moved = offset >= 0 and (this.sequence < begin or (this.sequence == begin) != (at == offset))
        if is_moved or (this.sequence == self._known.sequence and this != self._known):
            raise recreated_refusal(min(this.sequence, self._known.sequence), self._prefix)

    def _require_removed(self, spark: SparkSession, offset: int) -> None:
        """Refuse a known commit record that is not there, unless retention has removed it."""
        if read_first_offset(spark, self._kafka, self._topic) <= max(offset, 0):
            raise recreated_refusal(self._known.sequence, self._prefix)

    def _gap_refusal(self, after: int, found: int) -> Refused:
        return Refused(
            f"commit record {after + 1} of {self._prefix} is missing: the next one that Kafka has is {found}",
            at_stake=f"every change of the Kafka transactions {after + 1} to {found - 1}, and which global transactions they belong to",
            repair=f"keep {self._topic} as long as the data; start over in a new place (--warehouse, and the address in --sink), and load the tables again",
        )

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
