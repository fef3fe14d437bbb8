"""A load's turn, readers' threads and merger as they are, around a table, a topic and wishes in
memory: what people wish of it while other wishes of theirs wait, and what no snapshot shows yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from twofold.bridge import initial
from twofold.config import BackfillConfig
from twofold.kafka.backfill_commands import TopicCommand
from twofold.kafka.publisher import Publisher, TransactionRecords
from twofold.kafka.row_batch import SKIPPED, Record, RowBatch
from twofold.kafka.topic_rules import KnownTopic
from twofold.lives.chunk_rule import Snapshot
from twofold.lives.exchanged import CommandExecuted
from twofold.lives.load_progress import LoadProgress
from twofold.loads.chunk import (
    KEY_HEAD,
    Chunk,
    DueCommand,
    DueOfLoad,
    ReloadTruncate,
    SnapshotSeen,
    TableEncoding,
)
from twofold.loads.load_merger import LoadMerger
from twofold.loads.load_pool import LoadPool
from twofold.loads.reader import AskEncoding, Reader
from twofold.loads.watched_topic import EnvelopeReader
from twofold.run.loading import Loading
from twofold.source.messages import Relation
from twofold.source.table_descriptions import DescribedTables
from twofold.spool import Spool
from twofold.tables.pins import Pins
from twofold.tables.table_lives import TableLives
from twofold_avro.records import Commit, Pin, Progress, SkippedRow
from twofold_avro.shapes import TableShape
from twofold_avro.transcode import Packer, RowPlan
from twofold_common.positions import Lsn, PreparedIdentity

TOPIC = "bank.public.account"
HEAD = b"\0\0\0\0\1"
CHUNK_ROWS = 2
WITHIN_S = 10
ROWS = {b"%c" % letter: b"1 r" for letter in b"ABCDEFGH"}
TRUNCATE = (b"", b"1 t")
COMMIT = Commit(1, "backfill", 100, 0, 0, rows=0, prepared=())
PROGRESS = Progress(100, 1, "7", 1, "bank", "s", 1, 0)
SHAPE = TableShape(7, "public", "account", (), "nothing")
ENCODING = TableEncoding(SHAPE, 1, RowPlan.__new__(RowPlan), None)
"""Nobody asks it: rows are ready."""


State = Literal["ready", "waiting", "running", "paused"]


def pin(state: State, place: LoadProgress | None = None, *, keyless: bool = False) -> Pin:
    bound = None if place is None else place.to_bytes()
    return Pin("public", "account", 1, None if keyless else '"bytes"', backfill=state, bound=bound)


def record(key: bytes | None, value: bytes) -> Record:
    return {"key": None if key is None else HEAD + key, "value": value}


class Looking(EnvelopeReader):
    """A value here is its transaction and its op; * behind it: an unchanged value was left out."""

    def read(self, value: bytes) -> tuple[int, str, bool]:
        xid, op = value.decode().split()
        return int(xid), op.rstrip("*"), op.endswith("*")

    read_place = read


class Topic:
    """Takes the publisher's place; keeps what is committed."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes | None, bytes]] = []
        self.pins: dict[str, Pin] = {}
        self.commits: list[Commit] = []
        self._open: list[tuple[bytes | None, bytes]] = []
        self.removed: list[tuple[str, int, str]] = []

    def remove_skip_command(self, *command: Any) -> None:
        self.removed.append(command)

    def produce(self, batch: RowBatch) -> None:
        for _, _, records in batch.partitions():
            for row in records:
                key, value = row["key"], row["value"]
                assert value is not None
                self._open.append((None if key is None else key[KEY_HEAD:], value))

    def commit_main(self, records: TransactionRecords) -> Commit | None:
        self.rows += self._open
        if records.commit is not None:
            self.commits.append(records.commit)
        self._open = []
        self.pins |= records.pins
        return records.commit


