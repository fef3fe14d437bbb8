"""Loads in the world of `group_world`: what a source's tables show before, during and behind them.

A source has a table that its first load brings, and more that join the publication later, each by a
load of its own. Until its load is published a table is in no cut. A load shows what its snapshot
shows; no commit record names those branches.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

FIRST = 0
"""The table that is published from the start on; what is in the stream belongs to it."""


class ChunkRead(NamedTuple):
    """The whole of a table."""

    table: int
    gids: frozenset[str]
    """The branches that the snapshot shows."""


class CommitRecord(NamedTuple):
    """A commit record, as the topic has it."""

    gids: tuple[str, ...]
    """The branches that it names."""
    load: ChunkRead | None = None
    """It ends the load of a table."""
    part: ChunkRead | None = None
    """It has some rows of a load that goes on."""
    patterns: tuple[str, ...] = ()
    """Those by which it names the global transactions of its branches."""


class Tables:
    """A source's tables, as its database and its commit records have them."""

    def __init__(self) -> None:
        self.joined = FIRST
        """The last table that is published. The next one is written, and not published."""
        self.place: dict[str, int] = {}
        """The table of each branch; in which no branch is is FIRST."""
        self.committed: set[str] = set()
        self.was_empty = False
        """No load brings the first table: it was empty when the slot was made."""

    def begin(self, chance: float) -> None:
        """Make the slot. Where nothing is committed the first table may be empty."""
        self.was_empty = chance < 0.7 and not self.read(FIRST).gids

    def add_unpublished(self, gid: str) -> None:
        self.place[gid] = self.joined + 1

    def due(self, records: Sequence[CommitRecord]) -> int | None:
        """The first published table that no commit record has brought."""
        loaded = {each.load.table for each in records if each.load} | ({FIRST} if self.was_empty else set())
        return next((table for table in range(self.joined + 1) if table not in loaded), None)

    def may_read(self, table: int, in_doubt: Set[str], early: Set[str]) -> bool:
        """The barrier: what held a lock before the table was published has ended."""
        return not any(self._is_of(gid, table) and (table != FIRST or gid in early) for gid in in_doubt)

    def read(self, table: int) -> ChunkRead:
        return ChunkRead(table, frozenset(gid for gid in self.committed if self._is_of(gid, table)))

    def shown(self, records: Sequence[CommitRecord]) -> set[str]:
        """The branches that a cut shows whose commit records are these."""
        loads = {each.load.table: each.load.gids for each in records if each.load}
        is_shown = self.was_empty or FIRST in loads
        streamed = {gid for each in records for gid in each.gids} if is_shown else set[str]()
        return streamed.union(*loads.values())

    def must_show(self, gid: str, records: Sequence[CommitRecord]) -> bool:
        """Whether a branch's table is in the cut."""
        if self.was_empty and self._is_of(gid, FIRST):
            return True
        return any(each.load and self._is_of(gid, each.load.table) for each in records)

    def _is_of(self, gid: str, table: int) -> bool:
        return self.place.get(gid, FIRST) == table
