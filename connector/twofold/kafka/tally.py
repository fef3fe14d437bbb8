"""Compares one partition's declared ranges with its offsets as a read_committed reader sees them.

Pure. Commit records declare the ranges. A range is whole if exactly `count` records are visible
between its `first` and its `last`. A visible record outside all ranges is unexpected: nobody
committed it on purpose.

Ranges come in the order of their commits. That is the order of offsets, except for prepared
transactions, which wrote while others committed. So ranges come in batches, and each batch is
sorted. A range that begins below the position already read takes its records from the unexpected
ones kept so far. Memory: one batch of ranges, and bounded lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

KEPT_MAX = 200
"""The least number of damages that are kept of a partition, and of unexpected runs of records that
wait for their range. Older damages are only counted.
"""

Kind = Literal["short", "surplus", "overlap", "unexpected"]


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of a partition in which commit records and visible records disagree."""

    kind: Kind
    first: int
    last: int
    visible: int
    declared: int
    """The number of records that the commit record names; 0 for unexpected ones."""
    sequence: int | None = None
    """The commit record's sequence; of an overlap, the later one's."""

    @property
    def description(self) -> str:
        """The damage in words for people."""
        place = f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"
        match self.kind:
            case "unexpected":
                return f"{place}: {self.visible} visible records are named by no commit record"
            case "overlap":
                return f"{place}: commit record {self.sequence} names records that another commit record names too"
            case "short" | "surplus":
                return f"{place}: commit record {self.sequence} names {self.declared} records, but {self.visible} are visible"


@dataclass(slots=True)
class ExpectedRange:
    """A commit record's range, and the number of visible records found there."""

    first: int
    last: int
    count: int
    sequence: int
    visible: int = 0
    judged: bool = True
    """False: part of the range lies outside the read part, so only its place counts."""


