"""Compares the commit records of a prefix with the rows that a read_committed reader gets: the core
of `twofold audit` and of recovery's check.

The order of the first questions decides which rows of a running connector may be judged. Each
partition's last stable offset is asked first, then the end of the commits topic. A row below the
offset was committed before the end was asked, and its commit record, written in the same Kafka
transaction, lies below that end. So a commit record must name each row that is read. A range that
reaches beyond the partition's end is left to the next time.

Memory: the ranges of one batch of commit records, and the state of `PartitionTally`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from twofold.kafka.decoding import Decoder
from twofold.kafka.names import Names
from twofold.kafka.tally import ExpectedRange, PartitionTally
from twofold.kafka.topic_reader import Bounds, PartitionId, TopicReader
from twofold_avro.records import Commit

RANGES_MAX = 100_000
"""The most ranges in a batch; a single commit record may have more."""
BREAKS_KEPT = 1000
CLOCK_MS = 5000
"""The most milliseconds by which the clocks of two machines may differ. A commit record is written
after its rows.
"""


@dataclass(frozen=True, slots=True)
class SequenceBreak:
    """Two neighbouring commit records without consecutive numbers, or of two streams."""

    before: int
    found: int
    other_stream: bool = False


@dataclass(frozen=True, slots=True)
class Reload:
    """The commit record that begins a reload, and the offsets of its truncates by partition."""

    sequence: int
    firsts: Mapping[int, int]


@dataclass(slots=True)
class ComparisonResult:
    """The result; it grows while `compare` reads."""

    bounds: dict[PartitionId, Bounds]
    """The bounds of all partitions under the prefix when the comparison began."""
    tallies: dict[PartitionId, PartitionTally] = field(default_factory=dict)
    commits: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    last_stream_id: str = ""
    breaks: list[SequenceBreak] = field(default_factory=list)
    reloads: dict[str, Reload] = field(default_factory=dict)
    """Each table's last reload, by topic."""
    backfilling: tuple[str, ...] = ()
    """The tables in backfill by the last commit record."""
    gone: dict[str, int] = field(default_factory=dict)
    """The topics of which commit records name partitions that do not exist, each with the number of
    their ranges since its last reload.
    """

    @property
    def rows(self) -> int:
        return sum(tally.rows for tally in self.tallies.values())

    @property
    def offsets(self) -> tuple[int, int]:
        """The number of offsets that have been read, and the number of all offsets."""
        tallies = self.tallies.values()
        return sum(t.position - t.start for t in tallies), sum(t.end - t.start for t in tallies)


@dataclass(frozen=True, slots=True)
class ComparisonScope:
    """The part of a prefix that is compared."""

    topics: frozenset[str]
    """The topics that are read whether or not a commit record names them; so are the topics of
    outbox events.
    """
    since: int = 0
    """Commit records up to this one are accepted unread, and so are rows up to their end."""
    from_ms: int | None = None
    """The earliest time of writing of the rows that are compared."""
    to_the_end: bool = False
    """Whether to wait for open transactions, and to read beyond them."""
    starts: Mapping[PartitionId, int] | None = None
    """The first offsets of the partitions that are read beside all commit records."""


ReportProgress = Callable[[ComparisonResult], None]


def compare(
    reader: TopicReader, decoder: Decoder, names: Names, scope: ComparisonScope, report: ReportProgress = lambda _: None
) -> ComparisonResult:
    """Read and compare. `report` is called often, and must be quick."""
    comparison = _Comparison(reader, names, scope, report)
    comparison.go_through(decoder)
    comparison.forgive_retention()
    return comparison.found


def find_lost(reader: TopicReader, found: ComparisonResult) -> None:
    """Note as damage what commit records name behind the ends that the partitions have now.

    A topic that was made since the comparison began is not gone.
    """
    known = {place.topic for place in found.bounds}
    for topic in {place.topic for place in reader.partitions_of(found.gone)} - known:
        del found.gone[topic]
    for place, bounds in reader.bounds([place for place, tally in found.tallies.items() if tally.beyond]).items():
        found.tallies[place].judge_beyond(bounds.high)


