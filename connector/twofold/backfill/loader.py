"""One table's load, on the thread of a reader: behind the barrier, then chunk after chunk to the end of the table.

A chunk is read while the one before is published, and put on offer when that one is committed: so there are two chunks a table in memory at most, one on offer, the place that is committed decides where
to go on, and what the stream needs is never far behind. A chunk that was read ahead of one that is to be read again counts for nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field, replace
from typing import TypeVar

from twofold.backfill.chunk import Chunk, ChunkResult, EncodingRequest, LoadDone, Offer, TableEncoding
from twofold.backfill.load_progress import LoadProgress
from twofold.backfill.reader import Reader
from twofold.errors import RunEnded

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

BARRIER_LOOK_S, BARRIER_LOOK_S_MAX = 0.2, 3.0
"""How often a load that waits behind the barrier looks whether it may begin: in a session of its own, so less and less often. Keys that were not visible yet are read again as often as at first."""
TELL_S = 10.0
"""How often the log says how far a load is."""
_LOOK_S = 0.2


@dataclass(slots=True)
class Load:
    """A table to be loaded, and how far it is."""

    topic: str
    schema: str
    table: str
    progress: LoadProgress
    resumed: bool
    """It goes on behind a chunk, so a session before this one was through its barrier."""
    holders: frozenset[str] | None = None
    """Who held a lock when this session's barrier began, and still does; None: it has not begun."""
    not_before: float = 0.0
    look_s: float = BARRIER_LOOK_S
    """How long it will wait for its next look at the barrier."""
    estimate: int = 0
    """How many rows the planner expects; 0: not known yet."""
    told_at: float = 0.0
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


class Loader:
    """One attempt at a load: it ends with the table, or where somebody else's lock stands in the way."""

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

    def carry_on(self) -> bool:
        """False: it waits for somebody, try again later."""
        load = self._load
        while load.progress.reload:
            self._begin_reload()
        if not self._through_barrier():
            return False
        _log.info("backfill of %s: reading", load.name)
        self._read_on()
        return True

    def _begin_reload(self) -> None:
        chunk = self._reader.make_truncate(ask=self._ask)
        self._offer(chunk)
        if verdict := self._wait_for(chunk.answer):
            self._load.progress = verdict.progress

    def _through_barrier(self) -> bool:
        load, reader = self._load, self._reader
        holders = {holder.name: holder for holder in reader.writers()}
        first = load.holders is None
        if load.holders is None:
            if reader.wait_for_all():
                return True
            load.holders = frozenset(holders)
        delivered = set(self._delivered()) if load.resumed else set()
        still = {
            name
            for name, holder in holders.items()
            if name in load.holders and (holder.xid or 0, holder.gid or "") not in delivered
        }
        if still and (first or load.holders != still):
            waited_for = "; ".join(str(holders[name]) for name in sorted(still))
            _log.info("backfill of %s waits for %s", load.name, waited_for)
        load.holders = frozenset(still)
        if still:
            self._offer(reader.current_snapshot())
        return not still

    def _read_on(self) -> None:
        load = self._load
        offered: Chunk | None = None
        while not load.stopped.is_set():
            begun = time.monotonic()
            ahead = self._ahead(offered)
            chunk = None if offered is not None and ahead.complete else self._reader.read(ahead, ask=self._ask)
            if offered is not None:
                verdict = self._settled(offered)
                if verdict is None:
                    self._reader.forget_encoding()
                    if chunk is not None:
                        chunk.drop()
                    chunk = None
                elif verdict.state == "ready":
                    _log.info("backfill of %s: ready, %d rows", load.name, load.progress.rows)
                    self._offer(LoadDone(load.topic))
                    return
            if chunk is not None:
                self._offer(chunk)
            offered = chunk
            self._slow_down(begun)

    def _ahead(self, offered: Chunk | None) -> LoadProgress:
        """Where the table will have been read to when what is on offer is published."""
        progress = self._load.progress
        if offered is None:
            return progress
        return replace(
            progress,
            after=offered.last or progress.after,
            order=offered.order or progress.order,
            again=progress.again - offered.among,
            scanned=progress.scanned or offered.scanned,
        )

    def _settled(self, offered: Chunk) -> ChunkResult | None:
        """What became of a chunk."""
        load = self._load
        verdict = self._wait_for(offered.answer)
        if verdict is None:
            return None
        load.progress, load.estimate = verdict.progress, self._reader.estimate or 0
        if offered.among and offered.among <= load.progress.again:
            load.stopped.wait(BARRIER_LOOK_S)  # a commit that is published and not visible yet
        self._tell()
        return verdict

    def _ask(self, ask: EncodingRequest) -> TableEncoding:
        self._offer(ask)
        return self._wait_for(ask.answer)

    def _wait_for(self, answer: Future[_T]) -> _T:
        while True:
            try:
                return answer.result(_LOOK_S)
            except NotYet:
                if self._load.stopped.is_set():
                    raise RunEnded("stopped") from None

    def _tell(self) -> None:
        load, now = self._load, time.monotonic()
        load.told_at = load.told_at or now
        if now - load.told_at >= TELL_S:
            load.told_at = now
            _log.info("backfill of %s: %s", load.name, load.progress.describe(load.estimate))

    def _slow_down(self, begun: float) -> None:
        if self._pause_s:
            self._load.stopped.wait(max(0.0, begun + self._pause_s - time.monotonic()))
