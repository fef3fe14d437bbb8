"""A cut: all tables as of one source position; and the limit that a reader gives for one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twofold_common.positions import format_lsn
from twofold_spark.formatting import format_time
from twofold_spark.sources.commit_records import CommitIdentity

CUTS = "twofold.cuts"
"""The table of cuts."""
EVERY_TABLE = "*"
"""In `Cut.stopped`: also every table that does not exist yet.

Commit records were missing, so only a reload has all rows of a table.
"""


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables as of one source position."""

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

    @property
    def identity(self) -> CommitIdentity:
        """The identity of the last commit record in it."""
        return CommitIdentity(self.sequence, self.applied_lsn, self.committed_us, self.stream_id)

    @property
    def stopped_tables(self) -> list[str]:
        return [name for name in self.stopped if name != EVERY_TABLE]

    def __str__(self) -> str:
        return f"{self.sequence} ({format_lsn(self.applied_lsn)}, committed {format_time(self.committed_us)})"


NO_CUT = Cut(0, 0, 0, whole=True, versions={}, backfilling=(), stopped=())
"""Before the first one."""


@dataclass(frozen=True, slots=True)
class CutLimit:
    """Bounds of a cut: it must lie at or before all that are given."""

    sequence: int | None = None
    applied_lsn: int | None = None
    committed_us: int | None = None

    def admits(self, cut: Cut) -> bool:
        pairs = (
            (self.sequence, cut.sequence),
            (self.applied_lsn, cut.applied_lsn),
            (self.committed_us, cut.committed_us),
        )
        return all(bound is None or value <= bound for bound, value in pairs)

    def __str__(self) -> str:
        given = [
            f"sequence {self.sequence}" if self.sequence is not None else "",
            f"position {format_lsn(self.applied_lsn)}" if self.applied_lsn is not None else "",
            format_time(self.committed_us) if self.committed_us is not None else "",
        ]
        return " and ".join(text for text in given if text)


NO_LIMIT = CutLimit()
