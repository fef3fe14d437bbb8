"""Where the rows of transactions wait that cannot be published yet: prepared ones, and large ones
that PostgreSQL streams before they end.

Rows stay in memory up to a budget that all waiting transactions share. Past it, a growing
transaction writes what it holds, and what follows, to an append-only file of its own. The rows are
bytes, so the budget is the memory that they take. Disk has a limit of its own: at the limit the run
ends, says so, and continues when there is room. Nothing is lost.

The spool is a cache. On kill -9 everything here is lost and sent again, because the position
reported to PostgreSQL is held before the first waiting row. So nothing is synced, and the files
have no names: the system frees them when the process ends. A standby may use the same folder, and
so may an instance that does not know yet that it was taken over.

One thread appends. When a transaction is complete, another may read and drop it. The counters have
a lock; the rows need none.
"""

from __future__ import annotations

import errno
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from twofold.errors import RunEnded, SetupError


class Spool:
    """All waiting rows of one run."""

    def __init__(self, folder: Path, *, memory_max: int, disk_max: int) -> None:
        self._folder = folder
        self._memory_max = memory_max
        self._disk_max = disk_max
        self.memory_bytes = 0
        self.disk_bytes = 0
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

    def reserve(self, size: int) -> bool:
        """Take so much of the memory budget, if it is free."""
        with self._lock:
            if self.memory_bytes + size > self._memory_max:
                return False
            self.memory_bytes += size
            return True

    def release(self, *, memory: int = 0, disk: int = 0) -> None:
        with self._lock:
            self.memory_bytes -= memory
            self.disk_bytes -= disk

    def ended(self, error: OSError) -> RunEnded:
        """Return the error that a refusal of the disk means."""
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return RunEnded(
                f"each transaction that waits on disk has a file, and this process may not open more of them ({error.strerror}): raise its limit (ulimit -n, LimitNOFILE) or spool.memory, or"
                " end the transactions in doubt (twofold prepared list). Nothing is lost: their rows are in PostgreSQL's WAL"
            )
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            what, remedy = "no room in", "make room or set spool.folder"
        else:
            what, remedy = "no use of", "look after its disk or set spool.folder; one that is gone is made again"
        return RunEnded(
            f"{what} the spool folder {self._folder} ({error.strerror}): {remedy}; the run continues by itself. Nothing is lost: the rows are in PostgreSQL's WAL"
        )

    def write(self, file: BinaryIO | None, chunk: bytes) -> BinaryIO:
        """Append to the transaction's file; None makes it.

        Write the whole chunk, or end the run.
        """
        if self.disk_bytes + len(chunk) > self._disk_max:
            raise RunEnded(
                f"the rows of waiting transactions exceed spool.disk ({self._disk_max} bytes): raise it, or end the transactions in doubt (twofold prepared list). Nothing is lost: "
                "their rows are in PostgreSQL's WAL"
            )
        try:
            file = file or tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115  (open until its rows are dropped)
            rest = memoryview(chunk)
            while rest:  # a disk that fills up takes a part, and says so at the next
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise self.ended(error) from None
        with self._lock:
            self.disk_bytes += len(chunk)
        return file


class SpooledRows:
    """The rows of one transaction, in order, in chunks of the owner's making."""

    __slots__ = ("_chunks", "_file", "_file_bytes", "_held", "_spool")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._chunks: list[bytes] = []
        self._held = 0
        self._file: BinaryIO | None = None
        self._file_bytes = 0

    def append(self, chunk: bytes) -> None:
        if self._file is None and self._spool.reserve(len(chunk)):
            self._chunks.append(chunk)
            self._held += len(chunk)
            return
        for waiting in self._chunks:
            self._spill(waiting)
        self._release_memory()
        self._spill(chunk)

    def chunks(self) -> Iterator[bytes]:
        """Yield all chunks in order; may be called more than once (opened, then parked, then
        published).
        """
        yield from self._chunks
        if self._file is not None:
            self._file.seek(0)
            read = 0
            while read < self._file_bytes:
                size = int.from_bytes(self._read(self._file, 4), "big")
                yield self._read(self._file, size)
                read += 4 + size

    def drop(self) -> None:
        """Forget the rows."""
        self._spool.forget(self)
        self._release_memory()
        if self._file is not None:
            self._file.close()
            self._file = None
            self._spool.release(disk=self._file_bytes)
            self._file_bytes = 0

    def _release_memory(self) -> None:
        self._chunks.clear()
        self._spool.release(memory=self._held)
        self._held = 0

    def _read(self, file: BinaryIO, size: int) -> bytes:
        try:
            return file.read(size)
        except OSError as error:
            raise self._spool.ended(error) from None

    def _spill(self, chunk: bytes) -> None:
        self._file = self._spool.write(self._file, len(chunk).to_bytes(4, "big") + chunk)
        self._file_bytes += 4 + len(chunk)
