"""A world of the lives' model: source, Kafka, the connector's memory, and what people have asked.

Everything is an immutable tuple, so that `model.explore` visits every world once. The connector's
memory (`Connector`) is gone after a crash; Kafka and the source stay. What is modelled, and why so:

- A topic is one partition: rows of committed transactions are folded as a consumer that folds by
  key does it, up to the first row whose Kafka transaction is open.
- The worker has one queue. Rows are carried out at once when they come to its head, because nobody
  can tell that from later; commits, whose answers matter, at any moment.
- A chunk has one row. With `ahead` its successor is read while it is published.
"""

from __future__ import annotations

from typing import NamedTuple

from model.lives.source import Source
from twofold.bridge import State
from twofold.lives.chunk_rule import ChangeMemory, Snapshot
from twofold.lives.exchanged import NO_COMMAND, CommandExecuted, TopicState
from twofold.lives.load_life import LoadLife
from twofold.lives.load_progress import LoadProgress
from twofold.lives.topic_life import TopicLife
from twofold_common.positions import Lsn, PreparedIdentity

MAIN = -1
COMMITTED = -2


class Row(NamedTuple):
    """A row in a topic: `version` None is a delete, `big` None was left out."""

    key: str
    xid: int
    version: int | None
    big: int | None = None
    left_out: str | None = None
    """The row's former key, under which consumers find what was left out."""

    @property
    def truncates(self) -> bool:
        return self.key == "*"


class Folded(NamedTuple):
    """A topic as a consumer has it: rows, and the last large value under each key."""

    rows: tuple[tuple[str, int, int], ...] = ()
    bigs: tuple[tuple[str, int], ...] = ()
    again: bool = False
    """A row of a table without a key is there twice."""


class Topic(NamedTuple):
    """Folded, and what follows the first row that is not committed, each with its producer."""

    folded: Folded
    tail: tuple[tuple[int, Row], ...]


class TablePin(NamedTuple):
    state: TopicState
    progress: LoadProgress
    executed: int = NO_COMMAND


class Kafka(NamedTuple):
    """What survives the connector. Tables go by their place in the scenario."""

    topics: tuple[Topic, ...]
    pins: tuple[TablePin | None, ...]
    asked: tuple[tuple[int, int, str], ...]  # number, table, command: the last one of each key
    owed: frozenset[int]  # tables whose topics a person wants to be emptied
    applied_lsn: int
    ledger: frozenset[PreparedIdentity]


Changes = tuple[tuple[int, bool, frozenset[bytes], frozenset[bytes]], ...]
"""A `ChangeMemory`, frozen."""


class Watched(NamedTuple):
    """What the merger has of a table."""

    life: TopicLife
    changes: Changes = ()
    delayed: tuple[Row, ...] = ()
    stale: bool = False
    """The pin is to be written."""


class Chunk(NamedTuple):
    kind: str  # truncate, range, whole, gone
    rows: tuple[tuple[str, int, int], ...]
    snapshot: Snapshot
    end: Lsn
    last: bytes | None = None
    among: frozenset[bytes] = frozenset()
    scanned: bool = False


class Load(NamedTuple):
    """A load on its thread. `serial`: the answers of a stopped one reach nobody."""

    serial: int
    progress: LoadProgress
    resumed: bool
    holders: frozenset[str] | None = None
    through: bool = False  # the barrier
    offered: Chunk | None = None
    given: bool = False  # the worker has it
    ahead: Chunk | None = None
    done: bool = False


class Connector(NamedTuple):
    """The memory of one run."""

    bridge: State
    place: int  # the next record of the log
    lives: tuple[LoadLife, ...]
    loads: tuple[Load | None, ...]
    serial: int
    pinned: frozenset[int]
    unwritten: frozenset[int]  # tables whose new pins the next commit carries
    answers: tuple[tuple[int, CommandExecuted], ...]
    merger: tuple[Watched, ...]
    noted: tuple[tuple[PreparedIdentity, str], ...]  # for the ledger, with the next commit
    queue: tuple[object, ...]


class World(NamedTuple):
    source: Source
    kafka: Kafka
    connector: Connector | None
    confirmed: int
    crashes: int
    given: int  # how many of the people's commands


def freeze(memory: ChangeMemory) -> Changes:
    return tuple(
        sorted(
            ((xid, c.truncated, frozenset(c.keys), frozenset(c.partial)) for xid, c in memory._changes.items()),
            key=lambda each: each[0],
        )
    )


def thaw(changes: Changes) -> ChangeMemory:
    memory = ChangeMemory()
    for xid, truncated, keys, partial in changes:
        if truncated:
            memory.truncated(xid)
        for key in keys:
            memory.changed(xid, key, partial=key in partial)
    return memory


def fold(folded: Folded, row: Row, *, keyless: bool) -> Folded:
    """Fold one more row. Of a table without a key `key` is the whole row."""
    rows, bigs, twice = {key: (version, big) for key, version, big in folded.rows}, dict(folded.bigs), folded.again
    if row.truncates:
        return Folded((), folded.bigs if not keyless else (), twice)
    if row.version is None:
        rows.pop(row.key, None)
    else:
        twice = twice or (keyless and row.key in rows)
        if row.big is not None:
            bigs[row.key] = row.big
        elif not keyless:
            bigs[row.key] = bigs.get(row.left_out or "", -1)
        rows[row.key] = row.version, bigs.get(row.key, 0)
    return Folded(tuple(sorted((key, *value) for key, value in rows.items())), tuple(sorted(bigs.items())), again=twice)


def settled(topic: Topic, *, keyless: bool) -> Topic:
    """Fold what is committed before the first open row."""
    folded, tail = topic
    while tail and tail[0][0] == COMMITTED:
        folded, tail = fold(folded, tail[0][1], keyless=keyless), tail[1:]
    return Topic(folded, tail)
