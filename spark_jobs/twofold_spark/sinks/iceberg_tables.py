"""Iceberg's tables for the sink, the changelog and readers: created, changed, loaded.

Tables with keys are created by Iceberg's own API: identifier fields are in the first commit, and
Iceberg's refusal of a partitioning can be told from any other error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, FloatType, StructType

from twofold_spark.errors import ServerAway, TableRefused
from twofold_spark.java_classes import java_class
from twofold_spark.session import CATALOG, member_catalog
from twofold_spark.sinks import column_changes
from twofold_spark.sinks.cut_rows import KEY, VersionedReader, VersionedTables
from twofold_spark.sinks.cuts import CUTS
from twofold_spark.sinks.merge_sql import SPARK, escape_literal
from twofold_spark.sinks.partitioning import Transform
from twofold_spark.sources.decoding import RECORD_PLACE

SEQUENCE = "twofold.sequence"
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


class IcebergTables(VersionedTables):
    """The tables of one source in a catalog."""

    def __init__(
        self, spark: SparkSession, catalog: str, format_version: int = FORMAT_VERSION, *, opened: str | None = None
    ) -> None:
        super().__init__(spark)
        self.catalog = catalog
        self.format_version = format_version
        self._opened = opened
        """The full name of a table that this job has opened, if there is one."""

    def name(self, table: str) -> str:
        """Return the name with the catalog.

        If the catalog has a schema's name, a procedure would read `twofold.cuts` as a name with its
        catalog.
        """
        return full_name(self.catalog, table)

    def has(self, table: str) -> bool:
        """Whether the catalog has the table.

        A proxy before a REST catalog may answer 404 while the server behind it is away, and Iceberg
        takes that for a table that is not there. So the table that this job has opened is asked for
        too.
        """
        exists, name = self.spark.catalog.tableExists, self.name(table)
        if exists(name):
            return True
        if self._opened is None:
            return False
        if not exists(self._opened):
            raise ServerAway(f"the catalog knows neither {name} nor {self._opened}; nothing is lost")
        return exists(name)

    def load(self, table: str) -> Any:
        return load_table(self.spark, self.name(table))

    def create(self, table: str, columns: str, properties: Mapping[str, str]) -> None:
        listed = format_properties(self.all_properties(properties))
        self.spark.sql(f"CREATE TABLE {self.name(table)} ({columns}) USING iceberg TBLPROPERTIES ({listed})")

    def all_properties(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        return {"format-version": str(self.format_version), **_PROPERTIES, **properties}

    def read_property(self, table: str, key: str) -> str:
        return str(self.load(table).properties().get(key) or "")

    def of_member(self, prefix: str) -> IcebergTables:
        return IcebergTables(self.spark, member_catalog(self.catalog, prefix), self.format_version)


class IcebergReader(VersionedReader):
    """Cuts and tables of a mirror in a catalog."""

    def __init__(self, spark: SparkSession, catalog: str = CATALOG) -> None:
        super().__init__(IcebergTables(spark, catalog))


def prepare_table(
    tables: IcebergTables,
    table: str,
    columns: StructType,
    properties: Mapping[str, str],
    *,
    label: str,
    key: Sequence[str] = (),
    partitioned_by: Sequence[Transform] = (),
) -> bool:
    """Create the table, or bring it to these columns and comments. Return whether it was created.

    It is created in one commit. Its key columns are required then, and are its identifier fields,
    which other engines read. `label` is its name for people.
    """
    spark, name = tables.spark, tables.name(table)
    if not tables.has(table):
        # IF NOT EXISTS looks first and creates then: two tables of one new namespace would collide
        # in between.
        with _NAMESPACE_LOCK:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {tables.catalog}.{SPARK.quote(table.partition('.')[0])}")
        schema = _make_schema(spark, columns, key)
        builder = find_catalog(spark, tables.catalog).buildTable(identify(spark, table), schema)
        builder = builder.withPartitionSpec(_make_spec(spark, table, schema, partitioned_by))
        for each, value in tables.all_properties(properties).items():
            builder = builder.withProperty(each, value)
        builder.create()
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


def quarantine(tables: IcebergTables, records: DataFrame) -> None:
    """Append the records that the quarantine table lacks."""
    with _QUARANTINE_LOCK:
        prepare_table(tables, "twofold.quarantine", records.schema, {}, label="quarantine")
    name = tables.name("twofold.quarantine")
    present = tables.spark.table(name).select(*RECORD_PLACE)
    records.join(present, list(RECORD_PLACE), "left_anti").writeTo(name).append()


def load_table(spark: SparkSession, name: str) -> Any:
    """Load Iceberg's own Java table: its metadata, without a Spark job."""
    _open_catalog(spark, name)
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
    key = loaded.properties().get(KEY) or ""
    return tuple(column for column in key.split(",") if column)


