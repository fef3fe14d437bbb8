"""The records of one partition between Kafka and the commit record that declares them. Pure.

Nearly always the ranges of the commit records follow each other. An open prepared transaction's
rows lie before those of commit records that come earlier: they wait as *early* records, or are read
again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from twofold_avro.records import Range
from twofold_common.errors import Refused

RECORD_BYTES: Final = 600
"""A record takes about so much beside its value."""


class Sized(Protocol):
    """A record that knows its offset, and the length of its value."""

    def offset(self) -> int | None: ...
    def __len__(self) -> int: ...


_R = TypeVar("_R", bound=Sized)


class _Batch(NamedTuple, Generic[_R]):
    """Records that came together, and the index of the first one that is left."""

    records: Sequence[_R]
    start: int
    mean: int
    """Bytes of one record."""


class PartitionRows(Generic[_R]):
    """A partition that is read in order, from an offset on."""

    __slots__ = ("_claimed", "_early", "_queue", "early_size", "is_paused", "position", "size")

    def __init__(self, first: int) -> None:
        self.position = first
        """The offset that is read next: all visible records before it were added."""
        self.is_paused = False
        self.size = 0
        """The approximate number of bytes that wait here."""
        self.early_size = 0
        """The part of `size` that lies before the ranges that were taken."""
        self._claimed = first
        self._queue: deque[_Batch[_R]] = deque()
        self._early: dict[int, tuple[_R, int]] = {}

    def add(self, records: Sequence[_R], position: int) -> None:
        """Add the records that were read next, up to this position."""
        self.position = position
        if records:
            mean = sum(map(len, records)) // len(records) + RECORD_BYTES
            self._queue.append(_Batch(records, 0, mean))
            self.size += mean * len(records)

    def drop_early(self) -> None:
        """Forget the early records: they are read again if a commit record declares them."""
        self.size -= self.early_size
        self.early_size = 0
        self._early.clear()

    def take_portion(self) -> Sequence[_R]:
        """Return the records that came first together; none if nothing waits."""
        if not self._queue:
            return ()
        records, start, mean = self._queue.popleft()
        self.size -= mean * (len(records) - start)
        return records[start:]

    def take_range(
        self, wanted: Range, read_more: Callable[[], None], read_again: Callable[[Range], Iterator[Sequence[_R]]]
    ) -> Iterator[Sequence[_R]]:
        """Yield the records of a commit record's range, in portions. Refused: there are fewer or
        more than it says.

        `read_more` returns when it has added something, or may be called again.
        """
        found = 0
        for records in self._portions(wanted, read_more, read_again):
            found += len(records)
            yield records
        if found != wanted.count:
            raise other_rows(wanted, found)

    def _portions(
        self, wanted: Range, read_more: Callable[[], None], read_again: Callable[[Range], Iterator[Sequence[_R]]]
    ) -> Iterator[Sequence[_R]]:
        if wanted.last < self._claimed:
            early = self._take_early(wanted)
            yield from read_again(wanted) if early is None else (early,)
            return
        self._claimed = wanted.last + 1
        at = -1
        while True:
            while self._queue and at < wanted.last:
                within, is_behind = self._take_batch(wanted)
                at = _offset(within[-1]) if within else at
                yield within
                if is_behind:
                    return
            if self.position > wanted.last:
                return
            read_more()

    def _take_batch(self, wanted: Range) -> tuple[Sequence[_R], bool]:
        """Take the records of the range from the first batch; also return whether the batch goes on
        behind the range.

        Records before the range are kept: a later commit record declares them.
        """
        records, start, mean = self._queue.popleft()
        begin = bisect_left(records, wanted.first, start, key=_offset)
        for record in records[start:begin]:
            self._early[_offset(record)] = record, mean
            self.early_size += mean
        end = len(records)
        if is_behind := _offset(records[-1]) > wanted.last:
            end = bisect_left(records, wanted.last + 1, begin, key=_offset)
            self._queue.appendleft(_Batch(records, end, mean))
        self.size -= mean * (end - begin)
        return records if end - begin == len(records) else records[begin:end], is_behind

    def _take_early(self, wanted: Range) -> list[_R] | None:
        """Take a range of early records; None if they are not all here."""
        if wanted.first not in self._early or wanted.count > len(self._early):
            return None
        offsets = [each for each in range(wanted.first, wanted.last + 1) if each in self._early]
        if len(offsets) != wanted.count:
            return None
        taken = [self._early.pop(each) for each in offsets]
        size = sum(mean for _, mean in taken)
        self.size -= size
        self.early_size -= size
        return [record for record, _ in taken]


def _offset(record: Sized) -> int:
    offset = record.offset()
    assert offset is not None
    return offset


def other_rows(wanted: Range, found: int) -> Refused:
    return Refused(
        f"{wanted.topic} [{wanted.partition}] has {found} records from offset {wanted.first} to {wanted.last}, and their commit record says {wanted.count}",
        at_stake="whole transactions: changes are missing, or some are there that nobody committed",
        repair=f"find what deleted records (cleanup.policy of {wanted.topic} must be delete, and nobody may delete records), or who else writes to this topic, unless it was deleted and made again; then start at 'newest' with nothing stored, and reload each table: twofold backfill start SCHEMA.TABLE",
    )


def removed_rows(wanted: Range | str, prefix: str) -> Refused:
    what = wanted if isinstance(wanted, str) else f"{wanted.topic} [{wanted.partition}] from offset {wanted.first} on"
    return Refused(
        f"Kafka no longer has {what}: retention has deleted it before this reader read it",
        at_stake="the transactions that were deleted",
        repair=f"start the reader at 'newest' with nothing stored, then reload each of its tables: twofold backfill start SCHEMA.TABLE; from now on keep {prefix}.* longer than the reader may be away (kafka.retention)",
    )
