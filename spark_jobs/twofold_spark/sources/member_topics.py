"""What a mirror knows of one source before it chooses a cut: the last frontier, and of the commit
records their numbers, offsets and branches.

`group_topics` reads those of a group's members, and continues where the last read ended, so a round
costs what is new. A few commit records are held as a whole, for the member's mirror. Of more, the
ranges of rows are read again when they are due.

A source that is in no group has no frontiers, and its commit records wait for nothing. So
`SoleTopics` holds all that it reads, and reads no more than a bounded number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import chain, takewhile
from typing import NamedTuple

from pyspark.sql import Row, SparkSession

from twofold_avro.names import TopicNames
from twofold_common.gids import find_global_id
from twofold_common.global_cut import CommittedBranch, Frontier, Member
from twofold_common.global_loads import ends_a_load
from twofold_spark.errors import Refused
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.commit_records import NO_COMMIT, CommitIdentity, CommitRecord, is_other, recreated_refusal
from twofold_spark.sources.commit_topic import CommitTopic, to_commit_record
from twofold_spark.sources.kafka_client import KafkaAdmin
from twofold_spark.sources.registry import Registry

_HELD_RANGES = 20_000
"""Ranges of the commit records that are held as a whole, two hundred bytes each."""
RANGES_PER_BATCH = 200_000
"""Ranges of a batch's commit records together.

