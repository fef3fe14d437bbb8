"""Iceberg's tables for the sink, the changelog and readers: created, changed, loaded, read."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twofold_spark.java_classes import java_class
from twofold_spark.session import CATALOG, member_catalog
from twofold_spark.sinks import column_changes, cut_rows, iceberg_schema, sharding
from twofold_spark.sinks.cuts import CUTS, NO_LIMIT, OF_GROUP, CutLimit, GlobalCut
from twofold_spark.sinks.merge_sql import SPARK, escape_literal
from twofold_spark.sinks.partitioning import Transform
from twofold_spark.sinks.sharding import Sharding
from twofold_spark.sources.decoding import RECORD_PLACE

SEQUENCE = "twofold.sequence"
KEY = "twofold.key"
COMMENT = "comment"
"""The property that Spark's CREATE TABLE ... COMMENT sets."""
MAIN = "main"
"""The branch that a table's plain name reads."""
FORMAT_VERSION = 3
"""Iceberg's format of new tables, if none is asked for."""
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A batch adds a file or two. With Iceberg's 4 MB for opening a file, every fourth file is a
    # task of the next merge.
    "read.split.open-file-cost": "262144",
}
_NAMESPACE_LOCK = threading.Lock()
_QUARANTINE_LOCK = threading.Lock()
"""Two tables may have their first unreadable record at the same time."""


def quote_path(*names: str) -> str:
    return ".".join(map(SPARK.quote, names))


def full_name(catalog: str, table: str) -> str:
    """Return the name of a table (`schema.name`) with its catalog, quoted."""
    return f"{catalog}.{quote_path(*table.split('.', 1))}"


def name_branch(table: str, branch: str) -> str:
    """Return the name that reads and writes a branch of a table."""
    return table if branch == MAIN else f"{table}.branch_{branch}"


class IcebergReader:
    """Cuts and tables of a mirror in a catalog."""

    def __init__(self, spark: SparkSession, catalog: str = CATALOG) -> None:
        self._spark = spark
        self._catalog = catalog

    def find_cut(self, limit: CutLimit = NO_LIMIT, *, first: bool = False) -> GlobalCut | None:
        name = full_name(self._catalog, CUTS)
        if not self._spark.catalog.tableExists(name):
            return None
        return cut_rows.find_cut(self._spark.table(name), limit, first=first)

    def is_of_group(self) -> bool:
        cuts = load_table(self._spark, full_name(self._catalog, CUTS))
        return bool(cuts.properties().get(OF_GROUP) == str(True))

    def read_sharding(self) -> Sharding:
        cuts = load_table(self._spark, full_name(self._catalog, CUTS))
        return Sharding.parse(cuts.properties().get(sharding.PROPERTY) or "")

    def read_table(self, prefix: str, name: str, version: str) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self._name(prefix, name)} VERSION AS OF {int(version)}")

    def read_key(self, prefix: str, name: str) -> tuple[str, ...]:
        return read_key(load_table(self._spark, self._name(prefix, name)))

    def _name(self, prefix: str, table: str) -> str:
        of_member = prefix != sharding.SHARED and self.is_of_group()
        catalog = member_catalog(self._catalog, prefix) if of_member else self._catalog
        return full_name(catalog, table)


def prepare_table(
    spark: SparkSession,
    catalog: str,
    table: str,
    columns: StructType,
    *,
    label: str,
    properties: Mapping[str, str],
    format_version: int,
    key: Sequence[str] = (),
    partitioned_by: Sequence[Transform] = (),
) -> bool:
    """Create the table, or bring it to these columns and comments. Return whether it was created.

    Key and partitioning are those of a new table.
    """
    name = full_name(catalog, table)
    if not spark.catalog.tableExists(name):
        # IF NOT EXISTS looks first and creates then: two tables of one new namespace would collide
        # in between.
        with _NAMESPACE_LOCK:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{SPARK.quote(table.partition('.')[0])}")
        iceberg_schema.create_table(
            spark,
            catalog,
            table,
            columns,
            key=key,
            partitioned_by=partitioned_by,
            properties=all_properties(format_version, properties),
        )
        return True
    for change in column_changes.list_alterations(spark.table(name).schema, columns, table=label):
        spark.sql(f"ALTER TABLE {name} {change}")
    comment = properties.get(COMMENT)
    if comment and load_table(spark, name).properties().get(COMMENT) != comment:
        set_properties(spark, name, {COMMENT: comment})
    return False


