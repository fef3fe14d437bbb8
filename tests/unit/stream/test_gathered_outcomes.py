"""Prepared transactions whose outcome follows soon take part in a run of plain ones, and nothing is
lost by that: not at a crash anywhere either, for the reported position waits for them.

The collector and the bridge are the real ones. PostgreSQL sends again what lies behind the reported
position, as it does: a prepare that starts before it does not come again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

import pytest

from twofold.bridge import Event, Policy, State, actions, events, initial, step
from twofold.bridge.events import NO_PREPARE
from twofold.kafka.row_batch import RowBatch
from twofold.lives.skipped_rows import NO_COMMANDS
from twofold.source.session import Received
from twofold.spool import Spool
from twofold.stream import gathered_outcomes
from twofold.stream.collector import Collector
from twofold.stream.source_transaction import CollectedEvent
from twofold.tables.ddl_descriptions import DdlDescriptions
from twofold_common.positions import Lsn, PreparedIdentity

LENGTH = 10
HOLD_S = 0.2


class Plan:
    def append_run(
        self, received: Any, at: int, offset: int, header: Any, ts_ms: int, lists: Any, room: int
    ) -> tuple[int, int]:
        row = received[at][1]
        lists[0].append({"key": b"", "value": row[5:]})
        return at + 1, len(row)


class Table:
    topic = "t"
    partitions = 1
    plan = Plan()
    committed = True
    void = False
    park_reason: str | None = None
    outbox = None


class Tables:
    skips = NO_COMMANDS

    def __init__(self, park_reason: str | None = None) -> None:
        self.table = Table()
        self.ddl = DdlDescriptions("p")
        self.table.park_reason = park_reason

    def of_relation(self, oid: int, *, provisional: bool) -> Table:
        return self.table


class Record(NamedTuple):
    """T plain, P prepare, K commit prepared, R rollback prepared, of transaction `xid`."""

    kind: str
    xid: int
    rows: int
    start: int

    @property
    def end(self) -> int:
        return self.start + LENGTH

    def messages(self) -> Received:
        gid = b"gid-%d\0" % self.xid
        rows = [(0, b"I" + pack(">II", 1, self.xid))] * self.rows
        positions = pack(">QQqI", self.start, self.end, 0, self.xid) + gid
        match self.kind:
            case "T":
                begin, commit = pack(">QqI", self.start, 0, self.xid), pack(">BQQq", 0, self.start, self.end, 0)
                return [(0, b"B" + begin), *rows, (self.end, b"C" + commit)]
            case "P":
                return [(0, b"b" + positions), *rows, (self.end, b"P\0" + positions)]
            case "K":
                return [(self.end, b"K\0" + positions)]
            case _:
                return [(self.end, b"r\0" + pack(">QQqqI", 0, self.end, 0, 0, self.xid) + gid)]


def history(chance: random.Random, length: int) -> list[Record]:
    log: list[Record] = []
    open_: dict[int, int] = {}
    while len(log) < length or open_:
        at, xid = LENGTH * (len(log) + 1), len(log) + 1
        if open_ and (len(log) >= length or chance.random() < 0.45):
            ended = chance.choice([*open_])
            log.append(Record(chance.choice("KKKR"), ended, open_.pop(ended), at))
        elif chance.random() < 0.6:
            open_[xid] = chance.choice([0, 1, 3])
            log.append(Record("P", xid, open_[xid], at))
        else:
            log.append(Record("T", xid, chance.choice([1, 2]), at))
    return log


class World:
    """A run, and what Kafka and PostgreSQL keep when it ends."""

    def __init__(self, spool: Spool, log: list[Record], chance: random.Random) -> None:
        self.spool, self.log, self.chance = spool, log, chance
        self.committed: list[int] = []
        self.applied, self.flush, self.sequence = 0, 0, 0
        self.held_ever = self.now_ms = 0

    def begin(self) -> None:
        self.state = initial(
            applied_lsn=Lsn(self.applied), confirmed_lsn=Lsn(self.flush), sequence=self.sequence, pool=1
        )
        self.waiting: dict[PreparedIdentity, Any] = {}
        self.batch: list[int] = []
        self.flying: list[tuple[int, int, list[int]]] = []
        self.collector = Collector(
            tables=Tables(),  # type: ignore[arg-type]
            spool=self.spool,
            is_applied=self.state.is_applied,
            is_applied_upto=self.state.is_applied_upto,
            knows=lambda identity: identity in self.waiting,
            parks=lambda _: False,
            open_within_s=HOLD_S,
            pool=2,
        )

    def run(self, *, until: int) -> None:
        """Read everything behind the reported position, in reads of any size; crash after so many
        messages.
        """
        self.begin()
        stream = [item for record in self.log if record.start >= self.flush for item in record.messages()]
        at = 0
        while at < min(len(stream), until):
            part = stream[at : at + self.chance.choice([1, 3, 9, 40])]
            at += len(part)
            self.now_ms += self.chance.choice([0, 20, 150])
            for collected in self.collector.collect(part, self.now_ms):
                self.take(collected)
                self.answer(self.chance.random() < 0.3)
            if self.chance.random() < 0.2:
                for collected in self.collector.announce_drained(self.now_ms, len(self.state.prepared)):
                    self.take(collected)
                    self.answer(self.chance.random() < 0.3)
                self.tell(events.Drained())
            self.answer(self.chance.random() < 0.6)

    def take(self, collected: CollectedEvent) -> None:
        match collected.event:
            case events.PlainRead(committed=committed, rolled_back=rolled_back, oldest_prepare=oldest_prepare):
                self.held_ever += committed + rolled_back
                assert (committed + rolled_back > 0) == (oldest_prepare != NO_PREPARE)
                assert sum(1 for _ in collected.outcomes) <= committed
            case _:
                pass
        if collected.batch is not None:
            self.batch += values(collected.batch)
        if collected.transaction is not None:
            self.waiting[collected.transaction.identity] = collected.transaction
        self.tell(collected.event)

    def tell(self, event: events.Event) -> None:
        self.state, given = step(self.state, event)
        for action in given:
            match action:
                case actions.AppendStaged(identity):
                    for batch in self.waiting.pop(identity).batches():
                        self.batch += values(batch)
                case actions.Forget(identity):
                    self.waiting.pop(identity)
                case actions.CommitMain(sequence, applied_lsn, _, rows):
                    assert rows == len(self.batch)
                    self.flying.append((sequence, applied_lsn, self.batch))
                    self.batch = []
                case actions.Report(_, flush):
                    self.check_position(flush)
                    self.flush = flush
                case _:
                    raise AssertionError(action)

    def answer(self, it_comes: bool) -> None:
        if it_comes and self.flying:
            self.sequence, self.applied, rows = self.flying.pop(0)
            self.committed += rows
            self.tell(events.MainCommitted(Lsn(self.applied)))

    def check_position(self, flush: int) -> None:
        """Behind it is every prepare whose outcome Kafka does not have."""
        outcome = {record.xid: record for record in self.log if record.kind in "KR"}
        for record in self.log:
            if record.kind == "P" and record.start < flush:
                assert outcome[record.xid].end <= self.applied, f"{record} would not come again"


def values(batch: RowBatch) -> list[int]:
    return [int.from_bytes(record["value"], "big") for _, _, records in batch.partitions() for record in records]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path, memory_max=1 << 20, disk_max=1 << 20)
    yield spool
    spool.close()


@pytest.mark.parametrize("seed", range(60))
def test_every_row_comes_once_in_the_order_of_outcomes_however_reads_and_crashes_fall(spool: Spool, seed: int) -> None:
    chance = random.Random(seed)
    log = history(chance, 60)
    world = World(spool, log, chance)
    for _ in range(4):
        world.run(until=chance.randrange(1, 200))
    world.run(until=1 << 30)
    for collected in world.collector.announce(world.now_ms):
        world.take(collected)
    world.tell(events.TurnFull())
    while world.flying:
        world.answer(it_comes=True)
    expected = [record.xid for record in log if record.kind in "TK" for _ in range(record.rows)]
    assert world.committed == expected
    assert world.held_ever > 0
    assert world.flush == log[-1].end
    assert not world.state.prepared


def collect(spool: Spool, *read: list[Record], knows: bool = False, tables: Tables | None = None) -> list[Any]:
    """The events of these reads."""
    collector = make_collector(spool, knows=knows, tables=tables)
    return [event for n, part in enumerate(read) for event in collect_from(collector, part, 150 * n)]


def make_collector(spool: Spool, *, knows: bool = False, tables: Tables | None = None) -> Collector:
    return Collector(
        tables=tables or Tables(),  # type: ignore[arg-type]
        spool=spool,
        is_applied=lambda lsn: lsn < 20,
        is_applied_upto=lambda lsn: lsn <= 20,
        knows=lambda _: knows,
        parks=lambda gid: gid == "gid-666",
        open_within_s=HOLD_S,
        pool=2,
    )


def collect_from(collector: Collector, read: list[Record], ts_ms: int = 0) -> list[Any]:
    """The events of one read."""
    received = [item for record in read for item in record.messages()]
    return [collected.event for collected in collector.collect(received, ts_ms)]


def test_neighbours_are_one_event_and_the_position_waits_for_what_is_held(spool: Spool) -> None:
    read = [Record("P", 1, 2, 20), Record("P", 2, 1, 30), Record("T", 3, 1, 40), Record("K", 1, 2, 50)]
    assert collect(spool, read) == [
        events.Unannounced(Lsn(20 + 10)),
        events.PlainRead(2, 3, Lsn(60), oldest_prepare=Lsn(20), committed=1),
    ]
    assert collect(spool, [Record("P", 1, 2, 20), Record("R", 1, 2, 30)]) == [
        events.PlainRead(0, 0, Lsn(40), oldest_prepare=Lsn(20), rolled_back=1)
    ]


def test_an_outcome_that_is_announced_by_itself_first_tells_of_what_is_held(spool: Spool) -> None:
    read = [Record("P", 4, 1, 20), Record("K", 3, 1, 30), Record("K", 4, 1, 40)]
    assert collect(spool, read) == [
        events.Unannounced(Lsn(20)),
        events.CommitPreparedRead(PreparedIdentity(3, "gid-3"), Lsn(30), Lsn(40)),
        events.PlainRead(1, 1, Lsn(50), oldest_prepare=Lsn(20), committed=1),
        events.Unannounced(NO_PREPARE),
    ]


@pytest.mark.parametrize(
    ("prepare", "how"),
    [
        (Record("P", 1, 1, 10), {}),  # Kafka may have it
        (Record("P", 1, 1, 20), {"knows": True}),
        (Record("P", 666, 1, 20), {}),  # parked by a rule
        (Record("P", 1, 1, 20), {"tables": Tables("it touches a table in backfill")}),
        (Record("P", 1, 40_000, 20), {}),  # its rows are in the spool
    ],
    ids=["applied", "known", "by rule", "in backfill", "large"],
)
def test_such_a_one_is_announced_by_itself(spool: Spool, prepare: Record, how: dict[str, Any]) -> None:
    large = Spool(Path(spool._folder), memory_max=1 << 24, disk_max=1 << 24)
    try:
        found = collect(large, [prepare, Record("K", prepare.xid, 1, 50)], **how)
    finally:
        large.close()
    assert [type(event) for event in found] == [events.PrepareRead, events.CommitPreparedRead]


def test_one_that_waits_too_long_is_announced(spool: Spool) -> None:
    plain, other = Record("T", 2, 1, 30), Record("T", 3, 1, 40)
    assert [type(event) for event in collect(spool, [Record("P", 1, 1, 20)], [Record("K", 1, 1, 30)])] == [
        events.Unannounced,
        events.PlainRead,
        events.Unannounced,
    ]
    found = collect(spool, [Record("P", 1, 1, 20)], [plain], [other], [Record("K", 1, 1, 50)])
    assert [type(event) for event in found] == [
        events.Unannounced,
        events.PlainRead,
        events.PlainRead,
        events.PrepareRead,
        events.Unannounced,
        events.CommitPreparedRead,
    ]


def test_more_than_the_pool_can_open_wait_longer(spool: Spool) -> None:
    three = [Record("P", n, 1, 10 * (n + 1)) for n in (1, 2, 3)]
    plain = [[Record("T", n, 1, 10 * n)] for n in range(5, 19)]
    found = [type(event) for event in collect(spool, three, *plain)]
    assert found.index(events.PrepareRead) == 15, "after ten times 0.2 s, in steps of 0.15 s"
    assert found.count(events.PrepareRead) == 3


@pytest.mark.parametrize(("in_doubt", "announced"), [(1, 1), (2, 0)])
def test_one_that_could_not_be_opened_is_held_while_nothing_is_read(
    spool: Spool, in_doubt: int, announced: int
) -> None:
    """Most outcomes come before its time, and then it costs as little as a plain transaction."""
    collector = make_collector(spool)
    assert collector.wait_s(0, in_doubt) == math.inf
    collect_from(collector, [Record("P", 1, 1, 20)])
    assert collector.wait_s(500, in_doubt) == (0 if announced else 1.5)
    found = [type(each.event) for each in collector.announce_drained(500, in_doubt)]
    assert found.count(events.PrepareRead) == announced
    if not announced:
        assert collect_from(collector, [Record("K", 1, 1, 30)])[0].committed == 1


def test_of_more_than_the_pool_each_is_announced_at_its_time_while_nothing_is_read(spool: Spool) -> None:
    collector = make_collector(spool)
    collect_from(collector, [Record("P", 1, 1, 20)])
    collect_from(collector, [Record("P", 2, 1, 30)], ts_ms=50)

    def announced(ms: int) -> list[tuple[int, int]]:
        prepared = [each for each in collector.announce_drained(ms, in_doubt=2) if each.transaction]
        return [(each.event.identity.xid, each.waited_ms) for each in prepared]  # type: ignore[union-attr]

    assert (announced(1999), announced(2000), announced(2050)) == ([], [(1, 2000)], [(2, 2000)])


def test_nothing_is_due_in_the_middle_of_a_plain_transaction(spool: Spool) -> None:
    """Its rows would go with what is announced."""
    collector = make_collector(spool)
    collect_from(collector, [Record("P", 1, 1, 20)])
    assert collector.wait_s(300, 0) == 0
    for _ in collector.collect(Record("T", 2, 1, 30).messages()[:1], 0):
        raise AssertionError
    assert collector.wait_s(300, 0) == math.inf
    assert not [*collector.announce_drained(300, in_doubt=0)]


def test_the_oldest_is_announced_when_there_are_too_many_rows(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered_outcomes, "KEPT_BYTES_MAX", 20)
    read = [Record("P", 1, 1, 20), Record("P", 2, 1, 30), Record("P", 3, 1, 40)]
    announced, *_ = collect(spool, read)[1:]
    assert announced == events.PrepareRead(PreparedIdentity(1, "gid-1"), Lsn(20), Lsn(30), 1)


def test_rows_of_resolved_transactions_count_no_longer(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered_outcomes, "KEPT_BYTES_MAX", 20)
    ended = [[Record("P", n, 1, 20 * n), Record("K", n, 1, 20 * n + 10)] for n in (1, 2, 3)]
    found = collect(spool, *ended, [Record("P", 4, 1, 80)])
    assert events.PrepareRead not in map(type, found)


def test_the_bridge_holds_both_positions_for_what_is_held_and_for_what_a_run_resolves() -> None:
    policy = Policy(synchronous=True)
    state: State = initial(applied_lsn=Lsn(20), confirmed_lsn=Lsn(20), sequence=0, pool=1, policy=policy)
    passing: tuple[Event, ...] = (events.Unannounced(Lsn(22)), events.PlainRead(1, 1, Lsn(30)), events.Drained())
    for event in passing:
        state, _ = step(state, event)
    state, _ = step(state, events.MainCommitted(Lsn(30)))
    assert (state.applied_lsn, state.flush, state.write) == (30, 22, 22)
    state, _ = step(state, events.PlainRead(1, 1, Lsn(60), oldest_prepare=Lsn(22), committed=1))
    state, _ = step(state, events.Unannounced(NO_PREPARE))
    assert (state.flush, state.write) == (22, 30)
    for event in (events.Drained(), events.MainCommitted(Lsn(60))):
        state, _ = step(state, event)
    assert (state.flush, state.write) == (60, 60)