class Table(Reader):
    """What is read of a table in memory, two rows a chunk."""

    estimate = 0

    def __init__(self, world: World) -> None:
        self._world = world

    def writers(self) -> tuple[()]:
        return ()

    def wait_for_all(self) -> bool:
        return True

    def current_snapshot(self) -> SnapshotSeen:
        return SnapshotSeen(TOPIC, self._world.snapshot)

    def forget_encoding(self) -> None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...

    def make_truncate(self, *, ask: AskEncoding) -> ReloadTruncate:
        return ReloadTruncate(TOPIC, ENCODING, [[record(*TRUNCATE)]], Lsn(1), 0)

    def read(self, progress: LoadProgress, *, ask: AskEncoding) -> Chunk:
        if self._world.keyless:
            rows = [record(None, key) for key in self._world.table]
            whole = self._world.spool.new()
            whole.append(Packer().pack(rows, 0, len(rows)))
            return self._chunk([], scanned=True, whole=whole)
        if progress.again:
            found = [(key, value) for key, value in self._world.table.items() if key in progress.again]
            return self._chunk(found, among=progress.again)
        found = [row for row in sorted(self._world.table.items()) if progress.after is None or row[0] > progress.after]
        found = found[:CHUNK_ROWS]
        return self._chunk(found, last=found[-1][0] if found else None, scanned=len(found) < CHUNK_ROWS)

    def _chunk(self, rows: list[tuple[bytes, bytes]], **more: Any) -> Chunk:
        values: dict[str, Any] = {
            "topic": TOPIC,
            "encoding": ENCODING,
            "lists": [[record(key, value) for key, value in rows]],
            "snapshot": self._world.snapshot,
            "end_lsn": Lsn(1),
            "scanned": False,
            "at_us": 0,
            "rows": len(rows),
        }
        return Chunk(**(values | more))


class Tables:
    """Tables whose definition never changes, and that all have their topics."""

    def __init__(self, pins: dict[str, Pin]) -> None:
        self.lives = TableLives(pins)
        self.pins = Pins("bank", pins, self.lives, load_first=True)

    def announce(self, relations: Iterable[Relation]) -> None:
        assert not list(relations)

    def copying(self, relation: Relation) -> TableEncoding:
        raise AssertionError(relation)

    def is_current(self, copying: TableEncoding) -> bool:
        return copying is ENCODING

    def emptied(self, topic: str) -> None:
        self.pins.emptied(topic, None)

    def is_loadable(self, relation: Relation) -> bool:
        raise AssertionError(relation)

    def note_descriptions(self, found: DescribedTables) -> None:
        raise AssertionError(found)


class Commands:
    """What a person has asked for since the last look."""

    def __init__(self) -> None:
        self._numbers = count()
        self._new: list[TopicCommand] = []

    def give(self, what: str) -> None:
        self._new.append(TopicCommand(next(self._numbers), TOPIC, what))

    def read_new(self) -> list[TopicCommand]:
        new, self._new = self._new, []
        return new


class Executor:
    """Has no prepared transactions; its worker is done at once."""

    def __init__(self, merger: LoadMerger) -> None:
        self._merger = merger
        self.done: list[tuple[str, CommandExecuted]] = []

    def prepared_with(self, topic: str) -> list[PreparedIdentity]:
        return []

    def forget(self, topic: str, snapshot: Snapshot) -> None:
        self._merger.forget(topic, snapshot)

    def executed_commands(self) -> list[tuple[str, CommandExecuted]]:
        done, self.done = self.done, []
        return done


