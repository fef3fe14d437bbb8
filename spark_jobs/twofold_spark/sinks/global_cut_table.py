"""Global cuts as rows of an Iceberg table: one row names the cut of every member. A second table
says what the next one waits for.

Each member has a catalog of its own with its tables and its cuts. The row is what makes them one:
it is written when every member has published its part.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from pyspark.sql import SparkSession

from twofold_common.global_waits import LongWait
from twofold_spark.sinks import cut_rows, iceberg_maintenance, iceberg_rows, iceberg_tables
from twofold_spark.sinks.global_cuts import GlobalCut, check_members, make_row, read_row
from twofold_spark.sinks.merge_sql import escape_literal

_TORN = "array<struct<global_id: string, shown: array<struct<prefix: string, sequence: bigint>>>>"
_COLUMNS = (
    "number bigint, published_at timestamp, "
    "members array<struct<prefix: string, sequence: bigint, commit_offset: bigint>>, "
    f"torn {_TORN}"
)
_WAIT_COLUMNS = (
    "global_id string, since timestamp, "
    "branches array<struct<prefix: string, state: string, sequence: bigint, lsn: bigint, gids: array<string>>>, "
    "held array<struct<prefix: string, commits: bigint>>"
)
_GROUP = "twofold.group"


def member_catalog(catalog: str, prefix: str) -> str:
    """Return the catalog of a member's tables: its name must be a word of SQL."""
    return f"{catalog}_{re.sub('[^A-Za-z0-9_]', '_', prefix)}"


class GlobalCutTable:
    """The table of a group's global cuts, in the catalog that is named."""

    in_one_transaction = False

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._namespace = f"{catalog}.twofold"
        self._name = f"{self._namespace}.global_cuts"
        self._waits = f"{self._namespace}.global_waits"

    def open(self, prefixes: tuple[str, ...]) -> GlobalCut | None:
        """Create the tables, or check whose they are; return the last global cut.

        Its members may be others: some of these may lack, and some more may be in it.
        """
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")
        group = ",".join(sorted(prefixes))
        properties = iceberg_tables.list_properties(iceberg_tables.FORMAT_VERSION, {_GROUP: group})
        for name, columns in ((self._name, _COLUMNS), (self._waits, _WAIT_COLUMNS)):
            self._spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg TBLPROPERTIES ({properties})")
        present = iceberg_tables.load_table(self._spark, self._name).properties().get(_GROUP) or ""
        last = self.read_last()
        check_members([*last.members] if last is not None else present.split(","), prefixes, "warehouse")
        if present != group:
            self._spark.sql(
                f"ALTER TABLE {self._name} SET TBLPROPERTIES ({iceberg_tables.format_properties({_GROUP: group})})"
            )
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
        if not self._spark.catalog.tableExists(self._name):
            return None
        row = self._spark.table(self._name).orderBy("number", ascending=first).first()
        return read_row(row) if row is not None else None

    def publish(self, cut: GlobalCut) -> None:
        """Make it visible to readers; it is durable when this returns."""
        row = {"number": cut.number, "published_at": dt.datetime.now(dt.UTC), **make_row(cut)}
        iceberg_rows.append_row(self._spark, iceberg_tables.load_table(self._spark, self._name), row)

    def forget(self, keep: dt.timedelta) -> GlobalCut | None:
        """Remove global cuts older than `keep`, except the last; return the first that stays."""
        last = self.read_last()
        if last is not None:
            expired = f"published_at < {cut_rows.time_ago(keep)} AND number < {last.number}"
            self._spark.sql(f"DELETE FROM {self._name} WHERE {expired}")
        return self._read_outermost(first=True)

    def maintain(self, keep: dt.timedelta) -> None:
        """Compact the tables, and expire what was their state before `keep`."""
        for table in ("twofold.global_cuts", "twofold.global_waits"):
            iceberg_maintenance.maintain_plain(self._spark, self._catalog, table, keep)

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
