"""`twofold tail`: the changes of a connector's topics as a read_committed consumer gets them, by
source transactions.

The commit records lead: each says where its rows are, and with that all of them are visible. So a
change is never shown without its transaction, and never before it is committed. Reads Kafka and the
registry, changes nothing, and leaves no consumer group behind.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal

from twofold.config import Config
from twofold.errors import SetupError
from twofold.inspect.changes import ChangeReader, TopicChange
from twofold.kafka.decoding import Decoder, place_of
from twofold.kafka.kafka_settings import kafka_settings, names_of, open_registry
from twofold.kafka.metadata import ask_brokers
from twofold.kafka.topic_reader import PartitionId, TopicFollower, TopicReader
from twofold_avro.records import Commit, Range
from twofold_common.positions import source_place

_WAIT_S = 1.0
_FETCH_MS = 200
SORTED_MAX = 10_000
"""The most rows that are put into the order of their transactions."""


@dataclass(frozen=True, slots=True)
class TailBegin:
    """The begin of changes with one commit: a source transaction, or a part of a load."""

    kind: Literal["batch", "prepared", "backfill", "reload"]
    sequence: int
    """The number of the changes' commit record."""
    transaction: str | None = None
    """The transaction; None for a load, for outbox events, and for more rows than are sorted."""
    gid: str | None = None
    event: str = "begin"


@dataclass(frozen=True, slots=True)
class TailEnd:
    """The end of changes that were committed together."""

    sequence: int
    transaction: str | None
    changes: int
    event: str = "end"


class Tail:
    """A reader of changes that does not end; `topics` None: all topics of the prefix."""

    def __init__(self, config: Config, topics: Collection[str] | None) -> None:
        settings, self._names = kafka_settings(config), names_of(config)
        self._topics = topics
        ask_brokers(settings)
        registry = open_registry(config)
        self._decoder, self._changes = Decoder(registry), ChangeReader(registry, self._names)
        self._reader = TopicReader(settings)
        commits = PartitionId(self._names.commits, 0)
        if not self._reader.partitions_of({commits.topic}):
            raise SetupError(f"the topic {commits.topic} does not exist at {config.kafka.bootstrap}: run twofold init")
        start = self._reader.bounds([commits])[commits].stable
        self.place = f"{commits} from offset {start}"
        self._follower = TopicFollower(settings, {commits: start}, fetch_ms=_FETCH_MS)

    def changes(self) -> Generator[TailBegin | TopicChange | TailEnd, None, None]:
        """Yield the changes that become visible, for as long as the caller asks."""
        try:
            while True:
                commits = [self._decoder.decode_message(Commit, each) for each in self._follower.read_new(_WAIT_S)]
                for together in _read_together(commits):
                    yield from self._rows_of(together)
        finally:
            self._follower.close()

    def _rows_of(self, commits: list[Commit]) -> Iterator[TailBegin | TopicChange | TailEnd]:
        """Yield the rows of commit records that are read at once."""
        ranges = [(commit, each) for commit in commits for each in self._wanted(commit)]
        stretches: dict[PartitionId, tuple[int, int]] = {}
        for _, each in ranges:
            place = PartitionId(each.topic, each.partition)
            first, end = stretches.get(place, (each.first, 0))
            stretches[place] = min(first, each.first), max(end, each.last + 1)
        if len(commits) == 1 and sum(each.count for _, each in ranges) > SORTED_MAX:
            yield TailBegin(commits[0].kind, commits[0].sequence)
            count = 0
            for message in self._reader.read(stretches, may_begin_later=True):
                yield self._changes.read(place_of(message), message.key(), message.value())
                count += 1
            yield TailEnd(commits[0].sequence, None, count)
            return
        read: dict[PartitionId, list[TopicChange]] = {}
        for message in self._reader.read(stretches, may_begin_later=True):
            change = self._changes.read(place_of(message), message.key(), message.value())
            read.setdefault(PartitionId(change.topic, change.partition), []).append(change)
        for commit in commits:
            rows = (
                change
                for each in self._wanted(commit)
                for change in read.get(PartitionId(each.topic, each.partition), ())
                if each.first <= change.offset <= each.last
            )
            yield from _by_transaction(commit, rows)

    def _wanted(self, commit: Commit) -> list[Range]:
        return [each for each in commit.ranges if self._topics is None or each.topic in self._topics]


def _read_together(commits: Iterable[Commit]) -> Iterator[list[Commit]]:
    """Split commit records into those that one read brings.

    The rows of an open prepared transaction may lie far before those of its neighbours.
    """
    together: list[Commit] = []
    rows = 0
    for commit in commits:
        is_alone = commit.kind == "prepared"
        if together and (is_alone or rows + commit.rows > SORTED_MAX):
            yield together
            together, rows = [], 0
        together.append(commit)
        rows += commit.rows
        if is_alone:
            yield together
            together, rows = [], 0
    if together:
        yield together


def _by_transaction(commit: Commit, rows: Iterable[TopicChange]) -> Iterator[TailBegin | TopicChange | TailEnd]:
    """Put a commit record's rows into the order of the source's commits and changes."""
    gids = {each.id: each.gid for each in commit.prepared}
    outcomes = {each.id: each.commit_lsn for each in commit.prepared}
    ordered: list[tuple[tuple[int, int, str], TopicChange]] = []
    for row in rows:
        if row.op == "event":
            place = (0, 0, "")
        elif row.op == "tombstone":  # it says nothing of itself, and follows its delete
            place = ordered[-1][0] if ordered else (0, 0, "")
        else:
            place = _place_of(row, outcomes)
        ordered.append((place, row))
    ordered.sort(key=itemgetter(0))
    for (_, identity), group in groupby(ordered, key=lambda each: (each[0][0], each[0][2])):
        changes = [row for _, row in group]
        yield TailBegin(commit.kind, commit.sequence, identity or None, gids.get(identity))
        yield from changes
        yield TailEnd(commit.sequence, identity or None, len(changes))


def _place_of(row: TopicChange, outcomes: Mapping[str, int]) -> tuple[int, int, str]:
    source, transaction = row.value["source"], row.value["transaction"] or {"id": None, "total_order": 0}
    return source_place(
        transaction["id"], transaction["total_order"], source["lsn"], source.get("commit_lsn"), outcomes
    )
