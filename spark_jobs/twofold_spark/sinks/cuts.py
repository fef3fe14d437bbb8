"""A cut: all tables of each source as of one of its positions; and the limit that a reader gives
for one. Pure.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from twofold_common.positions import format_lsn, parse_lsn
from twofold_spark.sources.commit_records import CommitIdentity

CUTS = "twofold.cuts"
SOURCES = "twofold.sources"
"""The property of the cuts' table that names the mirror's topic prefixes."""
OF_GROUP = "twofold.of_group"
"""The property that says whether each source's tables have a place of their own."""
EVERY_TABLE = "*"
"""In `Cut.stopped`: also every table that does not exist yet.

Commit records were missing, so only a reload has all rows of a table.
"""


@dataclass(frozen=True, slots=True)
class MissingRow:
    """A row that a person had skipped: readers of the table lack it until it comes again."""

    table: str
    """`schema.name`"""
    lsn: int
    """Where the change lies in the source's write-ahead log."""
    key: bytes | None
    """Its message key without the schema's id; None without a key that could be read."""

    def __str__(self) -> str:
        """Return its form in the table of cuts, which `parse` reads."""
        return f"{format_lsn(self.lsn)} {'-' if self.key is None else self.key.hex()} {self.table}"

    @classmethod
    def parse(cls, text: str) -> MissingRow:
        position, key, table = text.split(" ", 2)
        return cls(table, parse_lsn(position), None if key == "-" else bytes.fromhex(key))


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables of one source as of one position."""

    sequence: int
    applied_lsn: int
    committed_us: int
    """The source's commit time, microseconds since 1970."""
    whole: bool
    """False while a table is ahead of the others, after a crash with a lost checkpoint."""
    versions: Mapping[str, str]
    """For each table (`schema.name`) the version, snapshot or position that belongs to this cut."""
    backfilling: tuple[str, ...]
    """Tables (`schema.name`) whose backfill is in progress: some of their rows are missing."""
    stopped: tuple[str, ...]
    """Tables (`schema.name`) stopped by a refusal of their own, and EVERY_TABLE.

    They are in no cut until they are reloaded.
    """
    stream_id: str = ""
    """The stream of its commit records; another one of the prefix has other records under these
    numbers.
    """
    offset: int = -1
    """The offset of its last commit record."""
    stale: tuple[str, ...] = ()
    """Tables (`schema.name`) that lack, or may lack, changes that PostgreSQL did not send."""
    skipped: tuple[MissingRow, ...] = ()
    """The rows that a person had skipped, and that the tables lack."""

    @property
    def identity(self) -> CommitIdentity:
        return CommitIdentity(self.sequence, self.applied_lsn, self.committed_us, self.stream_id)

    @property
    def stopped_tables(self) -> list[str]:
        return [name for name in self.stopped if name != EVERY_TABLE]

    def __str__(self) -> str:
        return f"{self.sequence} ({format_lsn(self.applied_lsn)}, committed {format_time(self.committed_us)})"


NO_CUT = Cut(0, 0, 0, whole=True, versions={}, backfilling=(), stopped=())
"""Before the first one."""


@dataclass(frozen=True, slots=True)
class GlobalCut:
    """All tables of all sources of a mirror, with every global transaction whole or absent.

    The mirror of one source has global cuts of one member.
    """

    number: int
    members: Mapping[str, Cut]
    """By topic prefix."""
    others: Mapping[str, Cut] = field(default_factory=dict)
    """How far the tables of other sources are: not yet in it, or members no more."""

    @property
    def whole(self) -> bool:
        return all(each.whole for each in self.members.values())

    @property
    def parts(self) -> list[tuple[str, Cut, bool]]:
        """Each source's prefix, its cut, and whether it is a member."""
        return [(p, each, True) for p, each in self.members.items()] + [
            (p, each, False) for p, each in self.others.items()
        ]

    @property
    def held_tables(self) -> frozenset[str]:
        """The tables that wait for a reload in some member, or for a source that joins: of a
        sharded one no reader is shown more.
        """
        waiting = {name for part in self.members.values() for name in part.stopped_tables}
        joining = {name for part in self.others.values() for name in (*part.versions, *part.backfilling)}
        return frozenset(waiting | joining)

    def find_part(self, prefix: str) -> Cut | None:
        """Return how far the tables of a source are."""
        return self.members.get(prefix) or self.others.get(prefix)

    def __str__(self) -> str:
        if len(self.members) == 1:
            return str(next(iter(self.members.values())))
        parts = ", ".join(f"{prefix} {each.sequence}" for prefix, each in sorted(self.members.items()))
        return f"{self.number} ({parts})"


@dataclass(frozen=True, slots=True)
class CutLimit:
    """Bounds of a cut: it must lie at or before all that are given."""

    sequence: int | None = None
    applied_lsn: int | None = None
    committed_us: int | None = None

    def admits(self, sequence: int, applied_lsn: int, committed_us: int) -> bool:
        pairs = ((self.sequence, sequence), (self.applied_lsn, applied_lsn), (self.committed_us, committed_us))
        return all(bound is None or value <= bound for bound, value in pairs)

    def __str__(self) -> str:
        given = [
            f"sequence {self.sequence}" if self.sequence is not None else "",
            f"position {format_lsn(self.applied_lsn)}" if self.applied_lsn is not None else "",
            format_time(self.committed_us) if self.committed_us is not None else "",
        ]
        return " and ".join(text for text in given if text)


NO_LIMIT = CutLimit()


def format_time(us: int) -> str:
    """Format microseconds since 1970, in UTC."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
    return f"{moment:%Y-%m-%d %H:%M:%S.%f} UTC"