50 tables of six partitions have 300 ranges in each commit record.
"""
_OFFSETS_PER_READ = 20_000
UNKNOWN = kafka_reader.EARLIEST - 1
"""An offset before all: who reads behind it begins with the first record."""


class MemberCommit(NamedTuple):
    """A commit record, as far as a global cut needs it."""

    identity: CommitIdentity
    offset: int
    recorded: tuple[tuple[str, str | None], ...]
    """The gids of its prepared transactions, each with the global id that the record gives it."""
    branches: tuple[CommittedBranch, ...]
    """Those of global transactions, as the member's last frontier names them."""
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

    def __init__(self, admin: KafkaAdmin, prefix: str) -> None:
        self._admin = admin
        self._prefix = prefix
        self.topic = TopicNames(prefix).commits
        """That of the commit records."""
        self.cut, self.offset = 0, UNKNOWN
        """The last cut's commit record, and its offset."""
        self._end = 0
        self._known = NO_COMMIT
        """The last commit record that was read, or that the member's mirror has applied."""
        self._pending: list[MemberCommit] = []
        """Behind the cut."""
        self._held = 0
        """Ranges of those that are held as a whole."""
        self._frontier: Frontier | None = None
        self._frontier_offset = UNKNOWN
        self._gid_patterns: tuple[str, ...] = ()
        """Those of the frontier, by which the branches are named."""

    @property
    def behind(self) -> int:
        """How many offsets lay behind the cut's commit record and its marker at the last read."""
        return max(0, self._end - self.offset - 2)

    def start_from(self, sequence: int, offset: int, applied: CommitIdentity) -> None:
        """Start behind a commit record that is in the last global cut.

        `applied`: the last one that the member's mirror has applied, which may be further.
        """
        self.cut, self.offset, self._known = sequence, offset, applied

    def advance_to(self, sequence: int) -> None:
        """Forget what is in the new cut."""
        self.cut = sequence
        behind = bisect_right(self._pending, sequence, key=lambda each: each.sequence)
        if behind:
            self.offset = self._pending[behind - 1].offset
            self._held -= sum(each.ranges for each in self._pending[:behind] if each.record is not None)
            del self._pending[:behind]

    def find_first_frontier(self, end: int) -> int:
        """Return from where on the frontiers are read, given their end.

        Recreated topics are read from their beginning: each frontier says everything. If they are
        of another stream, the commit records say so.
        """
        if end <= self._frontier_offset:
            self._frontier_offset = UNKNOWN
        return max(self._frontier_offset + 1, kafka_reader.EARLIEST)

    def find_first_commit(self, end: int) -> int:
        """Return from where on the commit records are read, given their end.

        The last commit record is read again, because recreated topics may have others under the
        same numbers and offsets.
        """
        first = max(self._last[1], kafka_reader.EARLIEST)
        if end <= first:
            raise recreated_refusal(self._known.sequence, self._prefix)
        self._end = end
        return first

    def take_frontiers(self, rows: Iterable[Row]) -> None:
        """Take the frontiers that are new; the last one counts."""
        for row in rows:
            seen = ((each["prefix"], each["sequence"], each["stream_id"]) for each in row["seen"])
            in_doubt = ((each["global_id"], each["gid"]) for each in row["in_doubt"])
            self._frontier = Frontier.from_lists(row["sequence"], row["lsn"], seen, in_doubt, row["gid_patterns"])
            self._frontier_offset = row["offset"]
        if self._frontier is not None and self._frontier.gid_patterns != self._gid_patterns:
            self._gid_patterns = self._frontier.gid_patterns
            self._pending = [each._replace(branches=self._name(each.sequence, each.recorded)) for each in self._pending]

    def take_commits(self, rows: Iterable[Row]) -> bool:
        """Take the commit records that are new; a missing one is refused.

        Return whether there was room for all of them.
        """
        begin, offset = last, _ = self._last
        is_found = not begin
        for row in rows:
            this = CommitIdentity(row["sequence"], row["applied_lsn"], row["us"], row["stream_id"])
            self._check_known(this, row["offset"], begin, offset)
            if this.sequence <= begin:
                is_found |= this.sequence == begin
                continue
            if not is_found:
                self._require_removed(offset)
                is_found = True
            if not last and this.sequence > 1:
                # Retention has removed the first ones. The member's mirror decides what becomes of
                # its tables.
                self.cut = last = this.sequence - 1
            if this.sequence != last + 1:
                self._refuse_gap(last, this.sequence)
            if (commit := self._make_commit(this, row)) is None:
                return False
            last = this.sequence
            self._known = max(self._known, this)
            self._pending.append(commit)
        if not is_found or self._known.sequence > last:
            self._require_removed(offset)
        # The frontiers' end was asked first: what a frontier knows was read, if it is there.
        if self._frontier is not None and self._frontier.sequence > last:
            raise self._removed_refusal(last + 1, self._frontier.sequence)
        return True

    def _make_commit(self, identity: CommitIdentity, row: Row) -> MemberCommit | None:
        """Make the commit record of a row; None if there is no room for it."""
        ranges, record = row["range_count"], None
        if "ranges" in row and self._held + ranges <= _HELD_RANGES:
            record = to_commit_record(row)
            self._held += ranges
        ends = ends_a_load(row["kind"], row["loaded_topics"], row["backfilling"])
        recorded = tuple(zip(row["gids"], row["global_ids"], strict=True))
        branches = self._name(identity.sequence, recorded)
        return MemberCommit(identity, row["offset"], recorded, branches, row["rows"], ranges, ends, record)

    def _name(self, sequence: int, recorded: Iterable[tuple[str, str | None]]) -> tuple[CommittedBranch, ...]:
        names = (find_global_id(*each, self._gid_patterns) for each in recorded)
        return tuple(CommittedBranch(sequence, name) for name in names if name is not None)

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
        branches = tuple(chain.from_iterable(each.branches for each in self._pending))
        loads = tuple(each.sequence for each in self._pending if each.ends_a_load)
        return Member(self.cut, self._last[0], branches, frontier, loads)

    def find_limit(self, rows: int, ranges: int) -> int:
        """Return the last commit record up to which there are at most so many rows and ranges, and
        no gap.

        It is at least the first one behind the cut, if there is one.
        """
        limit = self.cut
        for each in self._pending:
            rows, ranges = rows - each.rows, ranges - each.ranges
            if limit > self.cut and (rows < 0 or ranges < 0 or each.sequence != limit + 1):
                break
            limit = each.sequence
        return limit

    @property
    def _last(self) -> tuple[int, int]:
        """The last commit record that was read, and its offset."""
        return (self._pending[-1].sequence, self._pending[-1].offset) if self._pending else (self.cut, self.offset)

    def _check_known(self, this: CommitIdentity, at: int, begin: int, offset: int) -> None:
        """Refuse a commit record under a known number or offset that is another one.

        `begin` and `offset`: the last one before this read; the offset may not be known.
        """
        is_moved = offset >= 0 and (this.sequence < begin or (this.sequence == begin) != (at == offset))
        if is_moved or is_other(this, self._known):
            raise recreated_refusal(min(this.sequence, self._known.sequence), self._prefix)

    def _require_removed(self, offset: int) -> None:
        """Refuse a known commit record that is not there, unless retention has removed it."""
        if self._read_first_offset() <= max(offset, 0):
            raise recreated_refusal(self._known.sequence, self._prefix)

    def _read_first_offset(self) -> int:
        return self._admin.list_first_offsets([(self.topic, 0)])[self.topic, 0]

    def _removed_refusal(self, first: int, last: int) -> Refused:
        return Refused(
            f"Kafka does not have the commit records {first} to {last} of {self._prefix} any more, nor a later one: retention has removed them",
            at_stake="every change that they declared, and each global cut: none can be made without them",
            repair=f"load the tables of {self._prefix} again (twofold backfill start): that writes a commit record. "
            + ("Then start over in a new place (--warehouse, and the address in --sink). " if first > 1 else "")
            + f"From now on keep {self.topic} as long as the data",
        )

    def _refuse_gap(self, after: int, found: int) -> None:
        raise Refused(
            f"commit record {after + 1} of {self._prefix} is missing: the next one that Kafka has is {found}",
            at_stake=f"every change of the Kafka transactions {after + 1} to {found - 1}, and which global transactions they belong to",
            repair=f"keep {self.topic} as long as the data; start over in a new place (--warehouse, and the address in --sink), and load the tables again",
        )