class _Comparison:
    """One comparison in progress."""

    def __init__(self, reader: TopicReader, names: Names, scope: ComparisonScope, report: ReportProgress) -> None:
        self._reader = reader
        self._events = names.events
        self._commits = PartitionId(names.commits, 0)
        self._scope = scope
        self._report = report
        places = [p for p in reader.partitions_under(f"{names.prefix}.") if p.topic not in names.bookkeeping]
        self._starts: dict[PartitionId, int] = {}
        if scope.starts is not None:
            places = [place for place in places if place in scope.starts]
            self._starts = dict(scope.starts)
        elif scope.from_ms is not None:
            self._starts = reader.offsets_since(places, scope.from_ms)
            self._starts |= reader.offsets_since([self._commits], scope.from_ms - CLOCK_MS)
        self.found = ComparisonResult(reader.bounds(places))
        self._accepted: dict[PartitionId, int] = {}
        """The ends of the rows that commit records up to `scope.since` name."""
        self._expected: dict[PartitionId, list[ExpectedRange]] = {}
        """The ranges of this batch."""

    def go_through(self, decoder: Decoder) -> None:
        low, high = (b := self._reader.bounds([self._commits])[self._commits]).low, b.high
        start = max(low, self._starts.get(self._commits, low))
        records = self._reader.read({self._commits: (start, high)}, may_begin_later=True)
        commits = (decoder.decode_message(Commit, each) for each in records)
        from_first_range = low > 0 and self._scope.from_ms is None
        final = False
        while not final:
            final = self._take_batch(commits)
            stretches = {}
            for place in self.found.bounds:
                if self._is_read(place.topic) or place in self._expected or place in self.found.tallies:
                    tally = self._tally(place, from_first_range=from_first_range)
                    upto = tally.expect(self._expected.pop(place, ()))
                    stretches[place] = (tally.position, tally.end if final else upto)
            for place, first, last in self._reader.read_runs(stretches):
                self.found.tallies[place].see(first, last)
                self._report(self.found)
            for place, (_, end) in stretches.items():
                self.found.tallies[place].judge(end, final=final)
            self._report(self.found)

    def _is_read(self, topic: str) -> bool:
        """Whether a topic is read even if no commit record names it."""
        return topic in self._scope.topics or topic.startswith(self._events)

    def forgive_retention(self) -> None:
        """Drop findings about offsets that Kafka's retention removed during the reading."""
        short = [place for place, tally in self.found.tallies.items() if any(d.kind == "short" for d in tally.damages)]
        for place, bounds in self._reader.bounds(short).items():
            tally = self.found.tallies[place]
            kept = [d for d in tally.damages if d.kind != "short" or d.first >= bounds.low]
            tally.unjudged_ranges += len(tally.damages) - len(kept)
            tally.damages = kept

    def _take_batch(self, commits: Iterator[Commit]) -> bool:
        """Read one batch of commit records; return whether it was the last."""
        ranges = 0
        for commit in commits:
            self._number(commit)
            for r in commit.ranges:
                self._take_range(
                    PartitionId(r.topic, r.partition), ExpectedRange(r.first, r.last, r.count, commit.sequence), commit
                )
            ranges += len(commit.ranges)
            if ranges >= RANGES_MAX:
                return False
        return True

    def _number(self, commit: Commit) -> None:
        found = self.found
        last = found.last_sequence
        other_stream = last is not None and commit.stream_id != found.last_stream_id
        if last is not None and (other_stream or commit.sequence != last + 1) and len(found.breaks) < BREAKS_KEPT:
            found.breaks.append(SequenceBreak(last, commit.sequence, other_stream))
        if commit.kind == "reload" and commit.ranges:
            firsts = {r.partition: r.first for r in commit.ranges}
            found.reloads[commit.ranges[0].topic] = Reload(commit.sequence, firsts)
            found.gone.pop(commit.ranges[0].topic, None)
        found.commits += 1
        found.first_sequence = commit.sequence if found.first_sequence is None else found.first_sequence
        found.last_sequence, found.last_stream_id = commit.sequence, commit.stream_id
        found.backfilling = commit.backfilling

    def _take_range(self, place: PartitionId, expected: ExpectedRange, commit: Commit) -> None:
        if commit.sequence <= self._scope.since:
            self._accepted[place] = max(expected.last, self._accepted.get(place, -1))
            return
        if place not in self.found.bounds:
            self.found.gone[place.topic] = self.found.gone.get(place.topic, 0) + 1
            return
        earlier = self._expected.setdefault(place, [])
        tally = self.found.tallies.get(place)
        known = (tally.highest, tally.beyond.last if tally.beyond else -1) if tally else ()
        highest = max((-1, *known, *(each.last for each in earlier[-1:])))
        if commit.kind == "reload" and expected.first <= highest:
            # The topic was recreated: earlier commit records name offsets of the deleted one.
            self.found.tallies.pop(place, None)
            earlier.clear()
        earlier.append(expected)

    def _tally(self, place: PartitionId, *, from_first_range: bool) -> PartitionTally:
        tally = self.found.tallies.get(place)
        if tally is None:
            bounds, accepted = self.found.bounds[place], self._accepted.get(place, -1)
            start = max(bounds.low, self._starts.get(place, bounds.low))
            if accepted >= 0:
                start = max(start, min([accepted + 1, *(each.first for each in self._expected.get(place, ()))]))
            tally = PartitionTally(
                start, max(start, bounds.stable), from_first_range=from_first_range, accepted=accepted
            )
            self.found.tallies[place] = tally
        return tally
