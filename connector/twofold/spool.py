"""Keeps the rows of transactions that cannot be published yet: of prepared transactions, and of
large ones that PostgreSQL streams before they end.

Rows stay in memory up to a budget that all waiting transactions share. Past it, a growing
transaction writes what it holds, and what follows, to a segment: an append-only file that all share
until it is full. So thousands of waiting transactions need some tens of open files. What a
transaction that has ended leaves in a segment is given back to the disk at once, where the file
system can punch holes. The rows are bytes, so the budget is the memory that they take. Disk has a
limit of its own: at the limit the run ends, says so, and continues when there is room. Nothing is
lost.

The spool is a cache. On kill -9 everything here is lost and sent again, because the position
reported to PostgreSQL is held before the first waiting row. So nothing is synced, and the files
have no names: the system frees them when the process ends. A standby may use the same folder, and
so may an instance that does not know yet that it was taken over.

Several threads append, each to transactions of its own: the one that reads, the worker and the
loaders. When a transaction is complete, another may read and drop it. Places in segments are given
out under a lock; the rows need none, because each is written and read at a place of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from twofold.errors import RunEnded, SetupError

_SEGMENTS, _SEGMENT_BYTES_MIN = 64, 16 << 20
"""All that the disk's limit allows fits into so many segments."""
_PUNCH_HOLE = 0x01 | 0x02
"""fallocate: keep the file's size, free the blocks."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True, eq=False)
class Segment:
    """A file that rows of several transactions share."""

    file: BinaryIO
    size: int = 0
    live: int = 0
    """The bytes of rows that wait."""

    def punch(self, at: int, size: int) -> None:
        """Give these bytes back to the disk; a file system that cannot keeps them until the end."""
        fallocate = getattr(_libc, "fallocate", None)
        if fallocate is not None:
            fallocate(self.file.fileno(), _PUNCH_HOLE, ctypes.c_long(at), ctypes.c_long(size))


@dataclass(slots=True)
class Stretch:
    """A transaction's neighbouring bytes in a segment."""

    segment: Segment
    at: int
    size: int


