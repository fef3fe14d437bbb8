"""Positions that contradict each other or the server's WAL, and transactions without their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.source.collecting import make_collector
from helpers.source.frames import frame
from twofold.errors import MalformedMessage
from twofold.lives.skipped_rows import NO_COMMANDS
from twofold.source.session import Keepalive, Received
from twofold.spool import Spool
from twofold.stream.stream_order import UNASKED_BYTES, StreamOrder
from twofold.tables.ddl_descriptions import DdlDescriptions
from twofold_common.positions import Lsn

FAR = 1 << 40
Collect = Callable[..., list[Any]]


@pytest.fixture
def collect(tmp_path: Path) -> Iterator[Collect]:
    spool = Spool(tmp_path, memory_max=1000, disk_max=1 << 30)

    def collect(*received: Any, order: StreamOrder | None = None) -> list[Any]:
        tables = SimpleNamespace(
            adopt=lambda _: None, messages=SimpleNamespace(published=True), ddl=DdlDescriptions("p"), skips=NO_COMMANDS
        )
        collector = make_collector(tables, spool, open_within_s=10, pool=8, order=order)
        return [*collector.collect([*received], 0)]

    yield collect
    spool.close()


def begin(lsn: int, ts: int = 0) -> tuple[int, bytes]:
    return 0, b"B" + pack(">QqI", lsn, ts, 7)


def commit(lsn: int, end: int | None = None, ts: int = 0) -> tuple[int, bytes]:
    return frame(b"C" + pack(">BQQq", 0, lsn, lsn + 10 if end is None else end, ts))


def of_prepared(tag: bytes, lsn: int, end: int | None = None, gid: bytes = b"g\0") -> tuple[int, bytes]:
    flags = b"" if tag == b"b" else b"\0"
    return frame(tag + flags + pack(">QQqI", lsn, lsn + 10 if end is None else end, 0, 7) + gid)


def rollback(end: int, prepare_end: int = 110) -> tuple[int, bytes]:
    return frame(b"r\0" + pack(">QQqqI", prepare_end, end, 0, 0, 7) + b"g\0")


def stream_commit(lsn: int) -> Received:
    return [(0, b"S" + pack(">IB", 7, 1)), (0, b"E"), frame(b"c" + pack(">IBQQq", 7, 0, lsn, lsn + 10, 0))]


def said(end: int) -> tuple[int, bytes]:
    return frame(b"M\0" + pack(">Q", end) + b"p\0" + pack(">I", 0))


PLAIN = [begin(100), commit(100)]
WRONG: dict[str, list[Any]] = {
    "commit elsewhere": [begin(100), commit(FAR)],
    "commit at another time": [begin(100), commit(100, ts=1)],
    "commit ends far ahead": [begin(100), (110, commit(100, FAR)[1])],
    "commit ends before it begins": [begin(100), commit(100, 90)],
    "commit before the last one": [*PLAIN, begin(50), commit(50)],
    "commit prepared before the last outcome": [*PLAIN, of_prepared(b"K", 90)],
    "commit prepared whose frame is elsewhere": [(110, of_prepared(b"K", 100, FAR)[1])],
    "rollback before the last outcome": [*PLAIN, rollback(105)],
    "rollback before its prepare": [rollback(105)],
    "stream commit before the last one": [*PLAIN, *stream_commit(50)],
    "a message before the last outcome": [*PLAIN, said(90)],
    "prepare elsewhere": [of_prepared(b"b", 100), of_prepared(b"P", FAR)],
    "prepare of another gid": [of_prepared(b"b", 100), of_prepared(b"P", 100, gid=b"h\0")],
    "no commit, and another begin": [begin(100), begin(200)],
    "no commit, and another one's commit": [begin(100), commit(200)],
    "no commit, and the server has sent everything": [begin(100), Keepalive(Lsn(101))],
    "no commit, and an outcome": [begin(100), of_prepared(b"K", 200)],
    "no prepare, and another begin": [of_prepared(b"b", 100), begin(200)],
    "no prepare, and a commit": [of_prepared(b"b", 100), commit(100)],
    "no end of a block": [(0, b"S" + pack(">IB", 7, 1)), begin(200)],
    "no begin": [commit(100)],
    "no begin of a row": [(0, b"I" + pack(">I", 1))],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_contradiction_is_malformed_and_no_event_comes_of_it(collect: Collect, wrong: str) -> None:
    with pytest.raises(MalformedMessage) as told:
        collect(*WRONG[wrong])
    assert told.value.exit_status == 7


def test_what_a_server_sends_is_not_malformed(collect: Collect) -> None:
    prepared = [of_prepared(b"b", 200), Keepalive(Lsn(500)), of_prepared(b"P", 200)]
    assert collect(*PLAIN, *prepared, of_prepared(b"K", 210), begin(220), Keepalive(Lsn(220)), commit(220))
    assert collect(of_prepared(b"b", 90), of_prepared(b"P", 90), rollback(110, 100), *stream_commit(110))


def test_the_server_is_asked_where_an_outcome_is_far_ahead(collect: Collect) -> None:
    asked: list[int] = []

    def ask() -> Lsn:
        asked.append(1)
        return Lsn(FAR)

    near = UNASKED_BYTES
    collect(begin(near - 10), commit(near - 10), order=StreamOrder(Lsn(0), ask))
    assert not asked
    far = [begin(FAR - 10), commit(FAR - 10), begin(FAR), commit(FAR)]
    assert collect(*far, order=StreamOrder(Lsn(0), ask))
    assert asked == [1]
    with pytest.raises(MalformedMessage, match=r"ends at 200/A, and the server's WAL at 100/0"):
        collect(begin(2 * FAR), commit(2 * FAR), order=StreamOrder(Lsn(0), ask))
    assert collect(Keepalive(Lsn(FAR)), *far, order=StreamOrder(Lsn(0), None))
