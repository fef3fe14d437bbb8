"""One table's part of a turn of the changelog: a range of its topic is read, decoded and appended.

The rows go onto the snapshot whose offsets were read; Iceberg refuses them if another job has
appended since. What concerns one table raises `TableRefused`:

- retention removed records before they were appended;
- the topic is not the one that the table was made from;
- a record cannot be decoded;
- a column changed to a type that is not wider.

Each change becomes a row. `op`, `before` and `after` say what changed. `lsn`, `transaction_id`,
`total_order`, `gid` and `source_us` are its place in the source. For a gid in a known form there
are also `global_id` and `branch`. `partition` and `offset` are its place in Kafka. Tombstones only
repeat a delete, and are not kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.changelog.table_position import (
    OFFSETS,
    TablePosition,
    initial_position,
    position_properties,
    read_position,
    write_position,
)
from twofold_spark.errors import SPARK_ERRORS, Refused, SetupError, TableRefused
from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.iceberg_repeated import CommitRepeated, find_broken_head
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.decoding import UnreadableChoice, select_unreadable
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry, Subject
from twofold_spark.sources.table_topics import Offsets, TopicState
from twofold_spark.sources.topic_names import parse_topic_name

UNREADABLE = "twofold: unreadable"
"""An error of Spark with this text names the place of a record that cannot be decoded."""

_OF_GID = ("global_id", "branch")
_CHANGE: decoding.EnvelopeParts = {
    **decoding.CHANGE,
    "special": frozenset(),
    "source": frozenset({"lsn", "gid", "ts_us", *_OF_GID}),
    "transaction": frozenset({"id", "total_order"}),
}

_LOST = ("failOnDataLoss", "UnknownTopicOrPartition")
_CONFLICT = "org.apache.iceberg.exceptions.ValidationException"


@dataclass(frozen=True, slots=True)
class AppendResult:
    """How far the table is now, and how many changes were appended."""

    ends: Offsets
    records: int


@dataclass(frozen=True, slots=True)
class _ChangelogTable:
    """The table of a topic."""

    path: str
    """The table's name in the catalog."""
    table: str
    """The table's name with the catalog, quoted."""
    label: str
    """The table's name in the source."""


class TableAppender:
    """Appends to tables; several threads may use it, each for a table of its own."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: Kafka,
        registry: Registry,
        prefix: str,
        *,
        catalog: str,
        format_version: int,
        unreadable: UnreadableChoice,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._registry = registry
        self._prefix = prefix
        self._catalog = catalog
        self._format_version = format_version
        self._unreadable = unreadable

    def read_ends(self, topic: TopicState, first_offsets: Offsets) -> Offsets:
        """Read how far the topic's table is."""
        return self._read_position(topic, first_offsets, self._find_table(topic.name)).ends

    def append(self, topic: TopicState, first_offsets: Offsets, until: Offsets) -> AppendResult:
        """Bring the table from where it is to `until`."""
        target = self._find_table(topic.name)
        position = self._read_position(topic, first_offsets, target)
        first = {p: position.ends.get(p, 0) for p, end in until.items() if position.ends.get(p, 0) < end}
        if not first:
            return AppendResult(position.ends, 0)
        end = {p: until[p] for p in first}
        after = replace(position, ends={**position.ends, **end})
        try:
            records = kafka_reader.read_committed(self._spark, self._kafka, topic.name, first, end)
            ids, changes = count_changes(records)
            if changes:
                subject = self._find_subject(topic.name, ids)
                try:
                    self._write(records, subject, topic.name, target, position, after)
                except CommitRepeated:
                    # Where the table is read, it goes back to `position`.
                    self._read_position(topic, first_offsets, target)
                    self._write(records, subject, topic.name, target, position, after)
            elif self._spark.catalog.tableExists(target.table):
                write_position(self._spark, target.table, after)
        except SPARK_ERRORS as error:
            if not any(word in str(error) for word in _LOST):
                raise
            what = f"Kafka lost records of {topic.name} between {first} and {end} while the job read them"
            raise _refuse_topic(
                target, what, "the changes in them; the next start names those that are lost"
            ) from error
        return AppendResult(after.ends, changes)

    def record_position(self, topic: str) -> None:
        """Write the table's position into its property.

        Compaction and `expire_snapshots` may remove the snapshot that has it.
        """
        table = self._find_table(topic).table
        if (position := read_position(self._spark, table)) is not None:
            write_position(self._spark, table, position)

    def _read_position(self, topic: TopicState, first_offsets: Offsets, target: _ChangelogTable) -> TablePosition:
        position = read_position(self._spark, target.table)
        if position is None:
            return initial_position(topic, first_offsets)
        _check_topic(topic, first_offsets, target, position)
        if position.rolled_back or (topic.id and not position.topic_id):
            # At once: when snapshots expire later, nobody could tell which state descends from
            # which.
            position = replace(position, topic_id=topic.id, rolled_back=False)
            write_position(self._spark, target.table, position)
        return position

    def _write(
        self,
        records: DataFrame,
        subject: Subject,
        topic: str,
        target: _ChangelogTable,
        before: TablePosition,
        after: TablePosition,
    ) -> None:
        skip = self._unreadable == "skip"
        if skip:
            self._quarantine(select_unreadable(records, subject, topic))
        rows = select_changelog_rows(records, subject, skip_unreadable=skip)
        properties = {"twofold.topic": topic, **position_properties(before)}
        try:
            iceberg_tables.prepare_table(
                self._spark,
                self._catalog,
                target.path,
                rows.schema,
                label=target.label,
                properties=properties,
                format_version=self._format_version,
            )
        except TableRefused as error:
            raise _refuse_topic(target, error.what, "the column's values") from error
        writer = rows.writeTo(target.table).option(f"snapshot-property.{OFFSETS}", json.dumps(after.ends))
        writer = writer.option("isolation-level", "serializable")
        if before.snapshot is not None:
            writer = writer.option("validate-from-snapshot-id", str(before.snapshot))
        try:
            # append() would add to any later snapshot. An overwrite of no rows adds too, and
            # Iceberg validates its base.
            writer.overwrite(f.lit(False))
        except Exception as error:
            if _CONFLICT in str(error):
                if find_broken_head(iceberg_tables.load_table(self._spark, target.table)):
                    raise CommitRepeated from error
                raise Refused(
                    f"another job appended to {target.table} at the same time as this one",
                    at_stake="the same changes appended twice; this job's were not appended",
                    repair="let only one changelog job run on this warehouse, and start it again",
                ) from error
            if (place := re.search(rf"{UNREADABLE} (\S+)", str(error))) is None:
                raise
            self._quarantine(select_unreadable(records, subject, topic))
            raise TableRefused(
                f"the record at {topic}-{place[1]} cannot be decoded; the quarantine table has it",
                at_stake="its change",
                repair="find who else writes to the topic, then go on without the record with --unreadable skip",
            ) from error

    def _quarantine(self, records: DataFrame) -> None:
        iceberg_tables.quarantine(records, self._catalog, self._format_version)

    def _find_table(self, topic: str) -> _ChangelogTable:
        schema, name = parse_topic_name(topic, self._prefix, self._find_subject(topic).latest)
        path = f"{schema}_changelog.{name}"
        return _ChangelogTable(path, iceberg_tables.full_name(self._catalog, path), f"{schema}.{name}")

    def _find_subject(self, topic: str, ids: frozenset[int] = frozenset()) -> Subject:
        name = f"{topic}-value"
        subject = self._registry.find_subject(name)
        if subject is None or not ids <= subject.ids:
            subject = self._registry.refresh_subject(name)
        if subject is None:
            raise SetupError(f"the registry has no subject {name}: give --registry the connector's registry")
        return subject