class World:
    """One session over one table."""

    def __init__(self, spool: Spool, pinned: Pin, readers: int) -> None:
        self.spool = spool
        self.table = dict(ROWS)
        self.keyless = pinned.key_schema is None
        self.snapshot = Snapshot(1000, frozenset())
        self.topic = Topic()
        pins = {TOPIC: pinned}
        self.tables = Tables(pins)
        self.merger = LoadMerger(cast("Publisher", self.topic), pins=pins, envelopes=Looking(str), spool=spool)
        self.loads = LoadPool(
            BackfillConfig.model_validate({"readers": readers}), make_reader=lambda _: Table(self), delivered=lambda: ()
        )
        self.commands = Commands()
        self.executor = Executor(self.merger)
        self.loading = self.loading_with(Nobody())
        self._state = initial(applied_lsn=Lsn(100), confirmed_lsn=Lsn(100), sequence=0, pool=1)

    def loading_with(self, joined_tables: object, reload_up_to: int = 0) -> Loading:
        parts: Any = (self.loads, self.tables, self.executor, self.commands, joined_tables)
        return Loading(*parts, reload_up_to=reload_up_to, check_s=0)

    def turns_while_busy(self, *wishes: str) -> None:
        """In the midst of a transaction: nothing is carried out."""
        self._state = self._state._replace(unfinished=True)
        for wish in wishes:
            self.turn(wish)
        self._state = self._state._replace(unfinished=False)

    def turn(self, wish: str = "") -> None:
        """As `Run` does it, with a worker that is done at once."""
        if due := self.look(wish):
            self.publish(due)

    def look(self, wish: str = "") -> DueOfLoad | None:
        if wish:
            self.commands.give(wish)
        assert not list(self.loading.turn())
        return self.loading.due(self._state)

    def publish(self, due: DueOfLoad) -> None:
        records = TransactionRecords(COMMIT, PROGRESS, self.tables.pins.take_unwritten())
        match due:
            case Chunk():
                self.merger.publish_chunk(due, records)
            case ReloadTruncate():
                self.merger.publish_truncate(due, records)
            case DueCommand(topic, order):
                self.executor.done.append((topic, self.merger.execute_command(topic, order, records)[1]))

    def until(self, happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not happened():
            assert time.monotonic() < deadline
            self.turn()
            time.sleep(0.001)

    def until_ready(self) -> None:
        self.until(lambda: not self.tables.lives.is_in_backfill(TOPIC))

    def until_paused(self) -> None:
        """And what follows from it has begun or not."""
        self.until(lambda: self.tables.lives[TOPIC].is_paused)
        self.turn()

    def next_chunk(self) -> Chunk:
        """It is given to nobody."""
        deadline = time.monotonic() + WITHIN_S
        while (chunk := self.look()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert isinstance(chunk, Chunk)
        return chunk


class Nobody:
    def take_result(self) -> DescribedTables | None:
        return None


Making = Callable[..., World]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Making]:
    worlds: list[World] = []
    with closing(Spool(tmp_path, memory_max=1 << 20, disk_max=1 << 20)) as spool:

        def make(pinned: Pin, readers: int = 2) -> World:
            worlds.append(World(spool, pinned, readers))
            return worlds[-1]

        yield make
        for made in worlds:
            made.loads.close()


PAUSED = pin("paused", LoadProgress(after=b"D"))
BEHIND_D = [(key, value) for key, value in ROWS.items() if key > b"D"]


def test_a_start_overtakes_a_resume(world: Making) -> None:
    """Else the load from the beginning goes on where the paused one was, behind the truncate."""
    here = world(PAUSED)
    here.turns_while_busy("resume", "start")
    here.until_ready()
    assert here.topic.rows == [TRUNCATE, *ROWS.items()]


@pytest.mark.parametrize("readers", [1, 2])
def test_two_resumes_are_one(world: Making, readers: int) -> None:
    """Else two threads load the table, or the second load waits for ever for the first one's
    thread.
    """
    here = world(PAUSED, readers)
    here.turns_while_busy("resume", "resume")
    here.until_ready()
    assert here.topic.rows == BEHIND_D


def test_a_pause_behind_a_resume(world: Making) -> None:
    """Else the load goes on in a state in which the merger remembers no keys."""
    here = world(PAUSED)
    here.turns_while_busy("resume", "pause")
    here.until_paused()
    assert not here.loads.busy
    assert here.topic.pins[TOPIC].command == 1
    here.turn("resume")
    here.until_ready()
    assert here.topic.rows == BEHIND_D


def test_a_pause_before_the_load_has_begun(world: Making) -> None:
    here = world(pin("waiting"))
    here.turn("pause")
    here.until_paused()
    assert not here.loads.busy
    assert here.topic.pins[TOPIC].backfill == "paused"


@pytest.mark.parametrize("keyless", [True, False])
@pytest.mark.parametrize("wishes", [["resume"], ["pause", "resume"], ["pause", "pause", "resume"]])
def test_a_reload_that_had_not_begun_is_carried_on(world: Making, wishes: list[str], keyless: bool) -> None:
    """With its truncate."""
    here = world(pin("ready", keyless=keyless))
    here.turns_while_busy("start", *wishes)
    here.until_ready()
    rows = [(None, key) for key in ROWS] if keyless else list(ROWS.items())
    assert here.topic.rows == [TRUNCATE, *rows]


@pytest.mark.parametrize("last", ["pause", "resume", "cancel"])
def test_a_start_holds_beyond_what_comes_in_the_same_look_except_a_cancel(world: Making, last: str) -> None:
    here = world(PAUSED)
    here.commands.give("start")
    here.turn(last)
    if last == "pause":
        here.until_paused()
        here.turn("resume")
    here.until_ready()
    assert here.topic.rows == ([] if last == "cancel" else [TRUNCATE, *ROWS.items()])


def test_a_reload_that_had_not_begun_is_paused_over_a_restart(world: Making) -> None:
    before = world(PAUSED)
    before.turns_while_busy("start", "pause")
    before.until_paused()
    assert not before.loads.busy
    here = world(before.topic.pins[TOPIC])
    here.turn("resume")
    here.until_ready()
    assert here.topic.rows == [TRUNCATE, *ROWS.items()]


def test_a_table_that_is_published_again_keeps_the_number_of_the_last_command(world: Making) -> None:
    """Else a cancel that was carried out long ago would end the load after a restart."""
    here = world(PAUSED)
    for wish in ("resume", "cancel"):
        here.turn(wish)
    here.until_ready()
    assert here.topic.pins[TOPIC].command == 1
    here.tables.pins.restart([TOPIC], {TOPIC})
    here.tables.pins.pin_version(SHAPE, TOPIC, KnownTopic(1), None, (None, 1))
    for topic, watch in here.tables.lives.take_for_merger():
        here.merger.watch(topic, watch)
    here.until_ready()
    assert here.topic.pins[TOPIC].command == 1
    again = world(here.topic.pins[TOPIC])
    again.tables.pins.restart([TOPIC], {TOPIC})
    again.tables.pins.pin_version(SHAPE, TOPIC, KnownTopic(1), None, (None, 1))
    assert again.tables.pins[TOPIC].command == 1


@pytest.mark.parametrize("wish", ["pause", "resume"])
@pytest.mark.parametrize("keyless", [True, False])
def test_a_wish_that_comes_when_all_is_read(world: Making, wish: str, keyless: bool) -> None:
    """The last chunk is with the worker, or committed, and the turn does not know: the table is
    ready then, and is not loaded twice.
    """
    here = world(pin("waiting", keyless=keyless))
    while not (last := here.next_chunk()).scanned:
        here.publish(last)
    order = here.look(wish)
    assert order is not None
    here.publish(last)
    here.publish(order)
    here.until_ready()
    assert here.topic.pins[TOPIC].backfill == "ready"
    assert here.topic.rows == ([(None, key) for key in ROWS] if keyless else list(ROWS.items()))


def test_a_row_under_a_new_key_that_is_not_visible_yet(world: Making) -> None:
    """Published, its TOASTed value left out, and behind the place where the load is: it is read
    again until it is there.
    """
    here = world(pin("running", LoadProgress(after=b"D", again=frozenset({b"BB"}))))
    moved = RowBatch()
    moved.lists(TOPIC, 1)[0].extend([record(b"B", b"2000 d"), record(b"BB", b"2000 c*")])
    here.merger.produce(moved)
    here.publish(here.next_chunk())
    assert LoadProgress.from_bytes(here.topic.pins[TOPIC].bound).again == {b"BB"}
    here.table[b"BB"] = here.table.pop(b"B")
    here.snapshot = Snapshot(3000, frozenset())
    here.until_ready()
    assert sorted(here.topic.rows[2:]) == [(b"BB", ROWS[b"B"]), *BEHIND_D]


def test_a_commit_record_has_the_tables_that_were_in_backfill_when_it_was_made(world: Making) -> None:
    """The thread that reads may add one meanwhile: the merger hears of it with the next job."""
    here, other = world(pin("running")), TableShape(7, "public", "other", (), "nothing")
    here.tables.pins.pin_version(other, "bank.public.other", KnownTopic(1), None, (None, 1))
    here.merger.commit(TransactionRecords(COMMIT, PROGRESS))
    for topic, watch in here.tables.lives.take_for_merger():
        here.merger.watch(topic, watch)
    here.merger.commit(TransactionRecords(COMMIT, PROGRESS, here.tables.pins.take_unwritten()))
    assert [commit.backfilling for commit in here.topic.commits] == [(TOPIC,), (TOPIC, "bank.public.other")]


def test_a_commit_record_has_the_tables_that_are_stale_by_the_pins_it_travels_with(world: Making) -> None:
    stale = replace(pin("ready"), stale="rewritten")
    here, other = world(stale), {"bank.public.other": replace(stale, table="other")}
    for pins in ({}, other, {TOPIC: pin("ready")}):
        here.merger.commit(TransactionRecords(COMMIT, PROGRESS, pins))
    assert [commit.stale for commit in here.topic.commits] == [(TOPIC,), (TOPIC, *other), (*other,)]


def note(key: bytes | None, lsn: int, row: str = "x") -> RowBatch:
    """That a row was skipped, among the rows of a transaction."""
    batch = RowBatch()
    batch.lists(SKIPPED, 1)[0].append({"topic": TOPIC, "lsn": lsn, "row": row, "key": key})
    return batch


def rows(*keys_and_values: tuple[bytes | None, bytes]) -> RowBatch:
    batch = RowBatch()
    batch.lists(TOPIC, 1)[0].extend(record(key, value) for key, value in keys_and_values)
    return batch


def test_a_commit_record_and_its_pin_have_what_the_topic_lacks(world: Making) -> None:
    here = world(pin("ready"))

    def commit() -> list[tuple[int, bytes | None]]:
        here.merger.commit(TransactionRecords(COMMIT, PROGRESS))
        said = here.topic.commits[-1].skipped
        assert here.topic.pins.get(TOPIC, pin("ready")).skipped == said
        assert {row.topic for row in said} <= {TOPIC}
        return [(row.lsn, row.key) for row in said]

    here.merger.produce(note(b"A", 50))
    here.merger.produce(note(None, 60))
    assert commit() == [(50, b"A"), (60, None)]
    assert here.topic.removed == [(TOPIC, 50, "x"), (TOPIC, 60, "x")]
    here.merger.produce(rows((b"B", b"70 c"), (b"A", b"71 u*"), (b"A", b"49 u")))
    assert commit() == [(50, b"A"), (60, None)]
    assert [key for key, _ in here.topic.rows] == [b"B", b"A", b"A"]
    here.merger.produce(rows((b"A", b"72 u")))
    assert commit() == [(60, None)]
    together = note(b"C", 80)
    together.add(rows((b"C", b"81 u")))
    here.merger.produce(together)
    assert commit() == [(60, None)]
    here.merger.produce(rows((None, b"61 c")))
    assert commit() == [(60, None)]
    here.merger.produce(rows((None, b"62 t")))
    assert commit() == []


def test_the_next_run_knows_what_a_topic_lacks_and_a_reload_ends_it(world: Making) -> None:
    here = world(replace(pin("ready"), skipped=(SkippedRow(TOPIC, 50, b"A"),)))
    other = {"bank.public.other": replace(pin("ready"), table="other")}
    here.merger.commit(TransactionRecords(COMMIT, PROGRESS, other))
    assert list(here.topic.commits[-1].skipped) == [SkippedRow(TOPIC, 50, b"A")]
    here.turn("start")
    here.until(lambda: here.topic.rows)
    assert here.topic.rows[0][1] == TRUNCATE[1]
    assert not here.topic.commits[-1].skipped
    assert not here.topic.pins[TOPIC].skipped


class Looks:
    """Finds first no table, then one."""

    def __init__(self) -> None:
        relation = Relation(7, "public", "account", "default", ())
        self._results = [DescribedTables((), {}, {}), DescribedTables((relation,), {}, {7: 5})]

    def take_result(self) -> DescribedTables | None:
        return self._results.pop(0) if self._results else None


def test_a_stale_table_that_no_look_has_found_yet_waits_for_one(world: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message told that it is published again."""
    for name in ("announce", "note_descriptions"):
        monkeypatch.setattr(Tables, name, lambda *_: None)
    monkeypatch.setattr(Tables, "is_loadable", lambda *_: True)
    here = world(replace(pin("ready"), relation=7, stale="it was not published for a time", reload_due=True))
    here.loading = here.loading_with(Looks(), reload_up_to=10)
    assert not list(here.loading.turn())
    assert here.tables.pins[TOPIC].reload_due
    assert not here.tables.lives.is_emptying(TOPIC)
    assert not list(here.loading.turn())
    assert here.tables.lives.is_emptying(TOPIC)
    here.until_ready()
