"""The rule of the backfill: which rows of a chunk are published, and which changes must be
remembered.

Pure. A chunk is read under a snapshot while the stream continues. The chunk is published when the
stream has passed every commit that the snapshot sees. A change that the snapshot does *not* see,
and that the stream has published, is newer than the chunk's row: that row is dropped. The xid
decides what a snapshot sees, so the rule is exact. A position would not be exact: a commit may be
in the write-ahead log, streamed and published before a new snapshot sees it.

So the keys of published transactions are remembered from before the snapshot on. A visible
transaction stays visible, and is forgotten then: memory stays small. A restart forgets everything;
the barrier before a session's first snapshot compensates for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_HALF = 1 << 31
_WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The value of pg_current_snapshot()."""

    xmax: int
    """The first unassigned xid, with its epoch."""
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse `xmin:xmax:xip,xip`."""
        _, xmax, in_progress = text.split(":")
        return cls(int(xmax), frozenset(int(xid) for xid in in_progress.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Return whether the snapshot sees this committed transaction's changes.

        The stream's xids have no epoch: the nearest epoch is meant.
        """
        whole = self.xmax + (xid - self.xmax + _HALF) % _WRAP - _HALF
        return whole < self.xmax and whole not in self.in_progress


@dataclass(frozen=True, slots=True)
class DroppedRows:
    """The rows of a chunk that are not published."""

    everything: bool
    """The table was truncated."""
    keys: frozenset[bytes]
    again: frozenset[bytes]
    """The keys among `keys` whose change omitted a value that only the table has."""

    def unread(self, rows: Iterable[bytes], among: frozenset[bytes]) -> frozenset[bytes]:
        """Return the keys to read again, among the chunk's rows or the requested keys.

        If a change that omitted a value is the key's first change, the key's row is not published
        yet.
        """
        return self.again & among.union(rows) if self.again else self.again


@dataclass(slots=True)
class _Changes:
    """One transaction's changes of the table."""

    truncated: bool = False
    keys: set[bytes] = field(default_factory=set)
    partial: set[bytes] = field(default_factory=set)


class ChangeMemory:
    """The published changes of one table in backfill that a snapshot may not see."""

    def __init__(self) -> None:
        self._changes: dict[int, _Changes] = {}

    def __len__(self) -> int:
        return sum(len(changes.keys) for changes in self._changes.values())

    def changed(self, xid: int, key: bytes, *, partial: bool = False) -> None:
        """Remember that a published transaction changed this key.

        Partial: an unchanged TOASTed value was not sent.
        """
        changes = self._changes.setdefault(xid, _Changes())
        changes.keys.add(key)
        if partial:
            changes.partial.add(key)

    def truncated(self, xid: int) -> None:
        """Remember that a published transaction emptied the table."""
        self._changes.setdefault(xid, _Changes()).truncated = True

    def judge(self, snapshot: Snapshot) -> DroppedRows:
        """Return the rows to drop from a chunk of this snapshot.

        The stream has passed the chunk's position.
        """
        unseen = [changes for xid, changes in self._changes.items() if not snapshot.sees(xid)]
        return DroppedRows(
            everything=any(changes.truncated for changes in unseen),
            keys=frozenset().union(*(changes.keys for changes in unseen)),
            again=frozenset().union(*(changes.partial for changes in unseen)),
        )

    def forget(self, snapshot: Snapshot) -> None:
        """Forget the transactions that this snapshot sees, because all later ones see them too."""
        self._changes = {xid: changes for xid, changes in self._changes.items() if not snapshot.sees(xid)}
