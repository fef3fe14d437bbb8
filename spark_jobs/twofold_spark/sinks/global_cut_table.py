"""Global cuts as rows of a table, in Iceberg and Delta: one row names the cut of every member. A
second table says what the next one waits for.

Each member has a place of its own with its tables and its cuts. The row is what makes them one: it
is written when every member has published its part.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from pyspark.sql import SparkSession

from twofold_common.global_waits import LongWait
from twofold_spark.sinks import cut_rows
from twofold_spark.sinks.global_cuts import GlobalCut, check_members, describe_members, read_row
from twofold_spark.sinks.merge_sql import escape_literal

GLOBAL_CUTS, GLOBAL_WAITS = "twofold.global_cuts", "twofold.global_waits"
COLUMNS = (
    "number bigint, published_at timestamp, "
    "members array<struct<prefix: string, sequence: bigint, commit_offset: bigint>>"
)
_WAIT_COLUMNS = (
    "global_id string, since timestamp, "
    "branches array<struct<prefix: string, state: string, sequence: bigint, lsn: bigint, gids: array<string>>>, "
    "held array<struct<prefix: string, commits: bigint>>"
)
_GROUP = "twofold.group"


class GlobalTableStore(Protocol):
    """How a sink keeps the two tables."""

    @property
    def place(self) -> str:
        """What the tables are in: the word for a refusal."""

    def prepare(self) -> None:
        """Prepare the place, or refuse it."""

    def name(self, table: str) -> str:
        """Return the table's name in SQL."""

    def exists(self, table: str) -> bool:
        """Whether the table exists."""

    def create(self, table: str, columns: str, properties: Mapping[str, str]) -> None:
        """Create the table."""

    def read_property(self, table: str, key: str) -> str:
        """Return a property of the table; an empty text if it has none."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a global cut; it is durable when this returns."""

    def compact(self, table: str, keep: dt.timedelta) -> None:
        """Compact the table, and expire what was its state before `keep`."""


class GlobalCutTable:
    """The table of a group's global cuts."""

    in_one_transaction = False

    def __init__(self, spark: SparkSession, store: GlobalTableStore) -> None:
        self._spark = spark
        self._store = store
        self._name, self._waits = store.name(GLOBAL_CUTS), store.name(GLOBAL_WAITS)

    def open(self, prefixes: tuple[str, ...]) -> GlobalCut | None:
        """Create the tables, or check whose they are; return the last global cut.

        The cut's members may differ from `prefixes`, because members join and leave.
        """
        self._store.prepare()
        group = ",".join(sorted(prefixes))
        for table, columns in ((GLOBAL_CUTS, COLUMNS), (GLOBAL_WAITS, _WAIT_COLUMNS)):
            if not self._store.exists(table):
                self._store.create(table, columns, {_GROUP: group})
        present = self._store.read_property(GLOBAL_CUTS, _GROUP)
        last = self.read_last()
        check_members([*last.members] if last is not None else present.split(","), prefixes, self._store.place)
        if present != group:
            self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{_GROUP}' = {_text(group)})")
        if not self._spark.table(self._waits).isEmpty():
            self.replace_waits(())  # an earlier process said so
        return last

    def together(self) -> AbstractContextManager[None]:
        """Hold nothing: readers go by the row."""
        return nullcontext()

    def close(self) -> None:
        """Do nothing: the table holds nothing."""

    def read_last(self) -> GlobalCut | None:
        """Return the last global cut; None before the first."""
        return self._read_outermost()

    def _read_outermost(self, *, first: bool = False) -> GlobalCut | None:
        """Return the last global cut that is kept, or the first."""
        if not self._store.exists(GLOBAL_CUTS):
            return None
        row = self._spark.table(self._name).orderBy("number", ascending=first).first()
        return read_row(row) if row is not None else None

    def publish(self, cut: GlobalCut) -> None:
        """Make it visible to readers; it is durable when this returns."""
        self._store.append(
            {"number": cut.number, "published_at": dt.datetime.now(dt.UTC), "members": describe_members(cut)}
        )

    def forget(self, keep: dt.timedelta) -> GlobalCut | None:
        """Remove what was replaced more than `keep` ago; return the first that stays."""
        kept = cut_rows.find_first_kept(self._spark.table(self._name), keep, "number")
        if kept:
            self._spark.sql(f"DELETE FROM {self._name} WHERE number < {kept}")
        return self._read_outermost(first=True)

    def maintain(self, keep: dt.timedelta) -> None:
        """Compact the tables, and expire what was their state before `keep`."""
        for table in (GLOBAL_CUTS, GLOBAL_WAITS):
            self._store.compact(table, keep)

    def replace_waits(self, waits: Iterable[LongWait]) -> None:
        """Say what the next global cut waits for."""
        rows = " UNION ALL ".join(map(_wait_row, waits))
        self._spark.sql(f"INSERT OVERWRITE {self._waits} {rows}" if rows else f"DELETE FROM {self._waits}")


def _wait_row(each: LongWait) -> str:
    branches = ", ".join(
        f"named_struct('prefix', {_text(place.prefix)}, 'state', {_text(place.state)}, 'sequence', {place.sequence}L, "
        f"'lsn', {place.lsn}L, 'gids', CAST(array({', '.join(map(_text, place.gids))}) AS array<string>))"
        for place in each.wait.places
    )
    held = ", ".join(
        f"named_struct('prefix', {_text(prefix)}, 'commits', {count}L)" for prefix, count in each.held.items()
    )
    since = f"current_timestamp() - make_dt_interval(0, 0, 0, {each.waited_s:.3f})"
    return f"SELECT {_text(each.wait.global_id)}, {since}, array({branches}), array({held})"


def _text(value: str) -> str:
    return f"'{escape_literal(value)}'"
