"""The common part of places in Iceberg and Delta: cuts are rows of a table, and so are the reasons
why the next cut waits.
"""

from __future__ import annotations

import datetime as dt
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_common.global_waits import LongWait
from twofold_spark.errors import Refused
from twofold_spark.sinks import cut_rows, sharding
from twofold_spark.sinks.cuts import CUTS, OF_GROUP, SOURCES, GlobalCut
from twofold_spark.sinks.merge_sql import escape_literal
from twofold_spark.sinks.place import Place
from twofold_spark.sinks.sharding import Sharding

WAITS = "twofold.global_waits"
_WAITS_VIEW = "_twofold_waits"
_WAIT_COLUMNS = (
    "global_id string, since timestamp, "
    "branches array<struct<prefix: string, state: string, sequence: bigint, lsn: bigint, gids: array<string>>>, "
    "held array<struct<prefix: string, commits: bigint>>"
)


class TablePlace(Place):
    """A place whose cuts are in a table with versions."""

    _spark: SparkSession

    @abstractmethod
    def _name(self, table: str) -> str:
        """Return the table's name in SQL."""

    @abstractmethod
    def _exists(self, table: str) -> bool:
        """Whether the table exists."""

    @abstractmethod
    def _create(self, table: str, columns: str, properties: Mapping[str, str]) -> None:
        """Create the table."""

    @abstractmethod
    def _read_property(self, table: str, key: str) -> str:
        """Return a property of the table; an empty text if it has none."""

    @abstractmethod
    def _read_last(self) -> GlobalCut | None:
        """Return the last cut that is decided."""

    @abstractmethod
    def read_cuts(self, spark: SparkSession) -> DataFrame:
        """Read the rows of the cuts that are decided."""

    @abstractmethod
    def _compact(self, table: str, keep: dt.timedelta) -> None:
        """Compact the table, and expire what was its state before `keep`."""

    def open(self, spark: SparkSession, prefixes: tuple[str, ...]) -> None:
        self._spark = spark
        sources = ",".join(sorted(prefixes))
        if not self._exists(CUTS):
            self._create(CUTS, cut_rows.COLUMNS, {SOURCES: sources, OF_GROUP: str(self.of_group)})
        present = self._read_property(CUTS, SOURCES)
        of_group = self._read_property(CUTS, OF_GROUP) == str(True)
        self.last = self._read_last()
        known = [*self.last.members, *self.last.others] if self.last is not None else present.split(",")
        self.check_sources(known, prefixes, of_group=of_group)
        self.sharding.check_unchanged(Sharding.parse(self._read_property(CUTS, sharding.PROPERTY)), self.last)
        for key, value in ((SOURCES, sources), (sharding.PROPERTY, str(self.sharding))):
            if self._read_property(CUTS, key) != value:
                self._spark.sql(f"ALTER TABLE {self._name(CUTS)} SET TBLPROPERTIES ('{key}' = {_text(value)})")
        if self.of_group and not self._exists(WAITS):
            self._create(WAITS, _WAIT_COLUMNS, {})
        elif self.of_group and not self._spark.table(self._name(WAITS)).isEmpty():
            self.replace_waits(())  # an earlier process said so

    def forget(self, keep: dt.timedelta) -> None:
        cuts = self.read_cuts(self._spark)
        if kept := cut_rows.find_first_kept(cuts, keep):
            self._delete_before(kept)

    @abstractmethod
    def _delete_before(self, number: int) -> None:
        """Delete the rows of earlier cuts."""

    def maintain(self, keep: dt.timedelta) -> None:
        for table in (CUTS, WAITS) if self.of_group else (CUTS,):
            self._compact(table, keep)

    def replace_waits(self, waits: Iterable[LongWait]) -> None:
        name, rows = self._name(WAITS), [_make_wait_row(each) for each in waits]
        if not rows:
            self._spark.sql(f"DELETE FROM {name}")
            return
        # One task for all of them: a UNION ALL is planned and run row by row.
        listed = f.from_json(f.lit(json.dumps(rows)), f"array<struct<{_WAIT_COLUMNS}>>")
        self._spark.range(0, 1, 1, 1).select(f.inline(listed)).createOrReplaceTempView(_WAITS_VIEW)
        self._spark.sql(f"INSERT OVERWRITE {name} SELECT * FROM {_WAITS_VIEW}")


def refuse_other_cut(cut: GlobalCut) -> Refused:
    """Make the refusal of a cut that another job's cut came before."""
    return Refused(
        f"another job published the cut {cut.number}",
        at_stake="cuts in an order that moves a source back",
        repair="end the other job, then start again",
    )


def _make_wait_row(each: LongWait) -> dict[str, Any]:
    since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=each.waited_s)
    return {
        "global_id": each.wait.global_id,
        "since": since.isoformat(timespec="microseconds"),
        "branches": [place._asdict() for place in each.wait.places],
        "held": [{"prefix": prefix, "commits": count} for prefix, count in each.held.items()],
    }


def _text(value: str) -> str:
    return f"'{escape_literal(value)}'"