def release_key(spark: SparkSession, name: str, key: Sequence[str]) -> None:
    """Let the columns of a former key be null: they identify no rows any more."""
    loaded = load_table(spark, name)
    identifier, required = set(loaded.schema().identifierFieldNames()), set()
    for column in key:
        field = loaded.schema().findField(column)
        if field is not None and field.isRequired():
            required.add(column)
    if identifier:
        spark.sql(f"ALTER TABLE {name} DROP IDENTIFIER FIELDS {', '.join(map(SPARK.quote, sorted(identifier)))}")
    for column in sorted(required):
        spark.sql(f"ALTER TABLE {name} ALTER COLUMN {SPARK.quote(column)} DROP NOT NULL")


def quarantine(records: DataFrame, catalog: str, format_version: int) -> None:
    """Append the records that the quarantine table lacks."""
    spark, table = records.sparkSession, "twofold.quarantine"
    with _QUARANTINE_LOCK:
        prepare_table(
            spark, catalog, table, records.schema, label="quarantine", properties={}, format_version=format_version
        )
    name = full_name(catalog, table)
    present = spark.table(name).select(*RECORD_PLACE)
    records.join(present, list(RECORD_PLACE), "left_anti").writeTo(name).append()


def load_table(spark: SparkSession, name: str) -> Any:
    """Load Iceberg's own Java table: its metadata, without a Spark job."""
    return java_class(spark, "org.apache.iceberg.spark.Spark3Util").loadIcebergTable(spark._jsparkSession, name)


def walk_lineage(loaded: Any, snapshot: Any | None) -> Iterator[Any]:
    """Yield a snapshot and its ancestors, newest first, as far as they are kept."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = loaded.snapshot(parent) if parent is not None else None


def read_summary(loaded: Any, key: str, *, branch: str = MAIN, under: Any | None = None) -> str | None:
    """Return the newest value of a key in the summaries of a branch's snapshots.

    With `under`, only snapshots below that one count.

    Compaction's snapshots have none of the jobs' keys.
    """
    lineage = walk_lineage(loaded, under or loaded.snapshot(branch))
    snapshots = islice(lineage, 1 if under else 0, None)
    return next((str(value) for s in snapshots if (value := s.summary().get(key)) is not None), None)


def read_key(loaded: Any) -> tuple[str, ...]:
    """Return the columns that a loaded table is merged by."""
    key = loaded.properties().get(KEY) or ""
    return tuple(column for column in key.split(",") if column)


def current_snapshot(loaded: Any | None, branch: str = MAIN) -> int | None:
    """Return the id of the present snapshot of a loaded table's branch."""
    snapshot = loaded.snapshot(branch) if loaded is not None else None
    return int(snapshot.snapshotId()) if snapshot else None


def list_properties(format_version: int, properties: Mapping[str, str]) -> str:
    """Format what a new table's TBLPROPERTIES has."""
    return format_properties(all_properties(format_version, properties))


def all_properties(format_version: int, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return what a new table has as properties."""
    return {"format-version": str(format_version), **_PROPERTIES, **properties}


def set_properties(spark: SparkSession, name: str, properties: Mapping[str, str]) -> None:
    """Set properties of a table that exists."""
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({format_properties(properties)})")


def format_properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{escape_literal(k)}' = '{escape_literal(v)}'" for k, v in properties.items())
