"""One table's part of a turn of the changelog: a stretch of its topic, read, decoded and appended.

The rows go onto the snapshot whose offsets were looked at; Iceberg refuses them if another job has appended any since. What is one table's
own trouble (`TableRefused`): records that retention took before they were appended, a topic that is not the one that the table was made
of, a record that cannot be decoded, a change of columns that no widening leads to.

A change is a row: `op`, `before`, `after`, where it was in the source (`lsn`, `transaction_id`, `total_order`, `gid`, `source_us`, and of a
gid in a known form `global_id` and `branch`) and where it came from (`partition`, `offset`). Tombstones repeat a delete and are not kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark.changelog.table_position import OFFSETS, Position, beginning, note, position_of, properties
from twofold_spark.errors import SPARKS, MissingGround, Refused, TableRefused
from twofold_spark.sinks import iceberg_tables
from twofold_spark.sources import decoding, kafka_reader, unreadable_records
from twofold_spark.sources.kafka_reader import Kafka
from twofold_spark.sources.registry import Registry, Subject
from twofold_spark.sources.table_topics import Offsets, Topic
from twofold_spark.sources.topic_names import names_of

_OF_GID = ("global_id", "branch")
_CHANGE: decoding.Parts = {
    **decoding.CHANGE,
    "special": frozenset(),
    "source": frozenset({"lsn", "gid", "ts_us", *_OF_GID}),
    "transaction": frozenset({"id", "total_order"}),
}
_UNREADABLE = "twofold: unreadable"
_LOST = ("failOnDataLoss", "UnknownTopicOrPartition")
_CONFLICT = "org.apache.iceberg.exceptions.ValidationException"


@dataclass(frozen=True, slots=True)
class Done:
    """How far the table is now, and how many changes were appended."""

    ends: Offsets
    records: int


@dataclass(frozen=True, slots=True)
class _Target:
    """A topic's table."""

    table: str
    label: str
    """What the source calls it."""


class Appender:
    """Several tables at once may be given to it."""

    def __init__(
        self,
        spark: SparkSession,
        where: Kafka,
        registry: Registry,
        prefix: str,
        *,
        catalog: str,
        unreadable: unreadable_records.Choice,
    ) -> None:
        self._spark = spark
        self._where = where
        self._registry = registry
        self._prefix = prefix
        self._catalog = catalog
        self._unreadable = unreadable

    def ends(self, topic: Topic, beginnings: Offsets) -> Offsets:
        """How far the topic's table is."""
        target = self._target(topic.name)
        return self._position(topic, beginnings, target).ends

    def append(self, topic: Topic, beginnings: Offsets, until: Offsets) -> Done:
        """Brings the table from where it is to `until`."""
        target = self._target(topic.name)
        here = self._position(topic, beginnings, target)
        first = {p: here.ends.get(p, 0) for p, end in until.items() if here.ends.get(p, 0) < end}
        if not first:
            return Done(here.ends, 0)
        end = {p: until[p] for p in first}
        after = replace(here, ends={**here.ends, **end})
        try:
            records = kafka_reader.committed(self._spark, self._where, topic.name, first, end)
            ids, changes = _content(records)
            if changes:
                self._write(records, self._subject(topic.name, ids), topic.name, target, here, after)
            elif self._spark.catalog.tableExists(target.table):
                note(self._spark, target.table, after)
        except SPARKS as error:
            if not any(word in str(error) for word in _LOST):
                raise
            what = f"Kafka lost records of {topic.name} between {first} and {end} while they were read"
            raise _refused(target, what, "the changes in them: the next start names what is there") from error
        return Done(after.ends, changes)

    def note(self, topic: str) -> None:
        """Has the table note how far it is: compaction and `expire_snapshots` may leave no snapshot that says so."""
        table = self._target(topic).table
        if (here := position_of(self._spark, table)) is not None:
            note(self._spark, table, here)

    def _position(self, topic: Topic, beginnings: Offsets, target: _Target) -> Position:
        here = position_of(self._spark, target.table)
        if here is None:
            return beginning(topic, beginnings)
        _check(topic, beginnings, target, here)
        if here.taken_back or (topic.id and not here.topic_id):
            # At once: of snapshots that are expired later nobody could say any more what came from what.
            here = replace(here, topic_id=topic.id, taken_back=False)
            note(self._spark, target.table, here)
        return here

    def _write(
        self, records: DataFrame, subject: Subject, topic: str, target: _Target, here: Position, after: Position
    ) -> None:
        skip = self._unreadable == "skip"
        if skip:
            iceberg_tables.quarantine(unreadable_records.unreadable(records, subject, topic), self._catalog)
        rows = _changes(records, subject, skip=skip)
        made_with = {"twofold.topic": topic, **properties(here)}
        try:
            iceberg_tables.prepare(self._spark, target.table, rows.schema, label=target.label, properties=made_with)
        except TableRefused as error:
            raise _refused(target, error.what, "the column's values") from error
        writer = rows.writeTo(target.table).option(f"snapshot-property.{OFFSETS}", json.dumps(after.ends))
        writer = writer.option("isolation-level", "serializable")
        if here.snapshot is not None:
            writer = writer.option("validate-from-snapshot-id", str(here.snapshot))
        try:
            # append() adds to whatever is there by then. Overwriting no row adds as well, and is checked against what was looked at.
            writer.overwrite(f.lit(False))
        except Exception as error:
            if _CONFLICT in str(error):
                raise Refused(
                    f"another job appended to {target.table} while this one was about to",
                    at_stake="the same changes appended twice; this job's were not",
                    repair="let one changelog job run on this warehouse, and start it again",
                ) from error
            if (place := re.search(rf"{_UNREADABLE} (\S+)", str(error))) is None:
                raise
            iceberg_tables.quarantine(unreadable_records.unreadable(records, subject, topic), self._catalog)
            raise TableRefused(
                f"the record at {topic}-{place[1]} cannot be decoded; the quarantine table has it",
                at_stake="its change",
                repair="find who else writes to the topic, then go on without it by --unreadable skip",
            ) from error

    def _target(self, topic: str) -> _Target:
        schema, name = names_of(topic, self._prefix, self._subject(topic).latest)
        table = f"{self._catalog}.{iceberg_tables.quoted(f'{schema}_changelog', name)}"
        return _Target(table, f"{schema}.{name}")

    def _subject(self, topic: str, ids: frozenset[int] = frozenset()) -> Subject:
        name = f"{topic}-value"
        subject = self._registry.subject(name)
        if subject is None or not ids <= subject.ids:
            subject = self._registry.refreshed(name)
        if subject is None:
            raise MissingGround(f"the registry has no subject {name}: is it the connector's registry?")
        return subject


