"""What a load that is stopped leaves: nothing in the spool, whoever has its chunk then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from twofold.config import BackfillConfig
from twofold.lives.chunk_rule import Snapshot
from twofold.lives.load_progress import LoadProgress
from twofold.loads.chunk import Chunk, ReloadTruncate, SnapshotSeen
from twofold.loads.load_pool import LoadPool
from twofold.loads.loader import Load
from twofold.loads.reader import AskEncoding, Reader
from twofold.spool import Spool
from twofold_common.positions import Lsn

TOPIC = "bank.public.event"


class Keyless(Reader):
    """The reader of a table without a key: one chunk, all of whose rows wait on disk."""

    estimate = 1

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def writers(self) -> tuple[()]:
        return ()

    def wait_for_all(self) -> bool:
        return True

    def current_snapshot(self) -> SnapshotSeen:
        raise AssertionError("nobody holds a lock")

    def make_truncate(self, *, ask: AskEncoding) -> ReloadTruncate:
        raise AssertionError("it is no reload")

    def forget_encoding(self) -> None: ...

    def read(self, progress: LoadProgress, *, ask: AskEncoding) -> Chunk:
        whole = self._spool.new()
        whole.append(b"rows")
        return Chunk(TOPIC, None, Snapshot(0, frozenset()), Lsn(7), 0, scanned=True, rows=1, size=4, whole=whole)

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
    config = BackfillConfig.model_validate({})
    with closing(LoadPool(config, make_reader=lambda _: Keyless(spool), delivered=lambda: ())) as loads:
        loads.begin(Load(TOPIC, "public", "event", LoadProgress(), resumed=False))
        while loads._offers.empty():
            time.sleep(0.01)
        yield loads


def test_one_that_waits_for_the_stream_is_dropped(spool: Spool, loads: LoadPool) -> None:
    assert not list(loads.offers())
    assert loads.due(Lsn(6)) is None
    loads.stop(TOPIC)
    assert spool.disk_bytes == 0


def test_one_that_was_not_looked_at_yet_is_dropped(spool: Spool, loads: LoadPool) -> None:
    loads.stop(TOPIC)
    assert not list(loads.offers())
    assert spool.disk_bytes == 0


def test_one_that_was_given_out_is_its_takers(spool: Spool, loads: LoadPool) -> None:
    """The worker may be at it."""
    assert not list(loads.offers())
    given = loads.due(Lsn(7))
    assert given is not None
    loads.stop(TOPIC)
    loads.close()
    assert spool.disk_bytes > 0
    given.drop()
    assert spool.disk_bytes == 0