class PartitionTally:
    """The tally of one partition, from offset `start` to before `end`.

    Calls: `expect` for a batch of ranges, `see` in the order of offsets, `judge` at the batch's
    end.
    """

    def __init__(self, start: int, end: int, *, from_first_range: bool = False, accepted: int = -1) -> None:
        """`from_first_range`: records below the lowest range are no damage.

        Commit records that are no longer kept may have named them. Records up to `accepted` are no
        damage either.
        """
        self.start = start
        self.end = end
        self.position = start
        self.rows = 0
        self.ranges = 0
        self.unjudged_ranges = 0
        """Ranges that lie partly or wholly outside `start` and `end`."""
        self.unknown = 0
        """Visible records in no range that are no damage."""
        self.lowest: int | None = None
        self.highest = -1
        self.beyond: ExpectedRange | None = None
        """The range that reaches furthest beyond `end`."""
        self.damages: list[Damage] = []
        """The last damages."""
        self.dropped = 0
        """The number of earlier damages; `dropped_to` is the highest offset that they reach."""
        self.dropped_to = -1
        self._from_first_range = from_first_range
        self._accepted = accepted
        self._batch: list[ExpectedRange] = []
        self._next = 0
        self._unexpected: list[tuple[int, int]] = []
        self._old_unexpected: list[tuple[int, int]] = []
        """Unexpected records of the previous batch. A prepared transaction that wrote them commits
        within this batch, or not at all."""

    def expect(self, ranges: Iterable[ExpectedRange]) -> int:
        """Add a batch of ranges.

        Return the offset up to which the partition must be read for it (exclusive).
        """
        read_ranges = sorted(filter(None, map(self._within, ranges)), key=lambda each: each.first)
        self.ranges += len(read_ranges)
        self._batch = self._without_overlaps(read_ranges)
        self._next = 0
        for each in self._batch:
            if each.first < self.position:
                each.visible += self._take_unexpected(each.first, min(each.last, self.position - 1))
        if not self._batch:
            return self.position
        self.lowest = min(self._batch[0].first, self.lowest if self.lowest is not None else self._batch[0].first)
        self.highest = max(self.highest, *(each.last for each in self._batch))
        return max(self.position, self.highest + 1)

    def see(self, first: int, last: int) -> None:
        """Count visible records with neighbouring offsets, none before the position again."""
        first, last = max(first, self.position), min(last, self.end - 1)
        if first > last:
            return
        self.position = last + 1
        self.rows += last - first + 1
        while first <= last:
            while self._next < len(self._batch) and self._batch[self._next].last < first:
                self._next += 1
            expected = self._batch[self._next] if self._next < len(self._batch) else None
            if expected is None or last < expected.first:
                self._keep_unexpected(first, last)
                return
            if first < expected.first:
                self._keep_unexpected(first, expected.first - 1)
                first = expected.first
            upto = min(last, expected.last)
            expected.visible += upto - first + 1
            first = upto + 1

    def judge_beyond(self, high: int) -> None:
        """Judge what reaches beyond `end`: Kafka's partition ends at `high`, which was asked when
        all commit records were read. It lacks what they name there: a broker has lost it, or the
        topic was deleted and made again.
        """
        if (lost := self.beyond) is not None and lost.last >= high:
            first = max(lost.first, high)
            self._note(Damage("short", first, lost.last, 0, min(lost.count, lost.last - first + 1), lost.sequence))

    def judge(self, read_to: int, *, final: bool = False) -> None:
        """Judge the batch: everything below `read_to` was seen.

        Unexpected records of the previous batch are damage now, and those of the `final` batch too.
        """
        self.position = max(self.position, read_to)
        for each in self._batch:
            if each.judged and each.visible != each.count:
                kind: Kind = "short" if each.visible < each.count else "surplus"
                self._note(Damage(kind, each.first, each.last, each.visible, each.count, each.sequence))
        self._batch, self._next = [], 0
        self._condemn(self._old_unexpected)
        self._old_unexpected, self._unexpected = self._unexpected, []
        if final:
            self._condemn(self._old_unexpected)

    def _within(self, expected: ExpectedRange) -> ExpectedRange | None:
        """Return the part of a range that is read."""
        if self.start <= expected.first and expected.last < self.end:
            return expected
        self.unjudged_ranges += 1
        if expected.last >= max(self.end, self.beyond.last + 1 if self.beyond else 0):
            self.beyond = expected
        first, last = max(expected.first, self.start), min(expected.last, self.end - 1)
        return ExpectedRange(first, last, expected.count, expected.sequence, judged=False) if first <= last else None

    def _without_overlaps(self, ranges: list[ExpectedRange]) -> list[ExpectedRange]:
        """Join ranges that share offsets: they are judged as one."""
        apart: list[ExpectedRange] = []
        for each in ranges:
            before = apart[-1] if apart else None
            if before is None or before.last < each.first:
                apart.append(each)
                continue
            later = max(before.sequence, each.sequence)
            self._note(Damage("overlap", each.first, min(before.last, each.last), 0, each.count, later))
            last, count = max(before.last, each.last), before.count + each.count
            apart[-1] = ExpectedRange(before.first, last, count, later, judged=before.judged and each.judged)
        return apart

    def _take_unexpected(self, first: int, last: int) -> int:
        """Remove and count the unexpected records between two offsets: they now have a range."""
        taken = 0
        for unexpected in (self._old_unexpected, self._unexpected):
            left: list[tuple[int, int]] = []
            for a, b in unexpected:
                low, high = max(a, first), min(b, last)
                taken += max(0, high - low + 1)
                left += [(a, b)] if low > high else [(x, y) for x, y in ((a, low - 1), (high + 1, b)) if x <= y]
            unexpected[:] = left
        return taken

    def _keep_unexpected(self, first: int, last: int) -> None:
        if self._unexpected and self._unexpected[-1][1] == first - 1:
            self._unexpected[-1] = self._unexpected[-1][0], last
            return
        self._unexpected.append((first, last))
        if len(self._unexpected) > 2 * KEPT_MAX:
            oldest = self._unexpected[:KEPT_MAX]
            del self._unexpected[:KEPT_MAX]
            self._condemn(oldest)

    def _condemn(self, unexpected: list[tuple[int, int]]) -> None:
        """Count unexpected records as damage: no later range can name them."""
        for first, last in unexpected:
            unknown = self._from_first_range and (self.lowest is None or last < self.lowest)
            if unknown or last <= self._accepted:
                self.unknown += last - first + 1
                continue
            self._note(Damage("unexpected", first, last, last - first + 1, 0))
        unexpected.clear()

    def _note(self, damage: Damage) -> None:
        self.damages.append(damage)
        if len(self.damages) > 2 * KEPT_MAX:
            self.dropped += KEPT_MAX
            self.dropped_to = max(self.dropped_to, *(d.last for d in self.damages[:KEPT_MAX]))
            del self.damages[:KEPT_MAX]
