"""What leaves the spool comes to Kafka's thread together, in the order of its outcomes, and before
whatever is given out after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from helpers.source.prepared import prepared_transaction
from twofold.bridge import Event, actions, events, initial, step
from twofold.kafka.publisher import TransactionRecords
from twofold.kafka.row_batch import RowBatch
from twofold.lives.exchanged import ExecuteCommand, LoadCommand
from twofold.loads.chunk import DueCommand, ReloadTruncate
from twofold.loads.load_merger import Published
from twofold.run import executor as module
from twofold.run.executor import ActionExecutor, ReportedPositions
from twofold.run.worker import Pending
from twofold.spool import Spool
from twofold.stream.bookkeeping_records import ConnectorOrigin, Ledger
from twofold.tables.pins import Pins
from twofold.tables.table_lives import TableLives
from twofold_avro.records import Pin
from twofold_common.positions import Lsn, PreparedIdentity

TOPIC = "shop.public.account"
RELATION = 7


class Worker:
    """Does each job at once."""

    def __init__(self) -> None:
        self.jobs = 0
        self.answer: Event | Pending | None = None

    def submit(self, job: Callable[[], Event | Pending | None], *, meanwhile: Callable[[], None]) -> None:
        self.jobs += 1
        self.answer = job()


class LoadMerger:
    """Notes what is published and committed."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def produce(self, batch: RowBatch) -> None:
        for _, partition, records in batch.partitions():
            self.done += [(partition, record["value"]) for record in records]

    def commit(self, *_: object, **__: object) -> Published:
        self.done.append("commit")
        return Published(None, {})


class Tables:
    pins = Pins("shop", {}, TableLives({}), load_first=True)
    lives = TableLives({})

    def register_committed(self, tables: object) -> None: ...

    def __init__(self) -> None:
        self.changed: list[object] = []

    def note_changed(self, tables: object, own: object) -> None:
        self.changed.append(tables)

    def emptied(self, topic: str) -> None:
        self.pins.emptied(topic, RELATION)


class Publisher:
    """Notes when a prepared transaction was opened."""

    def __init__(self) -> None:
        self.opened_at = 0.0

    def open(self, slot: int, batches: object) -> None:
        time.sleep(0.01)
        self.opened_at = time.monotonic()

    def has_opened(self, slot: int) -> bool:
        return slot == 7


class Stage:
    """A executor that nothing is behind, and prepared transactions for it."""

    def __init__(self, spool: Spool) -> None:
        self.spool, self.worker, self.merger, self.publisher = spool, Worker(), LoadMerger(), Publisher()
        self.executor = self.make_executor(Tables(), self.merger)

    def make_executor(self, tables: Tables, merger: object) -> ActionExecutor:
        return ActionExecutor(
            worker=cast("Any", self.worker),
            publisher=cast("Any", self.publisher),
            merger=cast("Any", merger),
            tables=cast("Any", tables),
            origin=ORIGIN,
            reported=ReportedPositions(Lsn(1), Lsn(1)),
            ledger=Ledger((), ()),
            tend=lambda: None,
        )

    def prepare(self, xid: int, *values: bytes, size: int = 10) -> PreparedIdentity:
        """With a row in partition 1 for each value, and `size` bytes said to be read for all."""
        identity, batch = PreparedIdentity(xid, "x"), RowBatch()
        batch.lists(TOPIC, 2)[1].extend({"key": b"k", "value": value} for value in values)
        batch.bytes = size
        self.executor.stage(prepared_transaction(identity, self.spool, batch, topics=(TOPIC,)))
        return identity

    def commit(self, *identities: PreparedIdentity) -> None:
        for identity in identities:
            self.executor.execute(actions.AppendStaged(identity, Lsn(identity.xid + 5)), at_us=0)


ORIGIN = cast("ConnectorOrigin", type("NoOrigin", (), {"stream_id": "", "progress": staticmethod(lambda *_: None)})())
"""Where the positions come from does not matter here."""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(Spool(tmp_path, memory_max=1 << 20, disk_max=1 << 20))


def test_many_small_ones_are_one_job_in_the_order_of_their_outcomes(stage: Stage) -> None:
    first, second, third = stage.prepare(1, b"a", b"b"), stage.prepare(2, b"c"), stage.prepare(3, b"d")
    stage.commit(second)
    stage.executor.execute(actions.Forget(third), at_us=0)
    stage.commit(first)
    assert (stage.worker.jobs, stage.merger.done) == (0, [])
    stage.executor.execute(actions.CommitMain(1, Lsn(9), 2, 3), at_us=0)
    assert stage.worker.jobs == 2
    assert stage.merger.done == [(1, b"c"), (1, b"a"), (1, b"b"), "commit"]
    assert stage.spool.memory_bytes == 0


def test_rows_that_are_read_later_come_later(stage: Stage) -> None:
    stage.commit(stage.prepare(1, b"a"))
    batch = RowBatch()
    batch.lists(TOPIC, 2)[1].append({"key": b"k", "value": b"plain"})
    stage.executor.produce(batch)
    assert stage.merger.done == [(1, b"a"), (1, b"plain")]


