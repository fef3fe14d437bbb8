"""The threads that read tables in backfill, and their offers to the turn's thread.

Several tables are read side by side, each by one thread at a time (`loader`). Nothing here outlives
a run: after kill -9, chunks that were not committed are read again, from the pin's progress.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial

from twofold.config import BackfillConfig
from twofold.loads.chunk import Chunk, LoadDone, Offer, ReloadTruncate
from twofold.loads.loader import BARRIER_PAUSE_S_MAX, Load, Loader
from twofold.loads.reader import Reader
from twofold.thread_owner import ThreadOwner
from twofold_common.positions import Lsn

_CLOSE_WAIT_S = 2.0


class LoadPool:
    """All loads of one run. The turn's thread calls everything except `_work`."""

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
        self._waiting: list[ReloadTruncate | Chunk] = []
        """Chunks and truncates that were offered, and whose position the stream has not passed."""
        self._loads: dict[str, Load] = {}
        self._readers: set[Reader] = set()
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._owner = ThreadOwner("the pool of loads")

    def begin(self, load: Load) -> None:
        """Begin a load. `LoadMerger` must remember the table's keys from before this call on."""
        assert self._owner.check_first()
        self._loads[load.topic] = load
        self._queue.put(load)
        if len(self._threads) < self._config.readers:
            thread = threading.Thread(target=self._work, name=f"backfill-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, topic: str) -> None:
        """Stop reading the table, and discard its offered chunk."""
        assert self._owner.check_first()
        if load := self._loads.pop(topic, None):
            load.stopped.set()
        for offered in [offered for offered in self._waiting if offered.topic == topic]:
            self._waiting.remove(offered)
            offered.drop()

    @property
    def busy(self) -> bool:
        """Whether a table is being read."""
        return bool(self._loads)

    def all(self) -> Collection[Load]:
        return self._loads.values()

    def offers(self) -> Iterable[Offer]:
        """Yield the readers' offers, except those that wait for the stream."""
        assert self._owner.check_first()
        if self._failure is not None:
            raise self._failure
        while True:
            try:
                load, offer = self._offers.get_nowait()
            except queue.Empty:
                return
            if self._loads.get(load.topic) is not load:  # from a stopped load
                if isinstance(offer, ReloadTruncate | Chunk):
                    offer.drop()
            elif isinstance(offer, ReloadTruncate | Chunk):
                self._waiting.append(offer)
            else:
                if isinstance(offer, LoadDone):
                    self._loads.pop(offer.topic, None)
                yield offer

    def due(self, read_lsn: Lsn) -> ReloadTruncate | Chunk | None:
        """Return a chunk, or a truncate, whose position the stream has passed."""
        assert self._owner.check_first()
        for offered in self._waiting:
            if offered.end_lsn <= read_lsn:
                self._waiting.remove(offered)
                return offered
        return None

    def close(self) -> None:
        self._closing.set()
        for load in self._loads.values():
            load.stopped.set()
        for _ in self._threads:
            self._queue.put(None)
        for reader in list(self._readers):
            reader.cancel()
        for thread in self._threads:
            thread.join(_CLOSE_WAIT_S)

    def _work(self) -> None:
        while (load := self._queue.get()) is not None and not self._closing.is_set():
            try:
                self._run_load(load)
            except BaseException as error:
                # Stopping cancels the reader's query; that is no failure.
                if not load.stopped.is_set():
                    self._failure = error
                    return

    def _run_load(self, load: Load) -> None:
        """Read to the table's end, or until another transaction's lock blocks the barrier."""
        load.stopped.wait(max(0.0, load.not_before - time.monotonic()))
        if load.stopped.is_set():
            return
        reader = self._make_reader(load)
        self._readers.add(reader)
        loader = Loader(
            load,
            reader,
            offer=partial(self._put, load),
            delivered=self._delivered,
            rows_per_second=self._config.rows_per_second,
            chunk_rows=self._config.chunk_rows,
        )
        try:
            if not loader.run():
                load.not_before = time.monotonic() + load.barrier_pause_s
                load.barrier_pause_s = min(load.barrier_pause_s * 1.5, BARRIER_PAUSE_S_MAX)
                self._queue.put(load)
        finally:
            self._readers.discard(reader)
            reader.close()

    def _put(self, load: Load, offer: Offer) -> None:
        self._offers.put((load, offer))
