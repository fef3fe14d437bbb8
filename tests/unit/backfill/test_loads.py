"""What a load that is stopped leaves: nothing in the spool, whoever has its chunk then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from twofold.backfill.chunk import Chunk, EncodingRequest, TableEncoding
from twofold.backfill.chunk_rule import Snapshot
from twofold.backfill.load_pool import LoadPool
from twofold.backfill.load_progress import LoadProgress
from twofold.backfill.loader import Load
from twofold.backfill.reader import Reader
from twofold.config import BackfillConfig
from twofold.spool import Spool
from twofold_common.positions import Lsn

TOPIC = "bank.public.event"


class Keyless:
    """The reader of a table without a key: one chunk, all of whose rows wait on disk."""

    estimate = 1

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def writers(self) -> tuple[()]:
        return ()

    def wait_for_all(self) -> bool:
        return True

    def read(self, place: LoadProgress, *, ask: Callable[[EncodingRequest], TableEncoding]) -> Chunk:
        whole = self._spool.new()
        whole.append(b"rows")
        return Chunk(
            TOPIC, None, [], Snapshot(0, frozenset()), Lsn(7), None, frozenset(), True, 0, rows=1, size=4, whole=whole
        )

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with closing(Spool(tmp_path, memory_max=0, disk_max=1 << 20)) as spool:
        yield spool


@pytest.fixture
def loads(spool: Spool) -> Iterator[LoadPool]:
    def make_reader(_: Load) -> Reader:
        return cast("Reader", Keyless(spool))

    with closing(LoadPool(BackfillConfig(), make_reader=make_reader, delivered=lambda: ())) as loads:  # type: ignore[call-arg]
        loads.begin(Load(TOPIC, "public", "event", LoadProgress(), resumed=False))
        while not spool.disk_bytes:
            time.sleep(0.01)
        yield loads


def test_one_that_waits_for_the_stream_is_dropped(spool: Spool, loads: LoadPool) -> None:
    while loads._offers.empty():
        time.sleep(0.01)
    assert not list(loads.offers())
    assert loads.due(Lsn(6)) is None
    loads.stop(TOPIC)
    assert spool.disk_bytes == 0


def test_one_that_was_not_looked_at_yet_is_dropped(spool: Spool, loads: LoadPool) -> None:
    while loads._offers.empty():
        time.sleep(0.01)
    loads.stop(TOPIC)
    assert not list(loads.offers())
    assert spool.disk_bytes == 0


def test_one_that_was_given_out_is_its_takers(spool: Spool, loads: LoadPool) -> None:
    """The worker may be at it."""
    while loads._offers.empty():
        time.sleep(0.01)
    assert not list(loads.offers())
    given = loads.due(Lsn(7))
    assert given is not None
    loads.stop(TOPIC)
    loads.close()
    assert spool.disk_bytes > 0
    given.drop()
    assert spool.disk_bytes == 0
