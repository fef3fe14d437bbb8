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
from twofold.errors import MalformedMessage, Refused
from twofold.lives.skipped_rows import NO_COMMANDS
from twofold.source.session import Keepalive, Received
from twofold.spool import Spool
from twofold.stream.stream_order import UNASKED_BYTES, Outcome, PublishedStream, StreamOrder
from twofold.tables.ddl_descriptions import DdlDescriptions
from twofold_common.positions import Lsn

FAR = 1 << 40
Collect = Callable[..., list[Any]]


@pytest.fixture
def collect(tmp_path: Path) -> Iterator[Collect]:
    spool = Spool(tmp_path, memory_max=1000, disk_max=1 << 30)

    def collect(*received: Any, order: StreamOrder | None = None, applied: int = 0) -> list[Any]:
        tables = SimpleNamespace(
            adopt=lambda _: None, messages=SimpleNamespace(published=True), ddl=DdlDescriptions("p"), skips=NO_COMMANDS
        )
        collector = make_collector(
            tables, spool, open_within_s=10, pool=8, order=order, is_applied=lambda lsn: lsn < applied
        )
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


EPOCH_US = 946_684_800_000_000
"""PostgreSQL's: the year 2000."""
PUBLISHED = PublishedStream(Lsn(300), Outcome(Lsn(210), EPOCH_US + 5), comes_again=True)
"""Kafka has everything up to 300; the last outcome before it ended at 210."""
ROW = (0, b"I" + pack(">I", 1))
AGAIN = [begin(100), commit(100), begin(200, ts=5), commit(200, ts=5)]
SAME_WAL: dict[str, list[Any]] = {
    "the last outcome": [*AGAIN, Keepalive(Lsn(400)), begin(500), commit(500)],
    "nothing up to there yet": [begin(100), commit(100), Keepalive(Lsn(209))],
    "older prepared ones behind it": [*AGAIN, of_prepared(b"b", 90), of_prepared(b"P", 90)],
    "an empty one behind it that was not streamed": [*AGAIN, begin(250), commit(250)],
    "an empty one behind it that is streamed": [*AGAIN, *stream_commit(250)],
}
OTHER_WAL: dict[str, list[Any]] = {
    "an outcome at another time": [begin(200), commit(200)],
    "an outcome that passes it": [begin(100), commit(100), begin(205, ts=5), commit(205, ts=5)],
    "a rollback that passes it": [rollback(310, 100)],
    "a prepare behind it": [of_prepared(b"b", 290), of_prepared(b"P", 290)],
    "a message behind it": [said(310)],
    "a keepalive": [begin(100), commit(100), Keepalive(Lsn(210))],
    "one more outcome before the position": [*AGAIN, begin(250), ROW, commit(250)],
    "one that begins before the position": [*AGAIN, begin(290), ROW, commit(290, 310)],
    "one more of a prepared transaction": [*AGAIN, of_prepared(b"K", 250)],
}


@pytest.mark.parametrize("sent", SAME_WAL)
def test_a_server_that_has_what_was_published_goes_on(collect: Collect, sent: str) -> None:
    collect(*SAME_WAL[sent], order=StreamOrder(published=PUBLISHED), applied=300)


@pytest.mark.parametrize("sent", OTHER_WAL)
def test_a_server_whose_disk_was_set_back_is_refused(collect: Collect, sent: str) -> None:
    """Its own outcomes would be taken for published ones."""
    with pytest.raises(Refused, match=r"ended at 0/D2 \(2000-01-01 00:00:00 UTC\)") as refused:
        collect(*OTHER_WAL[sent], order=StreamOrder(published=PUBLISHED), applied=300)
    assert "skipped" in str(refused.value)


def test_a_confirmed_outcome_need_not_come_again(collect: Collect) -> None:
    confirmed = PUBLISHED._replace(comes_again=False)
    collect(Keepalive(Lsn(300)), begin(300), commit(300), order=StreamOrder(published=confirmed))
    with pytest.raises(Refused, match="behind it the server sends one that ends at 0/FA"):
        collect(begin(240), ROW, commit(240), order=StreamOrder(published=confirmed), applied=300)


def test_the_last_outcome_of_a_commit_is_known(collect: Collect) -> None:
    order = StreamOrder(published=PUBLISHED)
    collect(begin(100), commit(100), order=order)
    assert order.last_up_to(Lsn(300)) == PUBLISHED.last
    collect(begin(200, ts=5), commit(200, ts=5), begin(300, 6), commit(300, ts=6), rollback(320), order=order)
    assert [order.last_up_to(Lsn(lsn)) for lsn in (300, 315, 400)] == [
        (210, EPOCH_US + 5),
        (310, EPOCH_US + 6),
        (320, EPOCH_US),
    ]
    assert StreamOrder().last_up_to(Lsn(300)) is None


def test_a_streamed_transaction_without_rows_may_not_come_again(collect: Collect) -> None:
    """The server leaves it out where it need not stream it."""
    order = StreamOrder()
    collect(begin(100), commit(100), *stream_commit(200), order=order)
    assert order.last_up_to(Lsn(300)) == (110, EPOCH_US)