def _check_topic(topic: TopicState, first_offsets: Offsets, target: _ChangelogTable, position: TablePosition) -> None:
    """Refuse a topic that the table was not made from, or that lacks the next records."""
    if position.topic_id and topic.id and position.topic_id != topic.id:
        raise _refuse_topic(
            target,
            f"{topic.name} was deleted and recreated since {target.label} was last appended to",
            "changes of the former topic that were not appended, and those of the new one, whose offsets begin at 0 again",
        )
    for partition, end in sorted(topic.ends.items()):
        reached, first = position.ends.get(partition, 0), first_offsets[partition]
        if first > reached:
            raise _refuse_topic(
                target,
                f"Kafka has {topic.name}-{partition} from offset {first} on, and the changelog of {target.label} ends before "
                f"{reached}",
                f"the changes at {reached} to {first - 1}: retention removed them before they were appended",
            )
        if end < reached:
            raise _refuse_topic(
                target,
                f"{topic.name}-{partition} ends before {end} in Kafka, and the changelog of {target.label} ends before {reached}",
                "changes that Kafka lost, or whose offsets belong to other changes now",
            )


def _refuse_topic(target: _ChangelogTable, what: str, at_stake: str) -> TableRefused:
    return TableRefused(
        what,
        at_stake=at_stake,
        repair=f"keep the table under another name (ALTER TABLE {target.table} RENAME TO ...) and start again: a new "
        "table begins where Kafka does",
    )


def count_changes(records: DataFrame) -> tuple[frozenset[int], int]:
    """Return the schema ids of the records, and how many of them are no tombstones."""
    identifier = f.conv(f.hex(f.substring("value", 2, 4)), 16, 10).cast("long")
    row = records.agg(f.collect_set(identifier), f.count("value")).first()
    assert row is not None, "an aggregate of no rows is a row"
    return frozenset(row[0]), row[1]


def select_changelog_rows(records: DataFrame, subject: Subject, *, skip_unreadable: bool) -> DataFrame:
    """Decode the records into the changelog's rows.

    An unreadable record fails the read, or is skipped.
    """
    place = f.concat_ws("@", f.col("partition").cast("string"), f.col("offset").cast("string"))
    fail = f.raise_error(f.concat(f.lit(f"{UNREADABLE} "), place)).cast("string")
    op: Column = f.coalesce(f.col("e.op"), fail)
    decoded = (
        records.where(f.col("value").isNotNull())
        .withColumn("e", decoding.decode_envelope(f.col("value"), subject, _CHANGE))
        .where(f.lit(not skip_unreadable) | f.col("e.op").isNotNull())
    )
    # A connector that is older than this job does not write them.
    present = decoded.select("e.source.*").columns
    of_gid = (f.col(f"e.source.{name}") if name in present else f.lit(None).cast("string") for name in _OF_GID)
    return decoded.select(
        op.alias("op"),
        f.col("e.before"),
        f.col("e.after"),
        f.col("e.source.lsn").alias("lsn"),
        f.col("e.transaction.id").alias("transaction_id"),
        f.col("e.transaction.total_order").alias("total_order"),
        f.col("e.source.gid").alias("gid"),
        f.col("e.source.ts_us").alias("source_us"),
        f.col("e.unchanged"),
        f.col("e.special"),
        f.col("partition"),
        f.col("offset"),
        *(column.alias(name) for name, column in zip(_OF_GID, of_gid, strict=True)),
    )
