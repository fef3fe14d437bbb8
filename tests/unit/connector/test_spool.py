"""The spool keeps rows in order, in memory or on disk, and stops at its limit."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol
from unittest.mock import Mock

import pytest

from twofold.errors import RunEnded, SetupError
from twofold.spool import Spool


class MakeSpool(Protocol):
    def __call__(self, *, memory_max: int, disk_max: int = 1 << 20) -> Spool: ...


@pytest.fixture
def make_spool(tmp_path: Path) -> Iterator[MakeSpool]:
    with ExitStack() as stack:

        def make(*, memory_max: int, disk_max: int = 1 << 20) -> Spool:
            return stack.enter_context(closing(Spool(tmp_path / "s", memory_max=memory_max, disk_max=disk_max)))

        yield make


def chunk(start: int, size: int = 60) -> bytes:
    return b"%d " % start + b"x" * size


@pytest.mark.parametrize("memory_max", [0, 100, 10_000])
def test_rows_come_back_in_order_as_often_as_asked(make_spool: MakeSpool, memory_max: int) -> None:
    spool = make_spool(memory_max=memory_max)
    waiting = spool.new()
    expected = [chunk(n) for n in range(10)]
    for given in expected:
        waiting.append(given)
    assert list(waiting.chunks()) == expected
    assert list(waiting.chunks()) == expected
    assert (spool.disk_bytes > 0) == (memory_max < 620)
    assert spool.memory_bytes <= memory_max
    waiting.drop()
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)


def test_memory_is_shared_and_small_transactions_stay_in_it(make_spool: MakeSpool) -> None:
    spool = make_spool(memory_max=100)
    small, large = spool.new(), spool.new()
    small.append(chunk(0))
    large.append(chunk(0))
    assert spool.memory_bytes == 62
    assert spool.disk_bytes > 0
    assert list(small.chunks()) == list(large.chunks())


def test_the_limit_of_the_disk_is_named_with_its_remedy(make_spool: MakeSpool) -> None:
    spool = make_spool(memory_max=0, disk_max=100)
    with pytest.raises(RunEnded, match="raise it, or end the transactions in doubt"):
        spool.new().append(chunk(0, 100))


@contextmanager
def files_left(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(3, there + number), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_wait_in_few_files_and_give_the_disk_back(make_spool: MakeSpool, tmp_path: Path) -> None:
    """Every second one ends first: what it leaves is a hole, and a segment ends with its last."""
    spool = make_spool(memory_max=0, disk_max=1 << 30)
    rows = bytes(1 << 14)
    with files_left(12):
        waiting = [spool.new() for _ in range(3_000)]
        for n, each in enumerate(waiting):
            each.append(b"%d " % n + rows)
        for n, each in enumerate(waiting):
            each.append(b"%d again" % n)
        used = blocks(spool)
        for each in waiting[::2]:
            each.drop()
        assert blocks(spool) < 0.7 * used
        for n in range(1, 3_000, 2):
            assert [c.split()[0] for c in (bytes(c[:10]) for c in waiting[n].chunks())] == [b"%d" % n] * 2
        for each in waiting[1::2]:
            each.drop()
    assert spool.disk_bytes == 0
    assert len(segments(spool)) == 1


def segments(spool: Spool) -> list[Path]:
    folder = str(spool._folder)
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return [link for link in links if str(link.readlink()).startswith(folder)]


def blocks(spool: Spool) -> int:
    return sum(link.stat().st_blocks for link in segments(spool))


def test_the_limit_of_open_files_is_named_with_its_remedy(make_spool: MakeSpool) -> None:
    waiting = make_spool(memory_max=0).new()
    with files_left(-1_000_000), pytest.raises(RunEnded, match=r"may not open more files .*raise its limit"):
        waiting.append(chunk(0))


def test_a_folder_that_vanished_is_named_and_made_again(make_spool: MakeSpool, tmp_path: Path) -> None:
    """It holds no names, so who cleans /var/tmp finds it empty and old."""
    first = make_spool(memory_max=0)
    (tmp_path / "s").rmdir()
    with pytest.raises(RunEnded, match=r"no use of the spool folder .*No such file or directory.*is made again"):
        first.new().append(chunk(0))
    second = make_spool(memory_max=0)
    second.new().append(chunk(0))
    assert second.disk_bytes > 0


def test_a_disk_that_cannot_be_read_is_named(make_spool: MakeSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = make_spool(memory_max=0).new()
    waiting.append(chunk(0))
    monkeypatch.setattr(os, "pread", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(RunEnded, match=r"no use of the spool folder .*Input/output error"):
        list(waiting.chunks())


def test_files_have_no_names_and_two_instances_may_share_the_folder(tmp_path: Path) -> None:
    first = Spool(tmp_path / "s", memory_max=0, disk_max=1 << 20)
    second = Spool(tmp_path / "s", memory_max=0, disk_max=1 << 20)
    waiting = first.new()
    waiting.append(chunk(1))
    second.close()
    waiting.append(chunk(2))
    first.new().append(chunk(3))
    assert len(list(waiting.chunks())) == 2
    assert not list((tmp_path / "s").iterdir())
    first.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"set spool\.folder"):
        Spool(tmp_path / "file" / "s", memory_max=0, disk_max=0)


def test_rows_of_several_threads_share_a_file_and_stay_apart(make_spool: MakeSpool) -> None:
    """The thread that reads, the worker and the loaders append at once, and drop what is over."""
    spool = make_spool(memory_max=0, disk_max=1 << 30)

    def append(writer: int) -> list[str]:
        wrong = []
        for turn in range(20):
            waiting = spool.new()
            expected = [chunk(1000 * writer + turn, 5_000) for _ in range(20)]
            for given in expected:
                waiting.append(given)
            if list(waiting.chunks()) != expected:
                wrong.append(f"writer {writer}, turn {turn}")
            waiting.drop()
        return wrong

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(append, range(4))) == [[]] * 4
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)
