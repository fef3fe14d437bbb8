"""A sharded table in the world of `group_world`: rows that move between sources in global
transactions, while tables are loaded and the mirror is killed between its merge and its cut.

Each global transaction makes a row, changes it, or moves it to another source. The mirror folds
what each member's commit records say, and merges the folds of all members at once, by the row's key
and its member. In every cut that no load holds back each row is there exactly once, as the last
transaction of the cut left it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from model.group_loads import FIRST, ChunkRead, CommitRecord
from model.group_world import GroupWorld, Source
from model.logs import check

Fold = Mapping[str, str | None]
"""By key, the value that a member's row has now; None: it is deleted."""
Rows = dict[tuple[str, str], str]
"""By member and key."""


class Change(NamedTuple):
    """What one branch does to one row; None deletes it."""

    key: str
    value: str | None


class ShardedTable:
    """What the mirror has: a version that is merged, and the last one that a cut names."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.published: Rows = {}

    def merge(self, folds: Mapping[str, Fold]) -> None:
        """Merge what all members changed."""
        merge_shards(self.rows, folds)

    def publish(self) -> None:
        self.published = dict(self.rows)

    def give_up(self) -> None:
        """A job starts: no cut has what a killed one merged."""
        self.rows = dict(self.published)


def is_of_first(key: str) -> bool:
    """Whether the first of two chunks has the row."""
    return int(key[1:]) % 2 == 0


def merge_shards(rows: Rows, folds: Mapping[str, Fold]) -> None:
    """Apply the folds in the order of the members: another order has the same result."""
    for member, fold in folds.items():
        for key, value in fold.items():
            if value is None:
                rows.pop((member, key), None)
            else:
                rows[member, key] = value


class ShardSource(Source):
    """A source that knows the order of its commits, and may load its table in two chunks."""

    def __init__(self, world: GroupWorld, name: str, *, divides: bool) -> None:
        super().__init__(world, name)
        self.order: list[str] = []
        self._divides = divides

    def append(self, kind: str, gid: str = "") -> None:
        super().append(kind, gid)
        if kind == "K":
            self.order.append(gid)

    def record_chunk(self, chunk: ChunkRead | None) -> CommitRecord:
        if self._divides and chunk is not None and chunk.table == FIRST:
            self._divides, self.handed_over = False, False
            return CommitRecord((), part=chunk)
        return super().record_chunk(chunk)


class ShardWorld(GroupWorld):
    """One random history, of which every cut's rows are checked."""

    table_class = ShardedTable
    waits_for_loads = True
    """A table is not read while a member's load is not shown."""

    def __init__(self, seed: int) -> None:
        self._changes: dict[str, tuple[Change, ...]] = {}
        """By gid."""
        super().__init__(seed)
        self.table = self.table_class()
        self._place: dict[str, str] = {}
        """By key, the source that has the row once all global transactions have ended."""
        self._locked: dict[str, str] = {}
        """By key, the global transaction that changes it."""
        self._moves_to: dict[str, tuple[str, str]] = {}
        self._made = 0
        self.moves = self.looked_at = self.kills = 0

    def make_source(self, name: str) -> Source:
        return ShardSource(self, name, divides=self._step_random.random() < 0.5)

    def _begin(self) -> None:
        super()._begin()
        g = f"g{len(self.branches) - 1}"
        streamed = {source.name: gid for source, kind, gid in self._phases[g] if kind == "P"}
        if not streamed:
            return
        free = [key for key, place in self._place.items() if place in streamed and key not in self._locked]
        if not free or self._made < 2:
            key, place = f"k{self._made}", self._step_random.choice(sorted(streamed))
            self._made += 1
            self._changes[streamed[place]] = (Change(key, g),)
        else:
            key = self._step_random.choice(free)
            old = self._place[key]
            place = self._step_random.choice(sorted({*streamed} - {old}) or [old])
            self.moves += old != place
            deletes = () if old == place else (Change(key, None),)
            self._changes[streamed[old]] = deletes
            self._changes[streamed[place]] = (Change(key, g),)
        self._locked[key], self._moves_to[g] = g, (key, place)

    def _advance(self, g: str) -> None:
        super()._advance(g)
        if g not in self._phases and g in self._moves_to:
            key, place = self._moves_to.pop(g)
            del self._locked[key]
            if g not in self.rolled_back:
                self._place[key] = place

    def _look(self, *, partly: bool) -> None:
        self._takes_steps = partly and self._step_random.random() < 0.3
        chosen = self._choose(self._read_members(partly=partly))
        self.table.merge({each.name: self._fold(each, chosen[each.name]) for each in self.sources})
        if partly and self._step_random.random() < 0.1:
            self.kills += 1
            self.table.give_up()
            return
        self.table.publish()
        self.cuts += chosen != self._cut
        self._note_loads(self._cut, chosen)
        self._cut = chosen
        self._check_rows(chosen)

    def _fold(self, source: Source, end: int) -> dict[str, str | None]:
        """Fold the commit records behind the cut, as a member's batch does."""
        fold: dict[str, str | None] = {}
        for n in range(self._cut[source.name], end):
            record = source.kafka.commits[n]
            for gid in record.gids:
                fold |= self._changes_of(source, gid)
            chunk = record.part or record.load
            if chunk is not None and chunk.table == FIRST:
                before = source.kafka.commits[:n]
                rows = self._read_chunk(source, chunk, before)
                if record.part or any(each.part for each in before):
                    rows = {key: value for key, value in rows.items() if is_of_first(key) == bool(record.part)}
                fold |= rows
        return fold

    def _changes_of(self, source: Source, gid: str) -> dict[str, str | None]:
        is_of_table = source.tables.place.get(gid, FIRST) == FIRST
        return dict(self._changes.get(gid, ())) if is_of_table else {}

    def _read_chunk(self, source: Source, chunk: ChunkRead, before: Sequence[CommitRecord]) -> dict[str, str | None]:
        """The rows of a load, without those that the stream has changed since its snapshot."""
        assert isinstance(source, ShardSource)
        rows: dict[str, str | None] = {}
        for gid in source.order:
            if gid in chunk.gids:
                rows |= self._changes_of(source, gid)
        newer = {gid for each in before for gid in each.gids} - chunk.gids
        changed = {key for gid in newer for key in self._changes_of(source, gid)}
        return {key: value for key, value in rows.items() if value is not None and key not in changed}

    def _check_rows(self, cut: Mapping[str, int]) -> None:
        records = {each.name: each.kafka.commits[: cut[each.name]] for each in self.sources}
        loaded = {
            each.name
            for each in self.sources
            if each.tables.was_empty or any(r.load and r.load.table == FIRST for r in records[each.name])
        }
        if self.waits_for_loads and len(loaded) < len(self.sources):
            return
        wanted: dict[tuple[str, str], str | None] = {}
        for source in self.sources:
            assert isinstance(source, ShardSource)
            shown = source.tables.shown(records[source.name])
            for gid in source.order:
                if gid in shown:
                    wanted |= {(source.name, key): value for key, value in self._changes_of(source, gid).items()}
        there = sorted(key for (_, key), value in wanted.items() if value is not None)
        check(there == sorted({key for _, key in wanted}), f"{cut} is torn: {there}")
        found = self.table.published
        check(sorted(key for _, key in found) == there, f"{cut} shows a row twice or not at all: {found}")
        check(found.items() <= wanted.items(), f"{cut} shows {found}, not {wanted}")
        self.looked_at += len(there)
