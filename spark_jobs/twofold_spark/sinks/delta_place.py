"""A mirror in Delta: the table of cuts in the folder that is named. The tables of one source are
beside it; each member of a source group has a folder of its own in it, and its sharded tables are
beside the table of cuts.

The rows of a cut carry its number as Delta's mark of an application's transaction. So of two jobs
that publish one number, Delta rejects one or skips its rows, and that job is refused.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.sinks import cut_rows, delta_tables
from twofold_spark.sinks.cuts import CUTS, GlobalCut
from twofold_spark.sinks.delta_sink import DeltaSink
from twofold_spark.sinks.delta_tables import APPLICATION, DeltaTables, member_folder
from twofold_spark.sinks.sharding import NO_SHARDING, SHARED, Sharding
from twofold_spark.sinks.shared_delta_sink import SharedDeltaSink
from twofold_spark.sinks.table_place import TablePlace, refuse_other_cut


class DeltaPlace(TablePlace):
    """The folder that has the cuts."""

    word = "folder"
    _own: DeltaTables

    def __init__(self, folder: str, *, of_group: bool = False, sharding: Sharding = NO_SHARDING) -> None:
        super().__init__(of_group=of_group, sharding=sharding)
        self._folder = folder
        self._prefixes: tuple[str, ...] = ()

    def open(self, spark: SparkSession, prefixes: tuple[str, ...]) -> None:
        self._own, self._prefixes = DeltaTables(spark, self._folder), prefixes
        super().open(spark, prefixes)

    def make_sink(self, spark: SparkSession, prefix: str) -> DeltaSink:
        if prefix == SHARED:
            others = self.last.others if self.last is not None else ()
            return SharedDeltaSink(spark, self._folder, self, members=(*self._prefixes, *others))
        return DeltaSink(spark, member_folder(self._folder, prefix) if self.of_group else self._folder)

    def publish(self, cut: GlobalCut) -> None:
        self._append(cut)
        self.last = cut

    def _append(self, cut: GlobalCut) -> None:
        text = json.dumps(cut_rows.make_rows(cut), default=lambda at: at.isoformat(timespec="microseconds"))
        kind = f"array<struct<{cut_rows.COLUMNS}>>"
        rows = self._spark.range(0, 1, 1, 1).select(f.inline(f.from_json(f.lit(text), kind)))
        before, _ = self._own.read_state(CUTS)
        # Options, because a setting of the session would mark all that it writes.
        mark = {"txnAppId": APPLICATION, "txnVersion": str(cut.number)}
        rows.write.format("delta").options(**mark).mode("append").save(self._own.table_folder(CUTS))
        if self._own.read_state(CUTS) != (before + 1, cut.number):
            raise refuse_other_cut(cut)

    def read_cuts(self, spark: SparkSession) -> DataFrame:
        return spark.table(self._name(CUTS))

    def _read_last(self) -> GlobalCut | None:
        return cut_rows.read_last(self.read_cuts(self._spark))

    def _delete_before(self, number: int) -> None:
        delta_tables.forget_marks(self._spark)
        self._spark.sql(f"DELETE FROM {self._name(CUTS)} WHERE number < {number}")

    def _compact(self, table: str, keep: dt.timedelta) -> None:
        delta_tables.forget_marks(self._spark)
        delta_tables.compact(self._spark, self._name(table), keep)

    def _name(self, table: str) -> str:
        return self._own.table_path(table)

    def _exists(self, table: str) -> bool:
        return self._own.has_table(table)

    def _create(self, table: str, columns: str, properties: Mapping[str, str]) -> None:
        delta_tables.create_table(self._spark, self._name(table), columns, properties)

    def _read_property(self, table: str, key: str) -> str:
        return self._own.read_property(table, key)