def current_snapshot(loaded: Any | None, branch: str = MAIN) -> int | None:
    """Return the id of the present snapshot of a loaded table's branch."""
    snapshot = loaded.snapshot(branch) if loaded is not None else None
    return int(snapshot.snapshotId()) if snapshot else None


def set_properties(spark: SparkSession, name: str, properties: Mapping[str, str]) -> None:
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({format_properties(properties)})")


def format_properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{escape_literal(k)}' = '{escape_literal(v)}'" for k, v in properties.items())


def identify(spark: SparkSession, table: str) -> Any:
    schema, _, name = table.partition(".")
    gateway: Any = spark.sparkContext._gateway
    levels = gateway.new_array(java_class(spark, "java.lang.String"), 1)
    levels[0] = schema
    namespace = java_class(spark, "org.apache.iceberg.catalog.Namespace").of(levels)
    return java_class(spark, "org.apache.iceberg.catalog.TableIdentifier").of(namespace, name)


def find_catalog(spark: SparkSession, catalog: str) -> Any:
    """Return Iceberg's own catalog behind one of the session's."""
    return _open_catalog(spark, f"{catalog}.{CUTS}").catalog(catalog).icebergCatalog()


def _open_catalog(spark: SparkSession, table: str) -> Any:
    """Open the catalog of a table, which need not be there, and return the session's catalogs.

    A catalog is opened with the settings of the session that is active in the thread, which may not
    know the catalog. So one that is not open yet is asked for the table by the session itself,
    which is active meanwhile.
    """
    catalogs = spark._jsparkSession.sessionState().catalogManager()
    if not catalogs.isCatalogRegistered(table.partition(".")[0]):
        spark.catalog.tableExists(table)
    return catalogs


def _make_schema(spark: SparkSession, columns: StructType, key: Sequence[str]) -> Any:
    ddl = column_changes.format_columns(columns, required=key)
    struct = java_class(spark, "org.apache.spark.sql.types.StructType").fromDDL(ddl)
    schema = java_class(spark, "org.apache.iceberg.spark.SparkSchemaUtil").convert(struct)
    identifiers = java_class(spark, "java.util.HashSet")()
    if not any(isinstance(columns[k].dataType, FloatType | DoubleType) for k in key):
        for column in key:
            identifiers.add(schema.findField(column).fieldId())
    return java_class(spark, "org.apache.iceberg.Schema")(schema.columns(), identifiers)


def _make_spec(spark: SparkSession, table: str, schema: Any, partitioned_by: Sequence[Transform]) -> Any:
    builder = java_class(spark, "org.apache.iceberg.PartitionSpec").builderFor(schema)
    try:
        for transform in partitioned_by:
            arguments = (transform.column,) if transform.size is None else (transform.column, transform.size)
            builder = getattr(builder, transform.method)(*arguments)
        return builder.build()
    except Py4JJavaError as error:
        raise TableRefused(
            f"{table} cannot be partitioned by {', '.join(map(str, partitioned_by))}: "
            f"{error.java_exception.getMessage()}",
            at_stake="how the table's rows are laid out, which the mirror never changes afterwards",
            repair=f"correct --partition-by {table}=..., or leave it out, and start the mirror again",
        ) from error
