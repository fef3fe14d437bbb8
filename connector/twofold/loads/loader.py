"""One table's load on a reader's thread: first the barrier, then chunk after chunk to the end.

A chunk is read while the previous one is published, and offered when the previous one is committed.
So at most two chunks of a table are in memory, of which one is offered. No chunk's snapshot is old,
so the merger remembers few changes. The committed progress decides where the load continues. A
chunk that was read ahead of an unpublished one is discarded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import TypeVar

from twofold.errors import RunEnded
from twofold.lives import load_life
from twofold.lives.load_progress import LoadProgress
from twofold.loads.chunk import Chunk, ChunkResult, EncodingRequest, LoadDone, Offer, TableEncoding
from twofold.loads.reader import Reader
from twofold_common.printable import counted

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

BARRIER_PAUSE_S, BARRIER_PAUSE_S_MAX = 0.2, 3.0
"""The pause between two checks of the barrier. Each check costs a session, so the pause grows up to
the maximum. Keys that are not visible yet are always read again after the initial pause.
"""
LOG_INTERVAL_S = 10.0
"""How often the log reports a load's progress."""
_STOP_CHECK_S = 0.2


@dataclass(slots=True)
class Load:
    """A table to be loaded, and its progress."""

    topic: str
    schema: str
    table: str
    progress: LoadProgress
    resumed: bool
    """The load continues behind a chunk, so an earlier session has passed its barrier."""
    holders: frozenset[str] | None = None
    """The lock holders at the beginning of this session's barrier that still hold one; None: the
    barrier has not begun."""
    not_before: float = 0.0
    barrier_pause_s: float = BARRIER_PAUSE_S
    """The pause before the next check of the barrier."""
    estimate: int = 0
    """The planner's row count; 0: not known yet."""
    logged_at: float = 0.0
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


class Loader:
    """One attempt at a load: to the table's end, or to another transaction's lock."""

    def __init__(
        self,
        load: Load,
        reader: Reader,
        *,
        offer: Callable[[Offer], None],
        delivered: Callable[[], Collection[tuple[int, str]]],
        rows_per_second: float,
        chunk_rows: int,
    ) -> None:
        self._load = load
        self._reader = reader
        self._offer = offer
        self._delivered = delivered
        self._pause_s = chunk_rows / rows_per_second if rows_per_second else 0.0

    def run(self) -> bool:
        """Load the table. Return False if a lock blocks the barrier: try again later."""
        load = self._load
        while load.progress.reload:
            self._begin_reload()
        if not self._pass_barrier():
            return False
        _log.info("backfill of %s: reading", load.name)
        self._read_to_end()
        return True

    def _begin_reload(self) -> None:
        truncate = self._reader.make_truncate(ask=self._request_encoding)
        self._offer(truncate)
        if result := self._wait_for(truncate.answer):
            self._load.progress = result.progress

    def _pass_barrier(self) -> bool:
        load, reader = self._load, self._reader
        holders = {holder.name: holder for holder in reader.writers()}
        is_first_check = load.holders is None
        if is_first_check and reader.wait_for_all():
            return True
        blocking = load_life.blocking(
            {name: (holder.xid or 0, holder.gid or "") for name, holder in holders.items()},
            load.holders,
            resumed=load.resumed,
            delivered=set(self._delivered()) if load.resumed else (),
        )
        if blocking and (is_first_check or load.holders != blocking):
            waited_for = "; ".join(str(holders[name]) for name in sorted(blocking))
            _log.info("backfill of %s waits for %s", load.name, waited_for)
        load.holders = blocking
        if blocking:
            self._offer(reader.current_snapshot())
        return not blocking

    def _read_to_end(self) -> None:
        load = self._load
        offered: Chunk | None = None
        while not load.stopped.is_set():
            begun = time.monotonic()
            ahead = self._progress_behind(offered)
            chunk = (
                None if offered is not None and ahead.complete else self._reader.read(ahead, ask=self._request_encoding)
            )
            if offered is not None:
                result = self._await_result(offered)
                if result is None:
                    self._reader.forget_encoding()
                    if chunk is not None:
                        chunk.drop()
                    chunk = None
                elif result.state == "ready":
                    _log.info("backfill of %s: ready, %s", load.name, counted(load.progress.rows, "row"))
                    self._offer(LoadDone(load.topic))
                    return
            if chunk is not None:
                self._offer(chunk)
            offered = chunk
            self._slow_down(begun)

    def _progress_behind(self, offered: Chunk | None) -> LoadProgress:
        """Return the progress that the load will have when the offered chunk is published."""
        progress = self._load.progress
        if offered is None:
            return progress
        return progress.behind(last=offered.last, order=offered.order, among=offered.among, scanned=offered.scanned)

    def _await_result(self, offered: Chunk) -> ChunkResult | None:
        """Wait for the result of a chunk; None if it was not published."""
        load = self._load
        result = self._wait_for(offered.answer)
        if result is None:
            return None
        load.progress, load.estimate = result.progress, self._reader.estimate or 0
        if offered.among and offered.among <= load.progress.again:
            load.stopped.wait(BARRIER_PAUSE_S)  # a commit is published but not visible yet
        self._log_progress()
        return result

    def _request_encoding(self, request: EncodingRequest) -> TableEncoding:
        self._offer(request)
        return self._wait_for(request.answer)

    def _wait_for(self, answer: Future[_T]) -> _T:
        while True:
            try:
                return answer.result(_STOP_CHECK_S)
            except NotYet:
                if self._load.stopped.is_set():
                    raise RunEnded("stopped") from None

    def _log_progress(self) -> None:
        load, now = self._load, time.monotonic()
        load.logged_at = load.logged_at or now
        if now - load.logged_at >= LOG_INTERVAL_S:
            load.logged_at = now
            _log.info("backfill of %s: %s", load.name, load.progress.describe(load.estimate))

    def _slow_down(self, begun: float) -> None:
        if self._pause_s:
            self._load.stopped.wait(max(0.0, begun + self._pause_s - time.monotonic()))
