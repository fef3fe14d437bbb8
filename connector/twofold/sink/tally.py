"""`PartitionTally`: compares the ranges that commit records name in one partition with the offsets that a read_committed reader gets there. Pure.

A range is whole if exactly `count` records are visible between its `first` and its `last`. A visible record that lies in no range is a stray: nobody committed it on purpose.

Ranges come in the order of their commits, which is the order of offsets but for prepared transactions: those wrote while others committed. So ranges come in batches, each
batch is sorted, and a range that begins below what was read already takes its records from the strays that were put by. Memory: one batch of ranges, and bounded lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

KEPT_MAX = 200
"""At least so many damages, and strays that wait for their range, are kept of a partition. Older damages are counted."""

Kind = Literal["short", "surplus", "overlap", "stray"]


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a partition in which commit records and visible records disagree."""

    kind: Kind
    first: int
    last: int
    visible: int
    declared: int
    """How many records the commit record names; 0 for strays."""
    sequence: int | None = None
    """Of the commit record; of an overlap the later one."""

    @property
    def description(self) -> str:
        where = f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"
        match self.kind:
            case "stray":
                return f"{where}: {self.visible} visible records are named by no commit record"
            case "overlap":
                return f"{where}: commit record {self.sequence} names records that another one names too"
            case "short" | "surplus":
                return (
                    f"{where}: commit record {self.sequence} names {self.declared} records, {self.visible} are visible"
                )


@dataclass(slots=True)
class Claim:
    """A range of a commit record, and how many visible records were found in it."""

    first: int
    last: int
    count: int
    sequence: int
    visible: int = 0
    judged: bool = True
    """False: part of it lies outside of what is read, so only its place counts."""


class PartitionTally:
    """Of one partition, from offset `start` to before `end`. Calls: `claim` for a batch of ranges, `see` in the order of offsets, `settle` at the batch's end."""

    def __init__(self, start: int, end: int, *, from_first_claim: bool = False, accepted: int = -1) -> None:
        """`from_first_claim`: records below the lowest range may be named by commit records that are not kept any more. Those, and records up to `accepted`, are no strays."""
        self.start = start
        self.end = end
        self.position = start
        self.rows = 0
        self.claims = 0
        self.skipped = 0
        """Ranges of which a part, or all, lies outside of `start` and `end`."""
        self.unknown = 0
        """Visible records in no range that are no strays."""
        self.lowest: int | None = None
        self.highest = -1
        self.damages: list[Damage] = []
        """The last ones."""
        self.dropped = 0
        """Damages before those, and up to which offset they reach."""
        self.dropped_to = -1
        self._from_first_claim = from_first_claim
        self._accepted = accepted
        self._batch: list[Claim] = []
        self._at = 0
        self._strays: list[tuple[int, int]] = []
        self._old_strays: list[tuple[int, int]] = []
        """Of the batch before: a prepared transaction that wrote them commits within this one, or not at all."""

    def claim(self, claims: Iterable[Claim]) -> int:
        """Add a batch of ranges. Returns up to where the partition must be read for it (exclusive)."""
        taken = sorted(filter(None, map(self._within, claims)), key=lambda c: c.first)
        self.claims += len(taken)
        self._batch = self._without_overlaps(taken)
        self._at = 0
        for each in self._batch:
            if each.first < self.position:
                each.visible += self._take_strays(each.first, min(each.last, self.position - 1))
        if not self._batch:
            return self.position
        self.lowest = min(self._batch[0].first, self.lowest if self.lowest is not None else self._batch[0].first)
        self.highest = max(self.highest, *(c.last for c in self._batch))
        return max(self.position, self.highest + 1)

    def see(self, first: int, last: int) -> None:
        """Visible records with neighbouring offsets. What lies before the position was seen already."""
        first, last = max(first, self.position), min(last, self.end - 1)
        if first > last:
            return
        self.position = last + 1
        self.rows += last - first + 1
        while first <= last:
            while self._at < len(self._batch) and self._batch[self._at].last < first:
                self._at += 1
            claim = self._batch[self._at] if self._at < len(self._batch) else None
            if claim is None or last < claim.first:
                self._put_by(first, last)
                return
            if first < claim.first:
                self._put_by(first, claim.first - 1)
                first = claim.first
            upto = min(last, claim.last)
            claim.visible += upto - first + 1
            first = upto + 1

    def settle(self, read_to: int, *, final: bool = False) -> None:
        """Judge the batch: everything below `read_to` was seen. Strays of the batch before are damage now; if this is the `final` batch, its own are too."""
        self.position = max(self.position, read_to)
        for each in self._batch:
            if each.judged and each.visible != each.count:
                kind: Kind = "short" if each.visible < each.count else "surplus"
                self._note(Damage(kind, each.first, each.last, each.visible, each.count, each.sequence))
        self._batch, self._at = [], 0
        self._condemn(self._old_strays)
        self._old_strays, self._strays = self._strays, []
        if final:
            self._condemn(self._old_strays)

    def _within(self, claim: Claim) -> Claim | None:
        """The part of a range that is read."""
        if self.start <= claim.first and claim.last < self.end:
            return claim
        self.skipped += 1
        first, last = max(claim.first, self.start), min(claim.last, self.end - 1)
        return Claim(first, last, claim.count, claim.sequence, judged=False) if first <= last else None

    def _without_overlaps(self, claims: list[Claim]) -> list[Claim]:
        """Two that share offsets are judged as one."""
        apart: list[Claim] = []
        for each in claims:
            before = apart[-1] if apart else None
            if before is None or before.last < each.first:
                apart.append(each)
                continue
            later = max(before.sequence, each.sequence)
            self._note(Damage("overlap", each.first, min(before.last, each.last), 0, each.count, later))
            last, count = max(before.last, each.last), before.count + each.count
            apart[-1] = Claim(before.first, last, count, later, judged=before.judged and each.judged)
        return apart

    def _take_strays(self, first: int, last: int) -> int:
        """How many lie between two offsets; they have a range now."""
        taken = 0
        for strays in (self._old_strays, self._strays):
            left: list[tuple[int, int]] = []
            for a, b in strays:
                low, high = max(a, first), min(b, last)
                taken += max(0, high - low + 1)
                left += [(a, b)] if low > high else [(x, y) for x, y in ((a, low - 1), (high + 1, b)) if x <= y]
            strays[:] = left
        return taken

    def _put_by(self, first: int, last: int) -> None:
        if self._strays and self._strays[-1][1] == first - 1:
            self._strays[-1] = self._strays[-1][0], last
            return
        self._strays.append((first, last))
        if len(self._strays) > 2 * KEPT_MAX:
            oldest = self._strays[:KEPT_MAX]
            del self._strays[:KEPT_MAX]
            self._condemn(oldest)

    def _condemn(self, strays: list[tuple[int, int]]) -> None:
        """These will have no range any more."""
        for first, last in strays:
            unknown = self._from_first_claim and (self.lowest is None or last < self.lowest)
            if unknown or last <= self._accepted:
                self.unknown += last - first + 1
                continue
            self._note(Damage("stray", first, last, last - first + 1, 0))
        strays.clear()

    def _note(self, damage: Damage) -> None:
        self.damages.append(damage)
        if len(self.damages) > 2 * KEPT_MAX:
            self.dropped += KEPT_MAX
            self.dropped_to = max(self.dropped_to, *(d.last for d in self.damages[:KEPT_MAX]))
            del self.damages[:KEPT_MAX]
