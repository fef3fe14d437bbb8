"""The rule of the backfill: which rows of a chunk are published, and what must be remembered for that. Pure.

A chunk is read under a snapshot while the stream goes on, and is published when the stream has passed every commit that the snapshot sees. What a transaction that the snapshot does *not* see has
changed and the stream has published is newer than the chunk's row: it is dropped. Visibility is by xid, so it is exact; a position would not do, because a commit is in the write-ahead log, and may
have been streamed and published, before a new snapshot sees it.

So the keys of published transactions are remembered from before the snapshot on. Visible once, a transaction is visible for good: it is forgotten then, and memory stays small. A restart forgets all;
the barrier in front of a session's first snapshot makes up for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_HALF = 1 << 31
_WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What pg_current_snapshot() says."""

    xmax: int
    """The first xid that was not yet assigned, with its epoch."""
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """From `xmin:xmax:xip,xip`."""
        _, xmax, in_progress = text.split(":")
        return cls(int(xmax), frozenset(int(xid) for xid in in_progress.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether it sees what the transaction did, which has committed. The stream's xids have no epoch: the nearest one is meant."""
        whole = self.xmax + (xid - self.xmax + _HALF) % _WRAP - _HALF
        return whole < self.xmax and whole not in self.in_progress


@dataclass(frozen=True, slots=True)
class DroppedRows:
    """What is not published of a chunk."""

    everything: bool
    """The table was truncated."""
    keys: frozenset[bytes]
    again: frozenset[bytes]
    """Those of the keys whose change left a value out that only the table has."""

    def unread(self, rows: Iterable[bytes], among: frozenset[bytes]) -> frozenset[bytes]:
        """What is to be read again of a chunk's rows, or of the keys that were asked for: where such a change is a key's first, its row is not there yet."""
        return self.again & among.union(rows) if self.again else self.again


@dataclass(slots=True)
class _Changes:
    """What one transaction did to the table."""

    truncated: bool = False
    keys: set[bytes] = field(default_factory=set)
    partial: set[bytes] = field(default_factory=set)


class ChangeMemory:
    """Of one table in backfill: what published transactions have changed that a snapshot may not see."""

    def __init__(self) -> None:
        self._changes: dict[int, _Changes] = {}

    def __len__(self) -> int:
        return sum(len(changes.keys) for changes in self._changes.values())

    def changed(self, xid: int, key: bytes, *, partial: bool = False) -> None:
        """A transaction that is published changed this key. Partial: an unchanged TOASTed value was not sent."""
        changes = self._changes.setdefault(xid, _Changes())
        changes.keys.add(key)
        if partial:
            changes.partial.add(key)

    def truncated(self, xid: int) -> None:
        """A transaction that is published emptied the table."""
        self._changes.setdefault(xid, _Changes()).truncated = True

    def judge(self, snapshot: Snapshot) -> DroppedRows:
        """What a chunk that was read under this snapshot, and whose position the stream has passed, must not say."""
        unseen = [changes for xid, changes in self._changes.items() if not snapshot.sees(xid)]
        return DroppedRows(
            everything=any(changes.truncated for changes in unseen),
            keys=frozenset().union(*(changes.keys for changes in unseen)),
            again=frozenset().union(*(changes.partial for changes in unseen)),
        )

    def forget(self, snapshot: Snapshot) -> None:
        """All later snapshots see what this one sees."""
        self._changes = {xid: changes for xid, changes in self._changes.items() if not snapshot.sees(xid)}
