"""The backfill's rule in random histories: plain and prepared transactions, truncates, partial
updates and changes of keys run while chunks are read under snapshots, one ahead of the other, with
restarts. The product's own rule decides.

A commit is in the log, and may be streamed and published, some time before snapshots see it. At the
end the topic, folded by key, must be the table. Each part of the rule is left out once, and then
some history ends wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from twofold.lives.chunk_rule import ChangeMemory, Snapshot

KEYS = [bytes([k]) for k in range(4)]
CHUNKS = (KEYS[:1], KEYS[1:3], KEYS[3:])
EPOCH = 3 << 32
STEPS = 70

Row = tuple[int, int]
"""A version, and the version of a TOASTed value, which an update may leave as it is."""
Change = tuple[bytes, Row | None, bytes | None]
"""A key, its new row, and, where the stream leaves the TOASTed value out, the key that the row had
before.
"""
TRUNCATE = b"*"


@dataclass
class Transaction:
    xid: int
    changes: list[Change] = field(default_factory=list)
    sees: dict[bytes, Row] = field(default_factory=dict)

    @property
    def keys(self) -> set[bytes]:
        return {key for key, _, _ in self.changes}


@dataclass
class Chunk:
    keys: list[bytes]
    rows: dict[bytes, Row]
    snapshot: Snapshot
    position: int
    again: bool


class History:
    """PostgreSQL, the stream and the topic, with one table."""

    def __init__(self, seed: int, mutant: str) -> None:
        self.random, self.mutant = random.Random(seed), mutant
        self.table: dict[bytes, Row] = {k: (0, 0) for k in KEYS if self.random.random() < 0.8}
        self.log: list[tuple[str, Transaction]] = []
        self.active: list[Transaction] = []
        self.prepared: list[Transaction] = []
        self.invisible: list[Transaction] = []
        self.topic: list[tuple[bytes, Row | None, bytes | None, Transaction | None]] = []
        self.next_xid, self.version, self.streamed = EPOCH + 1, 0, 0
        self.memory = ChangeMemory()
        self.chunks = [list(chunk) for chunk in CHUNKS]
        self.again: set[bytes] = set()
        self.pending: Chunk | None = None
        self.ahead: Chunk | None = None
        self.barrier: list[Transaction] | None = None
        self.open: set[int] = set()

    def locked(self) -> set[bytes]:
        return {key for t in self.active + self.prepared + self.invisible for key in t.keys}

    def write(self, t: Transaction) -> None:
        others = self.locked() - t.keys
        if not t.changes and not others and self.random.random() < 0.1:
            t.changes.append((TRUNCATE, None, None))
            return
        free = [k for k in KEYS if k not in others] if TRUNCATE not in others | t.keys else []
        if not free:
            return
        key = self.random.choice(free)
        before = self.row_for(t, key)
        self.version += 1
        if before is not None and self.random.random() < 0.2:
            t.changes.append((key, None, None))
        elif before is not None and self.random.random() < 0.4:
            to = self.random.choice([key, *(k for k in free if self.row_for(t, k) is None)])
            if to != key:
                t.changes.append((key, None, None))
            t.changes.append((to, (self.version, before[1]), key))
        else:
            t.changes.append((key, (self.version, self.version), None))

    def row_for(self, t: Transaction, key: bytes) -> Row | None:
        """As the transaction sees it."""
        return next((row for k, row, _ in reversed(t.changes) if k == key), self.table.get(key))

    def end(self, t: Transaction) -> None:
        self.active.remove(t)
        match self.random.random():
            case chance if chance < 0.4:
                self.log.append(("commit", t))
                self.invisible.append(t)
            case chance if chance < 0.85:
                self.log.append(("prepare", t))
                self.prepared.append(t)

    def resolve(self, t: Transaction) -> None:
        self.prepared.remove(t)
        if self.random.random() < 0.7:
            self.log.append(("commit prepared", t))
            self.invisible.append(t)
        else:
            self.log.append(("rollback prepared", t))

    def appear(self, t: Transaction) -> None:
        """Its commit becomes visible, its locks go."""
        self.invisible.remove(t)
        for key, row, _ in t.changes:
            if key == TRUNCATE:
                self.table.clear()
            elif row is None:
                self.table.pop(key, None)
            else:
                self.table[key] = row

    def stream(self) -> None:
        kind, t = self.log[self.streamed]
        self.streamed += 1
        in_backfill = bool(self.chunks or self.pending or self.ahead or self.again)
        if kind == "prepare" and self.mutant == "open_in_backfill" and in_backfill:
            self.topic += [(*change, t) for change in t.changes]
            self.open.add(t.xid)
        elif kind in {"commit", "commit prepared"}:
            if t.xid not in self.open:
                self.topic += [(*change, None) for change in t.changes]
            self.remember(t, in_backfill=in_backfill)
            self.settle(t, keep=True)
        elif kind == "rollback prepared":
            self.settle(t, keep=False)

    def settle(self, t: Transaction, *, keep: bool) -> None:
        self.topic = [(k, r, p, None if o is t else o) for k, r, p, o in self.topic if keep or o is not t]

    def remember(self, t: Transaction, *, in_backfill: bool) -> None:
        for key, _, left_out in t.changes:
            if key == TRUNCATE:
                self.memory.truncated(t.xid % (1 << 32))
                continue
            self.memory.changed(t.xid % (1 << 32), key, partial=left_out is not None and self.mutant != "no_again")
            if left_out not in {None, key} and in_backfill and self.mutant != "keys_that_stay":
                self.again.add(key)

    def restart(self) -> None:
        """The session's memory is lost; what is published, and how far the backfill is, are not."""
        self.memory = ChangeMemory()
        self.chunks = [chunk.keys for chunk in (self.pending, self.ahead) if chunk and not chunk.again] + self.chunks
        self.pending = self.ahead = None
        if self.mutant != "no_barrier":
            self.barrier = [*self.active, *self.invisible]

    def read(self) -> None:
        if self.barrier is not None:
            self.barrier = [t for t in self.barrier if t in self.active + self.invisible]
            if self.barrier:
                return
        self.barrier = None
        again = bool(self.unclear())
        keys = sorted(self.unclear()) if again else self.chunks.pop(0)
        in_progress = [t.xid for t in self.active + self.prepared + self.invisible]
        snapshot = Snapshot.parse(
            f"{min([*in_progress, self.next_xid])}:{self.next_xid}:{','.join(map(str, in_progress))}"
        )
        if self.mutant == "forget":
            self.memory = ChangeMemory()
        rows = {k: self.table[k] for k in keys if k in self.table}
        chunk = Chunk(keys, rows, snapshot, len(self.log), again)
        if self.pending:
            self.ahead = chunk
        else:
            self.pending = chunk

    def unclear(self) -> set[bytes]:
        """The keys to be read again, except those that just are."""
        return self.again - set(self.pending.keys if self.pending and self.pending.again else ())

    def publish(self) -> None:
        assert self.pending
        chunk, self.pending, self.ahead = self.pending, self.ahead, None
        drop = self.memory.judge(chunk.snapshot)
        among = frozenset(chunk.keys) if chunk.again else frozenset()
        unread = drop.unread(chunk.rows, among if self.mutant != "not_there_yet" else frozenset())
        if self.mutant != "no_drop":
            gone = set(chunk.rows) if drop.everything else drop.keys
            chunk.rows = {k: row for k, row in chunk.rows.items() if k not in gone}
        self.again = self.again - among | unread
        self.topic += [(k, row, None, None) for k, row in chunk.rows.items()]
        if self.mutant != "keep_none":
            self.memory.forget(chunk.snapshot)

    def step(self, *, late: bool) -> None:
        pick, chance = self.random.choice, self.random.random()
        if chance < 0.12 and not late:
            self.active.append(Transaction(self.next_xid))
            self.next_xid += 1
        elif chance < 0.35 and self.active:
            self.write(pick(self.active))
        elif chance < 0.47 and self.active:
            self.end(pick(self.active))
        elif chance < 0.55 and self.prepared:
            self.resolve(pick(self.prepared))
        elif chance < 0.575 and self.invisible:
            self.appear(pick(self.invisible))
        elif chance < 0.88 and self.streamed < len(self.log):
            self.stream()
        elif chance < 0.92 and self.ahead is None and (self.chunks or self.unclear()):
            self.read()
        elif chance < 0.94:
            self.restart()
        if self.pending and self.streamed >= self.pending.position:
            self.publish()

    def finish(self) -> None:
        """Everything ends, and the backfill too."""
        for t in list(self.active):
            self.end(t)
        for t in list(self.prepared):
            self.resolve(t)
        while self.pending or self.chunks or self.again or self.invisible or self.streamed < len(self.log):
            if self.pending is None and (self.chunks or self.again):
                self.read()
            if self.streamed < len(self.log):
                self.stream()
            elif self.invisible:
                self.appear(self.invisible[0])
            if self.pending and self.streamed >= self.pending.position:
                self.publish()

    def folded(self) -> dict[bytes, Row]:
        found: dict[bytes, Row] = {}
        values: dict[bytes, int] = {}
        """The last TOASTed value under each key: one whose row has got another key was there in the
        record before.
        """
        for key, row, left_out, _ in self.topic:
            if key == TRUNCATE:
                found.clear()
            elif row is None:
                found.pop(key, None)
            else:
                values[key] = row[1] if left_out is None else values.get(left_out, -1)
                found[key] = row[0], values[key]
        return found


