"""Where the mirror is kept: Iceberg, Delta or PostgreSQL, behind one interface.

What every sink promises: a table takes a batch whole or not at all, and remembers in the same commit the sequence
number up to which it has been applied; so a retried batch skips the tables that have it, whatever became of Spark's
checkpoint. A cut is published after all tables of a batch are there; a reader who follows cuts never sees half of one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from twofold_spark.formatting import lsn_text, time_text


@dataclass(frozen=True, slots=True)
class Table:
    """A mirrored table: its topic, its name in PostgreSQL, and its key's columns; keyless without any."""

    topic: str
    schema: str
    name: str
    key: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


EVERY = "*"
"""In `Cut.stopped`: a table that is not there yet, too. Commit records were missing, so only a reload has all of one."""


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables as of one source position."""

    sequence: int
    applied_lsn: int
    committed_us: int
    """The source's commit time, microseconds since 1970."""
    whole: bool
    """False where a table is ahead of the others: after a crash and a lost checkpoint, until the others are there."""
    versions: Mapping[str, str]
    """Of each table (`schema.name`) the version, snapshot or position that belongs to this cut."""
    backfilling: tuple[str, ...]
    """Those of the tables (`schema.name`) whose backfill is not over: their rows are not all there yet."""
    stopped: tuple[str, ...]
    """Tables (`schema.name`) that a refusal of their own has stopped: in no cut until they are reloaded. And EVERY."""

    @property
    def stopped_tables(self) -> list[str]:
        return [name for name in self.stopped if name != EVERY]

    def __str__(self) -> str:
        return f"{self.sequence} ({lsn_text(self.applied_lsn)}, committed {time_text(self.committed_us)})"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which cuts are meant: those at or before all that is given."""

    sequence: int | None = None
    applied_lsn: int | None = None
    committed_us: int | None = None

    def takes(self, cut: Cut) -> bool:
        """Whether this one is meant."""
        given = (
            (self.sequence, cut.sequence),
            (self.applied_lsn, cut.applied_lsn),
            (self.committed_us, cut.committed_us),
        )
        return all(most is None or its <= most for most, its in given)

    def __str__(self) -> str:
        given = [
            f"sequence {self.sequence}" if self.sequence is not None else "",
            f"position {lsn_text(self.applied_lsn)}" if self.applied_lsn is not None else "",
            time_text(self.committed_us) if self.committed_us is not None else "",
        ]
        return " and ".join(text for text in given if text)


ANY = Asked()


class Sink(Protocol):
    """What the mirror asks of the place that it writes to."""

    def last_cut(self) -> Cut | None:
        """The last published cut; None before the first."""

    def applied(self, table: Table) -> int:
        """The sequence number up to which the table has all changes; 0 for a table that is not there yet."""

    def prepare(self, table: Table, columns: StructType) -> None:
        """Makes the table or evolves it, before rows that need it."""

    def current(self, table: Table) -> DataFrame | None:
        """The table as this job left it, for values that are carried over."""

    def merge(self, table: Table, rows: DataFrame, *, replace: bool, unchanged: tuple[str, ...], sequence: int) -> None:
        """Applies folded rows atomically, and that the table is at `sequence` with them; `replace` after a truncate.

        `unchanged` are the columns of which some row has none, and the table keeps its own.
        """

    def quarantine(self, records: DataFrame) -> None:
        """Keeps records that cannot be decoded, each once however often it is met."""

    def version(self, table: Table) -> str | None:
        """The table's version as this job left it; None while it has none."""

    def publish(self, cut: Cut) -> None:
        """Makes the cut visible to readers; it is on disk when this returns."""

    def maintain(self, tables: Iterable[str], keep: dt.timedelta) -> None:
        """Joins small files, and forgets cuts older than `keep` with the versions that they alone need; not the last."""

    def close(self) -> None:
        """Gives up what it holds; what is not published is not there."""


class Reader(Protocol):
    """What a reader of the mirror asks of the place that it is kept in."""

    def whole_cut(self, asked: Asked = ANY, *, first: bool = False) -> Cut | None:
        """The last cut of those that are meant, or the first; tables that do not fit together are none."""

    def table(self, name: str, version: str) -> DataFrame:
        """A table (`schema.name`) as of a version that a cut names."""

    def key_of(self, name: str) -> tuple[str, ...]:
        """The columns that a table is merged by; none of a keyless one."""

    def check_prefix(self, prefix: str) -> None:
        """Refuses a mirror of another prefix: a mirror is of one source."""