class Spool:
    """All waiting rows of one run."""

    def __init__(self, folder: Path, *, memory_max: int, disk_max: int) -> None:
        self._folder = folder
        self._memory_max = memory_max
        self._disk_max = disk_max
        self.memory_bytes = 0
        self.disk_bytes = 0
        self._segment_bytes = max(_SEGMENT_BYTES_MIN, disk_max // _SEGMENTS)
        self._segment: Segment | None = None
        """The segment that is being written."""
        self._lock = threading.Lock()
        self._living: set[SpooledRows] = set()
        try:
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"spool folder {folder} cannot be created ({error.strerror}): set spool.folder to a folder that can be written"
            ) from None

    def new(self) -> SpooledRows:
        """Return a place for one transaction's rows."""
        waiting = SpooledRows(self)
        self._living.add(waiting)
        return waiting

    def forget(self, waiting: SpooledRows) -> None:
        self._living.discard(waiting)

    def close(self) -> None:
        """Drop everything: the run has ended."""
        for waiting in list(self._living):
            waiting.drop()
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.file.close()

    def reserve(self, size: int) -> bool:
        """Take so much of the memory budget, if it is free."""
        with self._lock:
            if self.memory_bytes + size > self._memory_max:
                return False
            self.memory_bytes += size
            return True

    def release(self, memory: int) -> None:
        with self._lock:
            self.memory_bytes -= memory

    def ended(self, error: OSError) -> RunEnded:
        """Return the error that a refusal of the disk means."""
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return RunEnded(
                f"this process may not open more files ({error.strerror}): raise its limit (ulimit -n, LimitNOFILE). Nothing is lost: the rows are in PostgreSQL's WAL"
            )
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            what, remedy = "no room in", "make room or set spool.folder"
        else:
            what, remedy = "no use of", "look after its disk or set spool.folder; one that is gone is made again"
        return RunEnded(
            f"{what} the spool folder {self._folder} ({error.strerror}): {remedy}; the run continues by itself. Nothing is lost: the rows are in PostgreSQL's WAL"
        )

    def write(self, chunk: bytes) -> Stretch:
        """Write the whole chunk behind its size and return where it is, or end the run."""
        parts = len(chunk).to_bytes(4, "big"), chunk
        with self._lock:
            place = self._take_place(sum(map(len, parts)))
        at = place.at
        try:
            for part in parts:  # joined, they would be in memory twice
                rest = memoryview(part)
                while rest:  # a disk that fills up takes a part, and says so at the next
                    written = os.pwrite(place.segment.file.fileno(), rest, at)
                    rest, at = rest[written:], at + written
        except OSError as error:
            self.free(place)
            raise self.ended(error) from None
        return place

    def _take_place(self, size: int) -> Stretch:
        """Return a place that nobody else writes to; the caller has the lock."""
        if self.disk_bytes + size > self._disk_max:
            raise RunEnded(
                f"the rows of waiting transactions exceed spool.disk ({self._disk_max} bytes): raise it, or end the transactions in doubt (twofold prepared list). Nothing is lost: "
                "their rows are in PostgreSQL's WAL"
            )
        segment = self._writable()
        place = Stretch(segment, segment.size, size)
        segment.size += size
        segment.live += size
        self.disk_bytes += size
        return place

    def _writable(self) -> Segment:
        """Return the segment that has room; the next one, if that is full."""
        full = self._segment
        if full is not None and full.size < self._segment_bytes:
            return full
        try:
            self._segment = Segment(tempfile.TemporaryFile(dir=self._folder, buffering=0))  # noqa: SIM115  (open while rows wait in it)
        except OSError as error:
            raise self.ended(error) from None
        if full is not None:
            self._close_if_empty(full)
        return self._segment

    def read(self, segment: Segment, at: int, size: int) -> bytes:
        try:
            return os.pread(segment.file.fileno(), size, at)
        except OSError as error:
            raise self.ended(error) from None

    def free(self, stretch: Stretch) -> None:
        """Give a dropped transaction's bytes back."""
        segment = stretch.segment
        with self._lock:
            self.disk_bytes -= stretch.size
            segment.live -= stretch.size
            if not self._close_if_empty(segment):
                segment.punch(stretch.at, stretch.size)

    def _close_if_empty(self, segment: Segment) -> bool:
        """Close a segment in which nothing waits, unless it is still written.

        The caller has the lock.
        """
        is_over = not segment.live and segment is not self._segment
        if is_over:
            segment.file.close()
        return is_over


class SpooledRows:
    """The rows of one transaction, in order, in chunks of the owner's making."""

    __slots__ = ("_chunks", "_held", "_spool", "_stretches")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._chunks: list[bytes] = []
        self._held = 0
        self._stretches: list[Stretch] = []

    def append(self, chunk: bytes) -> None:
        if not self._stretches and self._spool.reserve(len(chunk)):
            self._chunks.append(chunk)
            self._held += len(chunk)
            return
        for waiting in self._chunks:
            self._spill(waiting)
        self._release_memory()
        self._spill(chunk)

    def chunks(self) -> Iterator[bytes]:
        """Yield all chunks in order; may be called again (opened, then parked, then published)."""
        yield from self._chunks
        for stretch in self._stretches:
            at, end = stretch.at, stretch.at + stretch.size
            while at < end:
                size = int.from_bytes(self._spool.read(stretch.segment, at, 4), "big")
                yield self._spool.read(stretch.segment, at + 4, size)
                at += 4 + size

    def drop(self) -> None:
        """Forget the rows."""
        self._spool.forget(self)
        self._release_memory()
        for stretch in self._stretches:
            self._spool.free(stretch)
        self._stretches.clear()

    def _release_memory(self) -> None:
        self._chunks.clear()
        self._spool.release(self._held)
        self._held = 0

    def _spill(self, chunk: bytes) -> None:
        written = self._spool.write(chunk)
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last.segment is written.segment and last.at + last.size == written.at:
            last.size += written.size
        else:
            self._stretches.append(written)
