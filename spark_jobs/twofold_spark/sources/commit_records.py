"""Commit records: what the mirror's stream is made of. Pure.

A commit record that a read_committed consumer sees means: its Kafka transaction is committed, and these offset ranges
are exactly what it wrote. Sequence numbers are dense, so a gap in them is lost data and never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from twofold_spark.errors import Refused


@dataclass(frozen=True, slots=True)
class Range:
    """A stretch of one partition that holds one Kafka transaction's records and the log's own markers alone."""

    topic: str
    partition: int
    first: int
    last: int
    count: int
    prepared: bool = False
    """By a producer of a prepared transaction, whose marker comes at its outcome."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit record."""

    offset: int
    sequence: int
    applied_lsn: int
    committed_us: int
    transactions: int
    rows: int
    ranges: tuple[Range, ...]
    backfilling: tuple[str, ...]
    reload: bool = False
    """Its one table begins anew: the first record of each of its partitions is a truncate."""


def missing(after: int, found: int) -> Refused:
    """Between these two there is a gap."""
    return Refused(
        f"commit record {after + 1} is missing: the next one that Kafka has is {found}",
        at_stake=f"every change of the Kafka transactions {after + 1} to {found - 1}",
        repair=("" if after else "a --checkpoint of its own, if it began at another mirror's; else ")
        + "keep <prefix>.commits as long as the data; here: run the mirror with --on-table-error go-on, which "
        "takes no table before it is loaded anew, and then `twofold backfill start` each table",
    )


def from_last_reload(commits: Iterable[Commit], topic: str) -> tuple[list[Range], bool]:
    """The topic's ranges from the last commit on with which its table begins anew, and whether there is one: what was before counts no more, whether or not it can be read."""
    ranges: list[Range] = []
    anew = False
    for commit in commits:
        of_topic = [stretch for stretch in commit.ranges if stretch.topic == topic]
        if commit.reload and of_topic:
            ranges, anew = [], True
        ranges += of_topic
    return ranges, anew


class Pace:
    """How many rows make a bite: what was asked for, or what their bytes allow, judged by the bite before."""

    def __init__(self, rows: int, bytes_: int) -> None:
        self._rows = rows
        self._bytes = bytes_
        self._mean = 5_000.0  # heavy rows, until some were seen: the first bite is a small one

    def rows(self) -> int:
        return max(1, min(self._rows, int(self._bytes / self._mean)))

    def saw(self, rows: int, bytes_: int) -> None:
        if rows and bytes_:
            self._mean = bytes_ / rows


class Turns:
    """When the tables are looked after: after so many bites.

    A job that is started for a few bites at a time never has so many. So a process's first turn comes when the sequence numbers
    pass a multiple, however many of them a bite has.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._bites = 0
        self._is_first = True

    def is_due(self, before: int, after: int) -> bool:
        """Behind a bite that led from one sequence number to another."""
        self._bites += 1
        due = self._bites >= self._every or (self._is_first and before // self._every != after // self._every)
        if due:
            self._bites, self._is_first = 0, False
        return due


def bites(commits: Iterable[Commit], *, rows: Callable[[], int], ranges: int) -> Iterator[list[Commit]]:
    """The commits, which are in order, in runs of at most `rows()` records and `ranges` ranges (one commit alone may have more), never tearing one apart.

    Behind a gap in the sequence numbers another run begins. No more is taken of `commits` than one beyond the run that is
    given, so a caller that lets go of each holds one at a time.
    """
    run: list[Commit] = []
    held_rows = held_ranges = 0
    for commit in commits:
        held_rows += commit.rows
        held_ranges += len(commit.ranges)
        dense = not run or commit.sequence == run[-1].sequence + 1
        if run and not (dense and held_rows <= rows() and held_ranges <= ranges):
            yield run
            run, held_rows, held_ranges = [], commit.rows, len(commit.ranges)
        run.append(commit)
    if run:
        yield run


def by_topic(commits: Iterable[Commit]) -> dict[str, list[Range]]:
    """The ranges of each topic, in the order of the commits."""
    topics: dict[str, list[Range]] = {}
    for commit in commits:
        for stretch in commit.ranges:
            topics.setdefault(stretch.topic, []).append(stretch)
    return topics


def joined(ranges: Iterable[Range], *, over_markers: bool) -> list[Range]:
    """Ranges of one partition that follow each other become one: fewer to look through, and the same rows.

    `over_markers` joins two that one offset parts, behind a range of a main producer: its commit marker, nearly always. But the
    broker writes markers some milliseconds after it has answered, and a prepared transaction may have got its one record in before:
    whoever joins so compares the counts, and where they differ looks again without. After a prepared transaction's range it may
    be anything, for its own marker comes with its outcome; so may two or more offsets after any range. Those ranges stay apart.
    """
    out: list[Range] = []
    for stretch in sorted(ranges, key=lambda r: (r.topic, r.partition, r.first)):
        before = out[-1] if out else None
        if before and (before.topic, before.partition) == (stretch.topic, stretch.partition):
            if stretch.first <= before.last:
                raise Refused(
                    f"two commit records claim the offsets {stretch.first} to {before.last} of {stretch.topic}-"
                    f"{stretch.partition}",
                    at_stake="a change applied twice",
                    repair="the commits topic was written by two connectors: reload the tables with one of them",
                )
            if stretch.first - before.last <= (2 if over_markers and not before.prepared else 1):
                out[-1] = replace(stretch, first=before.first, count=before.count + stretch.count)
                continue
        out.append(stretch)
    return out
