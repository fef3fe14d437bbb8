"""The loads: threads that read tables in backfill, chunk by chunk, and what they have to offer to the thread that runs the turn.

A table is read by one thread at a time, which waits for what has become of a chunk before it reads the next: so there is one chunk a table in memory at most, the place that is committed decides where
to go on, and what the stream needs is never far behind. Several tables are read side by side.

Nothing here outlives a run: on kill -9 a chunk that was read and not committed is read again, from the place in the pin.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from twofold.backfill.chunk import Chunk, Done, Offer
from twofold.backfill.place import Place
from twofold.backfill.reader import Reader
from twofold.config import BackfillConfig
from twofold.errors import RunEnded
from twofold.positions import Lsn

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

BARRIER_LOOK_S = 0.2
"""How often a load that waits behind the barrier looks whether it may begin."""
_LOOK_S = 0.2


@dataclass(slots=True)
class Load:
    """One table's."""

    topic: str
    schema: str
    table: str
    place: Place
    resumed: bool
    """It goes on behind a chunk, so a session before this one was through its barrier."""
    holders: frozenset[tuple[str, int | None]] | None = None
    """Who held a lock when this session's barrier began, and still does; None: it has not begun."""
    not_before: float = 0.0
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


class Loads:
    """All loads of one run. Everything but `_work` is called by the thread that runs the turn."""

    def __init__(
        self,
        config: BackfillConfig,
        *,
        make_reader: Callable[[Load], Reader],
        delivered: Callable[[], Collection[tuple[int, str]]],
    ) -> None:
        self._config = config
        self._make_reader = make_reader
        self._delivered = delivered
        self._queue: queue.Queue[Load | None] = queue.Queue()
        self._offers: queue.SimpleQueue[tuple[Load, Offer]] = queue.SimpleQueue()
        self._chunks: list[Chunk] = []
        self._loads: dict[str, Load] = {}
        self._readers: dict[str, Reader] = {}
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, load: Load) -> None:
        """The gate must remember the table's keys from before this call on."""
        self._loads[load.topic] = load
        self._queue.put(load)
        if len(self._threads) < self._config.readers:
            thread = threading.Thread(target=self._work, name=f"backfill-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, topic: str) -> None:
        """Read no further; a chunk that is on offer is not wanted any more."""
        if load := self._loads.pop(topic, None):
            load.stopped.set()
        self._chunks = [chunk for chunk in self._chunks if chunk.topic != topic]

    @property
    def busy(self) -> bool:
        """Is there a table that is being read?"""
        return bool(self._loads)

    def topics(self) -> AbstractSet[str]:
        return self._loads.keys()

    def all(self) -> Collection[Load]:
        return self._loads.values()

    def offers(self) -> Iterable[Offer]:
        """What has come from the readers, chunks left out."""
        if self._failure is not None:
            raise self._failure
        while True:
            try:
                load, offer = self._offers.get_nowait()
            except queue.Empty:
                return
            if self._loads.get(load.topic) is not load:
                continue  # of one that was stopped
            if isinstance(offer, Chunk):
                self._chunks.append(offer)
            else:
                if isinstance(offer, Done):
                    self._loads.pop(offer.topic, None)
                yield offer

    def due(self, read_lsn: Lsn) -> Chunk | None:
        """A chunk whose position the stream has passed."""
        for chunk in self._chunks:
            if chunk.end_lsn <= read_lsn:
                self._chunks.remove(chunk)
                return chunk
        return None

    def close(self) -> None:
        self._closing.set()
        for load in self._loads.values():
            load.stopped.set()
        for _ in self._threads:
            self._queue.put(None)
        for reader in list(self._readers.values()):
            reader.cancel()
        for thread in self._threads:
            thread.join(_LOOK_S * 10)

    def _work(self) -> None:
        while (load := self._queue.get()) is not None and not self._closing.is_set():
            try:
                self._carry_on(load)
            except BaseException as error:
                # Stopping cancels what a reader does; that is no failure.
                if not load.stopped.is_set():
                    self._failure = error
                    return

    def _carry_on(self, load: Load) -> None:
        """To the end of the table, or until somebody else's lock stands in the way."""
        load.stopped.wait(max(0.0, load.not_before - time.monotonic()))
        if load.stopped.is_set():
            return
        reader = self._readers[load.topic] = self._make_reader(load)
        try:
            if load.place.reload:
                self._one_chunk(load, reader)
            if not self._through_barrier(load, reader):
                load.not_before = time.monotonic() + BARRIER_LOOK_S
                self._queue.put(load)
                return
            _log.info("backfill of %s: reading", load.name)
            while not load.stopped.is_set():
                begun = time.monotonic()
                if self._one_chunk(load, reader):
                    _log.info("backfill of %s: ready, %d rows", load.name, load.place.rows)
                    self._offers.put((load, Done(load.topic)))
                    return
                self._slow_down(load, begun)
        finally:
            del self._readers[load.topic]
            reader.close()

    def _through_barrier(self, load: Load, reader: Reader) -> bool:
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
            _log.info(
                "backfill of %s waits for %s",
                load.name,
                "; ".join(str(holders[name]) for name in sorted(still, key=str)),
            )
        load.holders = frozenset(still)
        if still:
            self._offers.put((load, reader.seen()))
        return not still

    def _one_chunk(self, load: Load, reader: Reader) -> bool:
        """True: it was the last one."""
        read = reader.emptying if load.place.reload else partial(reader.read, load.place)
        chunk = read(ask=lambda ask: self._answer(load, ask.answer, ask))
        verdict = self._answer(load, chunk.answer, chunk)
        if chunk.whole is not None:
            chunk.whole.drop()
        if verdict is None:
            return False
        load.place = verdict.place
        return verdict.state == "ready"

    def _answer(self, load: Load, answer: Future[_T], offer: Offer) -> _T:
        self._offers.put((load, offer))
        while True:
            try:
                return answer.result(_LOOK_S)
            except NotYet:
                if load.stopped.is_set():
                    raise RunEnded("stopped") from None

    def _slow_down(self, load: Load, begun: float) -> None:
        rate = self._config.rows_per_second
        if rate:
            rows = self._config.chunk_rows
            load.stopped.wait(max(0.0, begun + rows / rate - time.monotonic()))
