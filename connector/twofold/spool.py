"""Where the rows of transactions wait that cannot be published yet: prepared ones, and large ones that PostgreSQL streams before they end.

Rows stay in memory up to a budget that all waiting transactions share; past it the transaction that grows writes what it holds, and what follows, to an append-only file of
its own. Memory is bounded by the budget and one chunk, disk by its limit; at the limit the run ends with `MissingGround`, and loses nothing.

It is a cache: on kill -9 everything here is lost and nothing is missed, because the position reported to PostgreSQL is held before the first row that waits. So nothing is
synced, and what a predecessor left is deleted at start.

One thread appends; when a transaction is complete another may read it. Nothing is both appended to and read.
"""

from __future__ import annotations

import errno
import marshal
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from twofold.errors import MissingGround

Record = dict[str, bytes | None]
TopicLists = dict[str, list[list[Record]]]
"""By topic, then by partition: the records in order, as the transcoder makes them and Kafka's client takes them."""


class Spool:
    """All waiting rows of one run."""

    def __init__(self, folder: Path, *, memory_max: int, disk_max: int) -> None:
        self._folder = folder
        self._memory_max = memory_max
        self._disk_max = disk_max
        self.memory_bytes = 0
        self.disk_bytes = 0
        self._living: set[Waiting] = set()
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        except OSError as error:
            raise MissingGround(
                f"spool folder {folder} cannot be made ({error.strerror}): set spool.folder to a folder that can be written"
            ) from None

    def new(self) -> Waiting:
        """A place for one transaction's rows."""
        waiting = Waiting(self)
        self._living.add(waiting)
        return waiting

    def forget(self, waiting: Waiting) -> None:
        self._living.discard(waiting)

    def close(self) -> None:
        """Drop everything: the run has ended."""
        for waiting in list(self._living):
            waiting.drop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def fits(self, size: int) -> bool:
        return self.memory_bytes + size <= self._memory_max

    def new_file(self) -> BinaryIO:
        return tempfile.TemporaryFile(dir=self._folder)

    def write(self, file: BinaryIO, chunk: bytes) -> None:
        if self.disk_bytes + len(chunk) > self._disk_max:
            raise MissingGround(
                f"the rows of waiting transactions exceed spool.disk ({self._disk_max} bytes): raise it, or end the transactions in doubt (twofold prepared list). Nothing is lost: "
                "their rows are in PostgreSQL's WAL"
            )
        try:
            file.write(chunk)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise
            raise MissingGround(
                f"no room in the spool folder {self._folder} ({error.strerror}): make room or set spool.folder; the run takes up again by itself. Nothing is lost: the rows are in PostgreSQL's WAL"
            ) from None
        self.disk_bytes += len(chunk)


class Waiting:
    """The rows of one transaction, in order."""

    __slots__ = ("_chunks", "_file", "_file_bytes", "_spool", "bytes", "records")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._chunks: list[tuple[TopicLists, int]] = []
        self._file: BinaryIO | None = None
        self._file_bytes = 0
        self.records = 0
        self.bytes = 0

    def append(self, lists: TopicLists, *, records: int, size: int) -> None:
        """Take a chunk of rows; the caller does not touch it any more. `size` is what it roughly takes in memory."""
        self.records += records
        self.bytes += size
        if self._file is None and self._spool.fits(size):
            self._chunks.append((lists, size))
            self._spool.memory_bytes += size
            return
        if self._file is None:
            self._file = self._spool.new_file()
            for waiting, held in self._chunks:
                self._spill(waiting)
                self._spool.memory_bytes -= held
            self._chunks.clear()
        self._spill(lists)

    def chunks(self) -> Iterator[TopicLists]:
        """All rows in order, chunk by chunk; may be read more than once (opened, then parked, then published)."""
        for lists, _ in self._chunks:
            yield lists
        if self._file is not None:
            self._file.seek(0)
            read = 0
            while read < self._file_bytes:
                size = int.from_bytes(self._file.read(4), "big")
                yield {
                    topic: [[{"key": key, "value": value} for key, value in records] for records in partitions]
                    for topic, partitions in marshal.loads(self._file.read(size)).items()  # noqa: S302  (written by this process, in a folder that only it can write)
                }
                read += 4 + size

    def drop(self) -> None:
        """Forget the rows."""
        self._spool.forget(self)
        self._spool.memory_bytes -= sum(size for _, size in self._chunks)
        self._chunks.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
            self._spool.disk_bytes -= self._file_bytes
            self._file_bytes = 0

    def _spill(self, lists: TopicLists) -> None:
        assert self._file is not None
        chunk = marshal.dumps(
            {
                topic: [[(r["key"], r["value"]) for r in records] for records in partitions]
                for topic, partitions in lists.items()
            }
        )
        self._spool.write(self._file, len(chunk).to_bytes(4, "big") + chunk)
        self._file_bytes += 4 + len(chunk)
