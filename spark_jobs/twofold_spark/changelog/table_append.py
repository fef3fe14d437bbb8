"""One table's part of a turn of the changelog: a range of its topics is read, decoded and appended.

A sharded table has a topic of each member. The rows of all of them are one commit.

The rows go onto the snapshot whose offsets were read; Iceberg refuses them if another job has
appended since. What concerns one table raises `TableRefused`:

- retention removed records before they were appended;
- a topic is not the one that the table was made from;
- a record cannot be decoded;
- a column changed to a type that is not wider, or shards have types that do not unite;
- columns differ in case alone, as after a column's new name;
- the changes were put into another table before, by other options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.changelog.changelog_rows import (
    UNREADABLE,
    MemberRecords,
    count_changes,
    select_changelog_rows,
    unite_columns,
)
from twofold_spark.changelog.changelog_tables import ChangelogTable, MemberOffsets, TableTopics, find_subject
from twofold_spark.changelog.table_position import (
    OFFSETS,
    TablePosition,
    format_ends,
    initial_position,
    join_members,
    position_properties,
    read_position,
    write_position,
)
from twofold_spark.errors import SPARK_ERRORS, Refused, TableRefused
from twofold_spark.session import has_catalog
from twofold_spark.sinks import iceberg_tables
from twofold_spark.sinks.cut_rows import TOPIC
from twofold_spark.sinks.iceberg_commits import CommitRepeated, find_broken_head
from twofold_spark.sinks.iceberg_tables import IcebergTables
from twofold_spark.sources import kafka_reader
from twofold_spark.sources.decoding import UnreadableChoice, select_unreadable
from twofold_spark.sources.kafka_client import UNKNOWN_TOPIC, Kafka
from twofold_spark.sources.registry import Registry, Subject

_LOST = ("failOnDataLoss", UNKNOWN_TOPIC)
_CONFLICT = "org.apache.iceberg.exceptions.ValidationException"


@dataclass(frozen=True, slots=True)
class TableAppender:
    """Appends to tables; several threads may use it, each for a table of its own."""

    spark: SparkSession
    kafka: Kafka
    registry: Registry
    format_version: int
    unreadable: UnreadableChoice

    def read_ends(self, state: TableTopics, first_offsets: MemberOffsets) -> MemberOffsets:
        """Read how far a table is, and record it: a job that was killed may not have done so."""
        position = self._read_position(state, first_offsets)
        if not position.is_recorded:
            write_position(self.spark, state.table.full_name, position)
        return position.ends

    def append(
        self, state: TableTopics, first_offsets: MemberOffsets, until: MemberOffsets
    ) -> tuple[MemberOffsets, int]:
        """Bring the table to `until`. Return how far it is, and how many changes were appended."""
        table = state.table
        position = self._read_position(state, first_offsets)
        first = {p: position.ends.get(p, 0) for p, end in until.items() if position.ends.get(p, 0) < end}
        if not first:
            return position.ends, 0
        end = {place: until[place] for place in first}
        after = replace(position, ends={**position.ends, **end})
        try:
            records = self._read_records(state, first, end)
            changes = kafka_reader.wait_for_topic(lambda: count_changes(records))
            if changes:
                records = [replace(each, ids=changes[each.member].ids) for each in records if each.member in changes]
                try:
                    self._write(records, table, position, after)
                except CommitRepeated:
                    # Where the table is read, it goes back to `position`.
                    self._read_position(state, first_offsets)
                    self._write(records, table, position, after)
            elif self.spark.catalog.tableExists(table.full_name):
                write_position(self.spark, table.full_name, after)
        except SPARK_ERRORS as error:
            if not any(word in str(error) for word in _LOST):
                raise
            names = {place: f"{state.topics[place.member].name}-{place.partition}" for place in first}
            ranges = ", ".join(f"{names[p]} from {first[p]} to before {end[p]}" for p in sorted(first))
            raise table.refuse(
                f"Kafka lost records of {ranges} while the job read them",
                "the changes in them; the next start names those that are lost",
            ) from error
        return after.ends, sum(each.changes for each in changes.values())

    def record_position(self, table: ChangelogTable) -> None:
        """Write the table's position into its property.

        Compaction and `expire_snapshots` may remove the snapshot that has it.
        """
        if (position := read_position(self.spark, table.full_name)) is not None:
            write_position(self.spark, table.full_name, position)

    def _read_position(self, state: TableTopics, first_offsets: MemberOffsets) -> TablePosition:
        table = state.table
        position = read_position(self.spark, table.full_name)
        if position is None:
            for catalog, name in table.elsewhere:
                if has_catalog(self.spark, catalog) and self.spark.catalog.tableExists(name):
                    raise table.refuse_move(name)
            return initial_position(state, first_offsets)
        if position.is_sharded != table.is_sharded:
            raise table.refuse_move(table.full_name)
        if position.topic not in ("", table.name):
            raise table.refuse_other_topic(position.topic)
        joined = join_members(position, first_offsets)
        _check_topics(state, first_offsets, joined)
        if joined.rolled_back or joined != position or state.topic_ids.keys() - position.topic_ids.keys():
            # At once: when snapshots expire later, nobody could tell which state descends from
            # which.
            topic_ids = {**state.topic_ids, **position.topic_ids}
            joined = replace(joined, topic_ids=topic_ids, rolled_back=False, is_recorded=True)
            write_position(self.spark, table.full_name, joined)
        return joined

    def _read_records(self, state: TableTopics, first: MemberOffsets, end: MemberOffsets) -> list[MemberRecords]:
        found = []
        for member, topic in state.topics.items():
            begins, ends = ({p.partition: o for p, o in each.items() if p.member == member} for each in (first, end))
            if begins:
                records = kafka_reader.read_committed(self.spark, self.kafka, topic.name, begins, ends)
                found.append(MemberRecords(member, topic.name, records))
        return found

    def _write(
        self, records: Iterable[MemberRecords], table: ChangelogTable, before: TablePosition, after: TablePosition
    ) -> None:
        decoded = [(each, find_subject(self.registry, each.topic, each.ids)) for each in records]
        skip = self.unreadable == "skip"
        if skip:
            self._quarantine(decoded, table)
        rows = [select_changelog_rows(each, subject, skip_unreadable=skip) for each, subject in decoded]
        self._prepare_table(rows, table, before)
        columns = self.spark.table(table.full_name).schema
        writer = reduce(DataFrame.union, (each.to(columns) for each in rows)).writeTo(table.full_name)
        writer = writer.option(f"snapshot-property.{OFFSETS}", json.dumps(format_ends(after.ends)))
        writer = writer.option("isolation-level", "serializable")
        if before.snapshot is not None:
            writer = writer.option("validate-from-snapshot-id", str(before.snapshot))
        try:
            # append() would add to any later snapshot. An overwrite of no rows adds too, and
            # Iceberg validates its base.
            writer.overwrite(f.lit(False))
        except Exception as error:
            if _CONFLICT in str(error):
                if find_broken_head(iceberg_tables.load_table(self.spark, table.full_name)):
                    raise CommitRepeated from error
                raise Refused(
                    f"another job appended to {table.full_name} at the same time as this one",
                    at_stake="the same changes appended twice; this job's were not appended",
                    repair="let only one changelog job run on this warehouse, and start it again",
                ) from error
            if (place := re.search(rf"{UNREADABLE} (\S+)", str(error))) is None:
                raise
            self._quarantine(decoded, table)
            raise TableRefused(
                f"the record at {place[1]} cannot be decoded; the quarantine table has it",
                at_stake="its change",
                repair="find who else writes to the topic, then go on without the record with --unreadable skip",
            ) from error

    def _tables_of(self, table: ChangelogTable) -> IcebergTables:
        return IcebergTables(self.spark, table.catalog, self.format_version)

    def _prepare_table(self, rows: Iterable[DataFrame], table: ChangelogTable, before: TablePosition) -> None:
        columns = unite_columns(table, [each.schema for each in rows])
        properties = {TOPIC: table.name, **position_properties(before)}
        try:
            iceberg_tables.prepare_table(self._tables_of(table), table.path, columns, properties, label=table.label)
        except TableRefused as error:
            raise table.refuse_type(error.what) from error

    def _quarantine(self, decoded: Iterable[tuple[MemberRecords, Subject]], table: ChangelogTable) -> None:
        for each, subject in decoded:
            unreadable = select_unreadable(each.records, subject, each.topic)
            iceberg_tables.quarantine(self._tables_of(table), unreadable)


def _check_topics(state: TableTopics, first_offsets: MemberOffsets, position: TablePosition) -> None:
    """Refuse a topic that the table was not made from, or that lacks the next records."""
    table, known = state.table, position.topic_ids
    for member, present in state.topic_ids.items():
        if known.get(member, present) != present:
            raise table.refuse(
                f"{state.topics[member].name} was deleted and recreated since {table.label} was last appended to",
                "changes of the former topic that were not appended, and those of the new one, whose offsets begin at 0 again",
            )
    for place, end in sorted(state.ends.items()):
        reached, first = position.ends.get(place, 0), first_offsets[place]
        name = f"{state.topics[place.member].name}-{place.partition}"
        if first > reached:
            raise table.refuse(
                f"Kafka has {name} from offset {first} on, and the changelog of {table.label} ends before {reached}",
                f"the changes at {reached} to {first - 1}: retention removed them before they were appended",
            )
        if end < reached:
            raise table.refuse(
                f"{name} ends before {end} in Kafka, and the changelog of {table.label} ends before {reached}",
                "changes that Kafka lost, or whose offsets belong to other changes now",
            )
