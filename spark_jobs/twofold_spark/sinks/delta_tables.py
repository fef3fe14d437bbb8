"""Delta's tables as the sink and readers know them: their folders, versions, and cuts."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from twofold_spark.errors import Refused, SetupError
from twofold_spark.sinks import cut_rows, merge_sql
from twofold_spark.sinks.cuts import CUTS, NO_LIMIT, Cut, CutLimit

APPLICATION = "twofold"
KEY = "twofold.key"
SPOILED = "twofold.spoiled"
"""The property of a table that two jobs have merged into at once."""


class DeltaReader:
    """Cuts and tables of a mirror in Delta."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = folder.rstrip("/")

    def table_folder(self, name: str) -> str:
        return "/".join((self._folder, *name.split(".", 1)))

    def table_path(self, name: str) -> str:
        """Return the table's name in SQL."""
        return f"delta.{merge_sql.SPARK.quote(self.table_folder(name))}"

    def has_table(self, name: str) -> bool:
        """Whether the table exists.

        `isDeltaTable` caches: it denies for an hour a table that it saw while another process made
        it.
        """
        log = self._jvm.org.apache.hadoop.fs.Path(self.table_folder(name), "_delta_log")
        files = log.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        return bool(files.exists(log) and self._read_snapshot(name).version() >= 0)

    def read_state(self, name: str) -> tuple[int, int]:
        """Return the table's version, and the sequence number up to which it has all changes."""
        snapshot = self._read_snapshot(name)
        if snapshot.metadata().configuration().get(SPOILED).isDefined():
            raise refuse_spoiled(name)
        found = snapshot.transactions().get(APPLICATION)
        return int(snapshot.version()), int(found.get()) if found.isDefined() else 0

    def read_last_cut(self) -> Cut | None:
        return cut_rows.read_outermost(self._spark.table(self.table_path(CUTS))) if self.has_table(CUTS) else None

    def find_cut(self, limit: CutLimit = NO_LIMIT, *, first: bool = False) -> Cut | None:
        if not self.has_table(CUTS):
            return None
        cuts = cut_rows.filter_cuts(self._spark.table(self.table_path(CUTS)), limit)
        return cut_rows.read_outermost(cuts, first=first)

    def read_table(self, name: str, version: str) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self.table_path(name)} VERSION AS OF {int(version)}")

    def read_key(self, name: str) -> tuple[str, ...]:
        return tuple(key for key in self._read_property(name, KEY).split(",") if key)

    def check_prefix(self, prefix: str) -> None:
        if not self.has_table(CUTS):
            raise SetupError(f"{self._folder} holds no mirror: run `twofold-spark mirror` into it first")
        present = self._read_property(CUTS, "twofold.prefix")
        if present != prefix:
            raise Refused(
                f"this folder holds the mirror of the prefix {present!r}, not of {prefix!r}",
                at_stake="the tables of two sources would be mixed",
                repair="use one folder for each prefix",
            )

    def _read_property(self, name: str, key: str) -> str:
        found = self._read_snapshot(name).metadata().configuration().get(key)
        return str(found.get()) if found.isDefined() else ""

    def _read_snapshot(self, name: str) -> Any:
        """Read the present state of the table from Delta's log, without a query."""
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession, self.table_folder(name)
        )
        none = self._jvm.scala.Option.empty()
        may_be_stale = False
        return log.update(may_be_stale, none, none)

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm


def refuse_spoiled(table: str) -> Refused:
    """Make the refusal of a table that two jobs merged into at once."""
    return Refused(
        f"two jobs merged into {table} at once",
        at_stake="changes applied twice, or applied to a state that they do not belong to",
        repair=f"end the other job, drop the mirror's table (its folder), then `twofold backfill start {table}`",
    )