def wrong(runs: int, mutant: str = "") -> list[int]:
    """The seeds of the histories that end wrong."""
    seeds: list[int] = []
    for seed in range(runs):
        history = History(seed, mutant)
        for step in range(STEPS):
            history.step(late=step > STEPS * 2 // 3)
        history.finish()
        if history.folded() != history.table:
            seeds.append(seed)
            if mutant:
                break
    return seeds


def test_the_topic_folded_by_key_is_the_table() -> None:
    assert wrong(500) == []


@pytest.mark.slow
def test_the_topic_folded_by_key_is_the_table_in_many_histories() -> None:
    assert wrong(40_000) == []


@pytest.mark.parametrize(
    "mutant",
    [
        *("no_drop", "forget", "open_in_backfill", "no_again", "keys_that_stay"),
        *(pytest.param(rare, marks=pytest.mark.slow) for rare in ("not_there_yet", "no_barrier")),
    ],
)
def test_without_this_rule_some_history_ends_wrong(mutant: str) -> None:
    assert wrong(20_000, mutant)


def test_forgetting_what_is_visible_is_for_memory_alone() -> None:
    assert wrong(200, "keep_none") == []


def test_visibility_is_by_xid_and_its_epoch() -> None:
    snapshot = Snapshot.parse(f"{EPOCH + 5}:{EPOCH + 9}:{EPOCH + 5},{EPOCH + 7}")
    assert [snapshot.sees(xid) for xid in (4, 5, 6, 7, 8, 9, 10)] == [True, False, True, False, True, False, False]
    assert snapshot.sees((1 << 32) - 1), "of the epoch before"
    assert not Snapshot.parse(f"{EPOCH - 2}:{EPOCH - 2}:").sees(3), "of the epoch after"


def test_what_a_snapshot_has_seen_is_forgotten() -> None:
    memory = ChangeMemory()
    memory.changed(5, b"a")
    memory.changed(8, b"b")
    memory.forget(Snapshot.parse("6:8:"))
    assert len(memory) == 1
    assert memory.judge(Snapshot.parse("6:8:")).keys == {b"b"}
