"""What a group's mirror knows of one member before it chooses a cut: the last frontier, and of the
commit records their numbers, offsets and branches.

`group_topics` reads them, and continues where the last read ended, so a round costs what is new. A
few commit records are held as a whole, for the member's mirror. Of more, the ranges of rows are
read again when they are due.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import NamedTuple

from pyspark.sql import Row, SparkSession

from twofold_avro.names import TopicNames
from twofold_common.global_cut import CommittedBranch, Frontier, Member
from twofold_common.global_loads import ends_a_load
from twofold_spark.errors import Refused
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.commit_records import NO_COMMIT, CommitIdentity, CommitRecord, is_other, recreated_refusal
from twofold_spark.sources.commit_topic import to_commit_record
from twofold_spark.sources.kafka_client import Kafka, read_first_offset

_HELD_RANGES = 20_000
"""Ranges of the commit records that are held as a whole, two hundred bytes each."""
UNKNOWN = kafka_reader.EARLIEST - 1
"""An offset before all: who reads behind it begins with the first record."""


class MemberCommit(NamedTuple):
    """A commit record, as far as a global cut needs it."""

    identity: CommitIdentity
    offset: int
    global_ids: tuple[str, ...]
    rows: int
    ranges: int
    ends_a_load: bool
    record: CommitRecord | None
    """The whole, if it is held."""

    @property
    def sequence(self) -> int:
        return self.identity.sequence


class MemberTopics:
    """The frontiers and the commit records of one prefix."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self._kafka = kafka
        self._prefix = prefix
        self._topic = TopicNames(prefix).commits
        self._cut, self._offset = 0, UNKNOWN
        self._known = NO_COMMIT
        """The last commit record that was read, or that the member's mirror has applied."""
        self._pending: list[MemberCommit] = []
        """Behind the cut."""
        self._held = 0
        """Ranges of those that are held as a whole."""
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
        behind = bisect_right(self._pending, sequence, key=lambda each: each.sequence)
        if behind:
            self._offset = self._pending[behind - 1].offset
            self._held -= sum(each.ranges for each in self._pending[:behind] if each.record is not None)
            del self._pending[:behind]

    def find_firsts(self, frontiers_end: int, commits_end: int) -> tuple[int, int]:
        """Return from where on the frontiers and the commit records are read, given their ends.

        The last commit record is read again, because recreated topics may have others under the
        same numbers and offsets.
        """
        first = max(self._last[1], kafka_reader.EARLIEST)
        if frontiers_end <= self._frontier_offset or commits_end <= first:
            raise recreated_refusal(self._known.sequence, self._prefix)
        return max(self._frontier_offset + 1, kafka_reader.EARLIEST), first

    def take_frontiers(self, rows: Iterable[Row]) -> None:
        """Take the frontiers that are new; the last one counts."""
        for row in rows:
            seen = {each["prefix"]: each["sequence"] for each in row["seen"]}
            streams = {each["prefix"]: each["stream_id"] for each in row["seen"]}
            gids: dict[str, tuple[str, ...]] = {}
            for each in row["in_doubt"]:
                gids[each["global_id"]] = (*gids.get(each["global_id"], ()), each["gid"])
            self._frontier = Frontier(row["sequence"], seen, gids, row["lsn"], streams)
            self._frontier_offset = row["offset"]

    def take_commits(self, spark: SparkSession, rows: Iterable[Row]) -> None:
        """Take the commit records that are new; a missing one is refused."""
        begin, offset = last, _ = self._last
        is_found = not begin
        for row in rows:
            this = CommitIdentity(row["sequence"], row["applied_lsn"], row["us"], row["stream_id"])
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
            self._pending.append(self._make_commit(this, row))
        if not is_found or self._known.sequence > last:
            self._require_removed(spark, offset)

    def _make_commit(self, identity: CommitIdentity, row: Row) -> MemberCommit:
        ranges, record = row["range_count"], None
        if "ranges" in row and self._held + ranges <= _HELD_RANGES:
            record = to_commit_record(row, self._topic)
            self._held += ranges
        ends = ends_a_load(row["kind"], row["loaded_topics"], row["backfilling"])
        return MemberCommit(identity, row["offset"], tuple(row["global_ids"]), row["rows"], ranges, ends, record)

    def find_records(self, sequence: int) -> list[CommitRecord] | None:
        """Return the commit records behind the cut up to this one, if all of them are held."""
        due = takewhile(lambda each: each.sequence <= sequence, self._pending)
        records = [each.record for each in due]
        held = [each for each in records if each is not None]
        return held if len(held) == len(records) else None

    @property
    def stream_id(self) -> str:
        """The stream of the commit records; empty before the first."""
        return self._known.stream_id

    def as_member(self, streams: Mapping[str, str]) -> Member:
        """Return what the choice of a cut needs; `streams`: which stream of each member is read."""
        frontier = self._frontier.keep_streams(streams) if self._frontier is not None else None
        branches = (CommittedBranch(each.sequence, name) for each in self._pending for name in each.global_ids)
        loads = tuple(each.sequence for each in self._pending if each.ends_a_load)
        return Member(self._cut, self._last[0], tuple(branches), frontier, loads)

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

    def _check_known(self, this: CommitIdentity, at: int, begin: int, offset: int) -> None:
        """Refuse a commit record under a known number or offset that is another one.

        `begin` and `offset`: the last one before this read; the offset may not be known.
        """
        is_moved = offset >= 0 and (this.sequence < begin or (this.sequence == begin) != (at == offset))
        if is_moved or is_other(this, self._known):
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