class SoleTopics(MemberTopics):
    """The commit records of a source that is in no group. A gap is its mirror's to judge."""

    def __init__(self, admin: KafkaAdmin, registry: Registry, prefix: str, judge: Callable[[Refused], None]) -> None:
        """`judge` raises a refusal, or says that the mirror begins all the same."""
        super().__init__(admin, prefix)
        self._commits = CommitTopic(admin.kafka, registry, prefix)
        self._judge = judge
        self._read_to: int | None = None
        """The offset up to which was read; at first the first one that Kafka has."""
        self._is_complete = False

    def read(self, spark: SparkSession) -> bool:
        """Take what is new, as far as there is room. Return whether that was all."""
        end = self._admin.list_stable_offsets([(self.topic, 0)])[self.topic, 0]
        if self._is_complete and end == self._read_to:
            return True
        first, before = self.find_first_commit(end), self._last
        if is_first := self._read_to is None:
            self._read_to = self._read_first_offset()
        kept = self._read_to or 0
        first = first if first >= 0 else kept
        until = min(end, max(first, kept) + _OFFSETS_PER_READ)
        # Closed while Spark runs: records that are abandoned make Spark log pages of errors.
        with closing(self._commits.read_rows(spark, first, until)) as rows:
            is_taken = self.take_commits(rows)
        if is_taken:
            self._read_to = until
        self._is_complete = is_taken and until == end
        # Behind the last commit record is its marker alone, unless retention has removed others.
        if is_first and self._is_complete and self._last == before and kept > max(before[1] + 2, 0):
            self._judge(self._none_left_refusal())
        return self._is_complete

    def _make_commit(self, identity: CommitIdentity, row: Row) -> MemberCommit | None:
        record = to_commit_record(row)
        if self._pending and self._held + len(record.ranges) > RANGES_PER_BATCH:
            return None
        self._held += len(record.ranges)
        return MemberCommit(identity, row["offset"], (), (), record.rows, len(record.ranges), False, record)

    def _refuse_gap(self, after: int, found: int) -> None:
        """Refuse nothing: no cut passes a gap unless the mirror has stopped every table."""

    def _none_left_refusal(self) -> Refused:
        behind = f" behind {self._last[0]}" if self._last[0] else ""
        return Refused(
            f"Kafka has no commit record of {self._prefix}{behind} any more: retention has removed all that there were",
            at_stake="every change that they declared: these tables have none of them",
            repair="run the mirror with --on-table-error go-on, then `twofold backfill start` each table. "
            "From now on keep <prefix>.commits as long as the data",
        )
