"""What the collector and the bridge make of a stream together: which rows a commit of the main
producer carries, and what is held of those that wait.

The wire's messages, the spool and the bridge are the real ones; a table's plan puts rows as they
are into its list.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from helpers.source.collecting import make_collector
from twofold.bridge import actions, events, initial, step
from twofold.kafka.row_batch import RowBatch
from twofold.lives.skipped_rows import NO_COMMANDS
from twofold.source.session import Received
from twofold.spool import Spool
from twofold.tables.ddl_descriptions import DdlDescriptions
from twofold_common.positions import Lsn


class Plan:
    def append_run(
        self, received: Any, at: int, offset: int, header: Any, ts_ms: int, lists: Any, room: int
    ) -> tuple[int, int]:
        taken = 0
        while True:
            row = received[at][1]
            lists[0].append({"key": b"\0\0\0\0\1k", "value": row[5:]})
            taken, at = taken + len(row), at + 1
            if at == len(received) or taken > room or received[at][1][:1] != b"I":
                return at, taken


class Table:
    topic = "t"
    partitions = 1
    plan = Plan()
    committed = True
    outbox = None


class Messages:
    topic = "messages"
    published = True

    def append(self, message: Any, wal_start: int, facts: Any, header: Any, ts_ms: int, batch: RowBatch) -> str:
        batch.lists("messages", 1)[0].append({"key": b"", "value": message.content})
        batch.bytes += len(message.content)
        return "messages"


class Tables:
    skips = NO_COMMANDS
    messages = Messages()

    def __init__(self) -> None:
        self._table = Table()
        self.ddl = DdlDescriptions("p")

    def of_relation(self, oid: int, *, provisional: bool) -> Table:
        return self._table

    def adopt(self, described: Any) -> None:
        pass


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path, memory_max=1000, disk_max=1 << 30)
    yield spool
    spool.close()


def transaction(n: int, rows: int, width: int) -> Received:
    """Each row says whose it is."""
    row = (0, b"I" + pack(">II", 1, n) + b"x" * width)
    begin, commit = pack(">QqI", 1000 * n, 0, n), pack(">BQQq", 0, 1000 * n, 1000 * n + 10, 0)
    return [(0, b"B" + begin), *[row] * rows, (1000 * n + 10, b"C" + commit)]


@pytest.mark.parametrize("seed", range(20))
def test_a_commit_carries_whole_transactions_however_reads_turns_and_answers_fall(spool: Spool, seed: int) -> None:
    rng = random.Random(seed)
    sizes = {n: rng.choice([1, 3, 200, 2_000, 9_000]) for n in range(1, 25)}
    stream = [item for n, rows in sizes.items() for item in transaction(n, rows, 300)]
    collecting, state = (
        make_collector(Tables(), spool),
        initial(applied_lsn=Lsn(0), confirmed_lsn=Lsn(0), sequence=0, pool=1),
    )
    held: list[int] = []
    committed: list[int] = []
    flying: list[Lsn] = []

    def take(event: events.Event) -> None:
        nonlocal state
        state, given = step(state, event)
        for action in given:
            if isinstance(action, actions.CommitMain):
                whole = [n for n in sizes if len(committed) < n <= len(committed) + action.transactions]
                assert held == [n for n in whole for _ in range(sizes[n])]
                assert action.rows == len(held)
                committed.extend(whole)
                flying.append(action.applied_lsn)
                held.clear()

    at = 0
    while at < len(stream):
        read = stream[at : at + rng.choice([1, 7, 1_000, 5_000])]
        at += len(read)
        for collected in collecting.collect(read, 0):
            for _, _, records in collected.batch.partitions() if collected.batch else ():
                held += [int.from_bytes(record["value"][:4], "big") for record in records]
            take(collected.event)
        if rng.random() < 0.5:
            take(events.TurnFull())
        if flying and rng.random() < 0.7:
            take(events.MainCommitted(flying.pop()))
    while flying:
        take(events.MainCommitted(flying.pop()))
    take(events.Drained())
    assert committed == list(sizes)


def streamed(xid: int, rows: int, subxid: int) -> Received:
    return [(0, b"S" + pack(">IB", xid, 1)), *[(0, b"I" + pack(">II", subxid, 1) + b"x" * 100)] * rows, (0, b"E")]


def test_of_a_streamed_transaction_that_commits_without_rows_nothing_stays_in_the_spool(spool: Spool) -> None:
    taken_back = (0, b"A" + pack(">II", 10, 11))
    commit = (110, b"c" + pack(">IBQQq", 10, 0, 100, 110, 0))
    collecting = make_collector(Tables(), spool)
    assert list(collecting.collect(streamed(10, 20_000, 11), 0)) == []
    assert spool.disk_bytes > 0
    [collected] = collecting.collect([taken_back, commit], 0)
    assert collected.event == events.PlainRead(0, 0, Lsn(110))
    assert spool.disk_bytes == spool.memory_bytes == 0


@pytest.mark.parametrize("prepared", [False, True])
def test_messages_of_a_transaction_go_on_their_way_before_it_ends(spool: Spool, prepared: bool) -> None:
    begin = b"b" + pack(">QQqI", 100, 110, 0, 7) + b"gid\0" if prepared else b"B" + pack(">QqI", 1000, 0, 7)
    message = (0, b"M\1" + pack(">Q", 5) + b"p\0" + pack(">I", 100_000) + bytes(100_000))
    collecting = make_collector(Tables(), spool)
    list(collecting.collect([(0, begin)], 0))
    tracemalloc.start()
    try:
        for _ in range(100):
            for collected in collecting.collect([message], 0):
                assert collected.batch is not None
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
    finally:
        tracemalloc.stop()
    assert collecting.half_prepared == prepared


def test_a_subtransaction_takes_little_memory_beside_the_spool(spool: Spool) -> None:
    """PL/pgSQL makes one for each block with an EXCEPTION: there may be millions in a
    transaction.
    """
    collecting, count = make_collector(Tables(), spool), 20_000
    tracemalloc.start()
    try:
        for first in range(0, count, 1000):
            row = [(0, b"I" + pack(">II", 2 + first + n, 1) + b"x") for n in range(1000)]
            list(collecting.collect([(0, b"S" + pack(">IB", 1, 1)), *row, (0, b"E")], 0))
        assert tracemalloc.get_traced_memory()[0] / count < 300
    finally:
        tracemalloc.stop()