def _check(topic: Topic, beginnings: Offsets, target: _Target, here: Position) -> None:
    """Whether the topic is the one that the table was made of, and has what follows in it."""
    if here.topic_id and topic.id and here.topic_id != topic.id:
        raise _refused(
            target,
            f"{topic.name} was deleted and made anew since {target.label} was last appended to",
            "what the topic before had and was not appended, and what the new one has: its offsets begin anew",
        )
    for partition, end in sorted(topic.ends.items()):
        reached, begins = here.ends.get(partition, 0), beginnings[partition]
        if begins > reached:
            raise _refused(
                target,
                f"Kafka has {topic.name}-{partition} from the offset {begins} on, and the changelog of {target.label} ends before "
                f"{reached}",
                f"the changes at {reached} to {begins - 1}: retention took them before they were appended",
            )
        if end < reached:
            raise _refused(
                target,
                f"{topic.name}-{partition} ends before {end} in Kafka, and the changelog of {target.label} ends before {reached}",
                "changes that Kafka took back, or that have the offsets of others now",
            )


def _refused(target: _Target, what: str, at_stake: str) -> TableRefused:
    return TableRefused(
        what,
        at_stake=at_stake,
        repair=f"keep what there is under another name (ALTER TABLE {target.table} RENAME TO ...) and start again: a new "
        "table begins where Kafka does",
    )


def _content(records: DataFrame) -> tuple[frozenset[int], int]:
    """The schemas that the records were written with, and how many are no tombstones."""
    identifier = f.conv(f.hex(f.substring("value", 2, 4)), 16, 10).cast("long")
    row = records.agg(f.collect_set(identifier), f.count("value")).first()
    assert row is not None, "an aggregate of no rows is a row"
    return frozenset(row[0]), row[1]


def _changes(records: DataFrame, subject: Subject, *, skip: bool) -> DataFrame:
    place = f.concat_ws("@", f.col("partition").cast("string"), f.col("offset").cast("string"))
    unreadable = f.raise_error(f.concat(f.lit(f"{_UNREADABLE} "), place)).cast("string")
    op: Column = f.coalesce(f.col("e.op"), unreadable)
    decoded = (
        records.where(f.col("value").isNotNull())
        .withColumn("e", decoding.envelope(f.col("value"), subject, _CHANGE))
        .where(f.lit(not skip) | f.col("e.op").isNotNull())
    )
    # A connector that is older than this job does not say what a gid means.
    said = decoded.select("e.source.*").columns
    of_gid = (f.col(f"e.source.{name}") if name in said else f.lit(None).cast("string") for name in _OF_GID)
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
