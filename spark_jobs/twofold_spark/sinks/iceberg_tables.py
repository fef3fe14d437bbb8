"""Iceberg's tables as the sink, the changelog and readers know them: made, evolved, loaded, read as of a version."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_spark.errors import MissingGround, Refused
from twofold_spark.session import CATALOG
from twofold_spark.sinks import ANY, Asked, Cut, column_changes, cut_rows
from twofold_spark.sinks.merge_sql import text
from twofold_spark.sources.unreadable_records import PLACE

SEQUENCE = "twofold.sequence"
KEY = "twofold.key"
V3 = {
    "format-version": "3",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A batch adds a file or two. With Iceberg's 4 MB for opening one, every fourth file is a task of the next merge.
    "read.split.open-file-cost": "262144",
}
_MAKING = threading.Lock()
_QUARANTINING = threading.Lock()
"""Two tables may have their first unreadable record at once."""


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def cuts_table(catalog: str) -> str:
    return f"{catalog}.twofold.cuts"


class IcebergReader:
    """Cuts and tables of a mirror in a catalog."""

    def __init__(self, spark: SparkSession, catalog: str = CATALOG) -> None:
        self._spark = spark
        self._catalog = catalog

    def last_cut(self) -> Cut | None:
        name = cuts_table(self._catalog)
        return cut_rows.end_of(self._spark.table(name)) if self._spark.catalog.tableExists(name) else None

    def whole_cut(self, asked: Asked = ANY, *, first: bool = False) -> Cut | None:
        name = cuts_table(self._catalog)
        if not self._spark.catalog.tableExists(name):
            return None
        return cut_rows.end_of(cut_rows.meant(self._spark.table(name), asked), first=first)

    def table(self, name: str, version: str) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self._name(name)} VERSION AS OF {int(version)}")

    def key_of(self, name: str) -> tuple[str, ...]:
        return key_of(load(self._spark, self._name(name)))

    def check_prefix(self, prefix: str) -> None:
        if not self._spark.catalog.tableExists(cuts_table(self._catalog)):
            raise MissingGround(f"{cuts_table(self._catalog)} is not there: has `mirror` run on this warehouse?")
        whose = load(self._spark, cuts_table(self._catalog)).properties().get("twofold.prefix")
        if whose != prefix:
            raise Refused(
                f"this warehouse mirrors the prefix {whose!r}, not {prefix!r}",
                at_stake="two sources' tables mixed",
                repair="one --warehouse for each prefix",
            )

    def _name(self, table: str) -> str:
        return f"{self._catalog}.{quoted(*table.split('.', 1))}"


def prepare(spark: SparkSession, name: str, columns: StructType, *, label: str, properties: Mapping[str, str]) -> None:
    """Makes the table, or brings it to these columns."""
    namespace = ".".join(name.split(".", 2)[:2])
    if not spark.catalog.tableExists(name):
        # IF NOT EXISTS looks and then makes: two tables of one new namespace would collide in between.
        with _MAKING:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        spark.sql(
            f"CREATE TABLE {name} ({column_changes.columns_sql(columns)}) USING iceberg "
            f"TBLPROPERTIES ({properties_sql({**V3, **properties})})"
        )
        return
    for change in column_changes.changes(spark.table(name).schema, columns, table=label):
        spark.sql(f"ALTER TABLE {name} {change}")


def quarantine(records: DataFrame, catalog: str) -> None:
    """Appends records that cannot be decoded to the quarantine table, those that it lacks."""
    spark, name = records.sparkSession, f"{catalog}.twofold.quarantine"
    with _QUARANTINING:
        prepare(spark, name, records.schema, label="quarantine", properties={})
    records.join(spark.table(name).select(*PLACE), list(PLACE), "left_anti").writeTo(name).append()


def lineage(loaded: Any, snapshot: Any | None) -> Iterator[Any]:
    """A snapshot of a loaded table and those that it came from, newest first, as far as they are kept."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = loaded.snapshot(parent) if parent is not None else None


def summary_value(loaded: Any, key: str, *, under: Any | None = None) -> str | None:
    """The newest value of a key in the summaries of a loaded table's snapshots; compaction's have none of ours.

    Or in those that lie `under` a snapshot.
    """
    snapshots = islice(lineage(loaded, under), 1, None) if under else lineage(loaded, loaded.currentSnapshot())
    return next((str(value) for s in snapshots if (value := s.summary().get(key)) is not None), None)


def load(spark: SparkSession, name: str) -> Any:
    """Iceberg's own Java table: its metadata, without a Spark job."""
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)  # type: ignore[union-attr]


def key_of(loaded: Any) -> tuple[str, ...]:
    """The columns that a loaded table is merged by."""
    key = loaded.properties().get(KEY) or ""
    return tuple(column for column in key.split(",") if column)


def current_snapshot(loaded: Any | None) -> int | None:
    """The id of a loaded table's present snapshot."""
    snapshot = loaded.currentSnapshot() if loaded is not None else None
    return int(snapshot.snapshotId()) if snapshot else None


def properties_sql(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{text(k)}' = '{text(v)}'" for k, v in properties.items())