def test_records_that_no_row_was_read_for_are_published_too(stage: Stage) -> None:
    """A truncate: it has no bytes of a row."""
    stage.commit(stage.prepare(1, b"truncate", size=0))
    stage.executor.execute(actions.CommitMain(1, Lsn(9), 1, 1), at_us=0)
    assert stage.merger.done == [(1, b"truncate"), "commit"]


def test_what_has_become_large_does_not_wait(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 15)
    stage.commit(stage.prepare(1, b"a"))
    assert stage.merger.done == []
    stage.commit(stage.prepare(2, b"b"))
    assert stage.merger.done == [(1, b"a"), (1, b"b")]


def test_kafkas_timeout_counts_from_before_the_rows_were_opened(stage: Stage) -> None:
    before, prepared = time.monotonic(), stage.prepare(1, b"a")
    stage.executor.execute(actions.OpenPrepared(prepared, 0), at_us=0)
    assert before <= stage.executor.begun(prepared) <= stage.publisher.opened_at - 0.01


@pytest.mark.parametrize(("slot", "opened"), [(0, False), (7, True)])
def test_an_open_is_answered_when_its_rows_are_acknowledged(stage: Stage, slot: int, opened: bool) -> None:
    prepared = stage.prepare(1, b"a")
    stage.executor.execute(actions.OpenPrepared(prepared, slot), at_us=0)
    assert isinstance(stage.worker.answer, Pending)
    assert stage.worker.answer.is_true() == opened
    assert stage.worker.answer.answer == events.PreparedOpened(prepared)


@pytest.mark.parametrize("values", [(), (b"1",)])
def test_what_a_prepared_transaction_changed_is_noted_with_its_outcome(stage: Stage, values: tuple[bytes, ...]) -> None:
    """Once, before its rows are handed over; without rows no action brings it."""
    tables = Tables()
    stage.executor = stage.make_executor(tables, stage.merger)
    identity = stage.prepare(1, *values)
    assert not tables.changed
    stage.executor.register_committed(identity)
    assert len(tables.changed) == (not values)
    if values:
        stage.commit(identity)
    assert len(tables.changed) == 1


class KeepsPins:
    """A merger that keeps the pins of each Kafka transaction."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, Pin]]] = []

    def commit(self, records: TransactionRecords) -> Published:
        self.written.append(("batch", dict(records.pins)))
        return Published(None, {})

    def execute_command(self, _: str, __: ExecuteCommand, records: TransactionRecords) -> tuple[Published, object]:
        self.written.append(("command", dict(records.pins)))
        return Published(None, {}), None

    def publish_truncate(self, _: ReloadTruncate, records: TransactionRecords) -> Published:
        self.written.append(("truncate", dict(records.pins)))
        return Published(None, {})


@pytest.mark.parametrize(
    "pin",
    [
        pytest.param(Pin("public", "account", 3, "k", relation=RELATION, stale="renamed", reload_due=True), id="stale"),
        pytest.param(Pin("public", "account", 3, "k", relation=RELATION - 1), id="of a table that was made again"),
    ],
)
def test_a_reload_is_due_until_its_truncate_is_published(stage: Stage, pin: Pin) -> None:
    """The batch that closes before it is a Kafka transaction of its own, behind which the process
    may die: nothing else would remember the reload.
    """
    pinned = {TOPIC: pin}
    tables, merger = Tables(), KeepsPins()
    tables.pins = Pins("shop", pinned, TableLives(pinned), load_first=True)
    executor = stage.make_executor(tables, merger)
    executor.stage_due(ReloadTruncate(TOPIC, cast("Any", "encoding"), [], Lsn(15), 0))
    open_batch, _ = step(
        initial(applied_lsn=Lsn(10), confirmed_lsn=Lsn(10), sequence=0, pool=1), events.PlainRead(1, 1, Lsn(20))
    )
    for action in step(open_batch, events.ChunkDue())[1]:
        executor.execute(action, at_us=0)
    assert [(kind, {each.relation for each in written.values()}) for kind, written in merger.written] == [
        ("batch", set()),
        ("truncate", {RELATION}),
    ]


@pytest.mark.parametrize(
    ("name", "has_begun", "due"), [("cancel", True, False), ("cancel", False, True), ("pause", True, True)]
)
def test_a_reload_that_a_person_cancelled_is_not_due_at_the_next_start(
    stage: Stage, name: str, has_begun: bool, due: bool
) -> None:
    """The topic stays stale, and a person decides about it."""
    pinned = {TOPIC: Pin("public", "account", 3, "k", relation=RELATION, stale="renamed", reload_due=True)}
    tables, merger = Tables(), KeepsPins()
    tables.pins = Pins("shop", pinned, TableLives(pinned), load_first=True)
    executor = stage.make_executor(tables, merger)
    executor.stage_due(DueCommand(TOPIC, ExecuteCommand(LoadCommand(1, name), reload=has_begun), 0))
    executor.execute(actions.CommitChunk(1, Lsn(10)), at_us=0)
    assert [(pin.stale, pin.reload_due) for pin in tables.pins.all.values()] == [("renamed", due)]
    assert [bool(written) for _, written in merger.written] == [not due]
