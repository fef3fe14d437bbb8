"""Commit records, and the offset ranges that they declare. Pure.

A commit record that a read_committed consumer sees means two things. Its Kafka transaction is
committed, and that transaction wrote exactly these offset ranges. Sequence numbers are dense, so a
gap in them is lost data, and the mirror never skips it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from twofold_spark.errors import Refused


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A range of one partition: one Kafka transaction's records, markers, and nothing else."""

    topic: str
    partition: int
    first: int
    last: int
    count: int
    prepared: bool = False
    """Written by the producer of a prepared transaction, whose marker comes with its outcome."""
    before: int | None = None
    """The position in PostgreSQL's WAL before which all of the rows lie; None of a load's rows."""


class SkippedRow(NamedTuple):
    """A row that a person had skipped, and that its topic lacks."""

    topic: str
    lsn: int
    key: bytes | None
    """Its message key without the schema's id."""


class CommitIdentity(NamedTuple):
    """A commit record's number, and what tells it from another one under the same number."""

    sequence: int
    applied_lsn: int
    committed_us: int
    stream_id: str
    """Of the stream that an init began: another stream of the prefix may have all of the others."""


NO_COMMIT = CommitIdentity(0, 0, 0, "")
"""Before the first one, of any stream."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit record."""

    offset: int
    sequence: int
    applied_lsn: int
    committed_us: int
    transactions: int
    rows: int
    ranges: tuple[OffsetRange, ...]
    backfilling: tuple[str, ...]
    stream_id: str = ""
    reload: bool = False
    """A reload of its one table begins here: the first record of each partition is a truncate."""
    stale: tuple[str, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()
    """The rows that a person had skipped and that topics lack."""

    @property
    def identity(self) -> CommitIdentity:
        return CommitIdentity(self.sequence, self.applied_lsn, self.committed_us, self.stream_id)


def is_other(record: CommitIdentity, known: CommitIdentity) -> bool:
    """Whether a commit record does not belong to the stream that has the known one.

    Numbers, positions and times of two streams of one prefix may be equal.
    """
    if not known.sequence:
        return False
    return record.stream_id != known.stream_id or (record.sequence == known.sequence and record != known)


def recreated_refusal(sequence: int, prefix: str) -> Refused:
    return Refused(
        f"commit record {sequence} of {prefix} is not the one that this mirror has applied: the topics of this prefix were recreated",
        at_stake="every change that the new topics have up to that number: the mirror would skip them, and rows that are gone would stay",
        repair="use a new warehouse (or folder, or database) and a new checkpoint for the new topics. The load that twofold init began "
        "brings all rows there; with source.backfill = false run `twofold backfill start` for each table; "
        "in a source group restart the connectors of all members before",
    )


def gap_refusal(after: int, found: int) -> Refused:
    return Refused(
        f"commit record {after + 1} is missing: the next one that Kafka has is {found}",
        at_stake=f"every change of the Kafka transactions {after + 1} to {found - 1}",
        repair="run the mirror with --on-table-error go-on, which stops every table until it is reloaded, "
        "then `twofold backfill start` each table. From now on keep <prefix>.commits as long as the data",
    )


def select_since_reload(records: Iterable[CommitRecord], topic: str) -> tuple[list[OffsetRange], bool]:
    """Select the topic's ranges since its last reload; also return whether there was one.

    Earlier ranges do not count any more, whether or not they can be read.
    """
    ranges: list[OffsetRange] = []
    reloaded = False
    for record in records:
        of_topic = [r for r in record.ranges if r.topic == topic]
        if record.reload and of_topic:
            ranges, reloaded = [], True
        ranges += of_topic
    return ranges, reloaded


def join_ranges(ranges: Iterable[OffsetRange], *, over_markers: bool) -> list[OffsetRange]:
    """Join ranges of one partition that follow each other: fewer ranges, and the same rows.

    `over_markers` also joins two ranges with one offset between them, if a main producer wrote the
    first. That offset is nearly always the commit marker. But the broker writes a marker some
    milliseconds after it has answered, and the one record of a prepared transaction may come before
    it. So the caller compares the counts, and reads again without `over_markers` where they differ.

    Behind a prepared transaction's range the offset may be anything, because its marker comes with
    its outcome. Two or more offsets may be anything too. Such ranges stay apart.
    """
    out: list[OffsetRange] = []
    for this in sorted(ranges, key=lambda r: (r.topic, r.partition, r.first)):
        before = out[-1] if out else None
        if before and (before.topic, before.partition) == (this.topic, this.partition):
            if this.first <= before.last:
                raise Refused(
                    f"two commit records name the offsets {this.first} to {before.last} of {this.topic}-{this.partition}",
                    at_stake="a change applied twice",
                    repair="two connectors wrote to the commits topic: end one of them, and reload the tables with the other",
                )
            if this.first - before.last <= (2 if over_markers and not before.prepared else 1):
                out[-1] = replace(this, first=before.first, count=before.count + this.count)
                continue
        out.append(this)
    return out
