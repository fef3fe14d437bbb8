"""The changelog: every committed change in its order, appended to a table per source table.

The stream is all tables' topics, read_committed; new topics join by their names. Each table's snapshot says, in the very
commit that holds the rows, how far each partition has been appended (`twofold.offsets`), and rows below that are
skipped: a retried batch, a killed driver and a lost checkpoint neither repeat nor miss a change. The rows are added to the
snapshot that was looked at, and Iceberg refuses them if another job has added any since: of two that append one batch,
the second cannot. A checkpoint that is lost for longer than Kafka keeps the records is seen when the next one begins.

A change is a row: `op`, `before`, `after`, where it was in the source (`lsn`, `transaction_id`, `total_order`, `gid`,
`source_us`) and where it came from (`partition`, `offset`). Tombstones repeat a delete and are not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from twofold_spark import decode, kafka, quarantine
from twofold_spark.errors import MissingGround, Refused
from twofold_spark.kafka import Kafka
from twofold_spark.registry import Registry, Subject
from twofold_spark.session import CATALOG
from twofold_spark.sinks import iceberg_tables
from twofold_spark.tables import names_of, topics_pattern

OFFSETS = "twofold.offsets"
_CHANGE: decode.Parts = {
    **decode.CHANGE,
    "special": frozenset(),
    "source": frozenset({"lsn", "gid", "ts_us"}),
    "transaction": frozenset({"id", "total_order"}),
}
_UNREADABLE = "twofold: unreadable"
_CONFLICT = "org.apache.iceberg.exceptions.ValidationException"
_MARKER = 1
"""The offset behind the last record that was appended is its transaction's marker, which no reader is handed."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a batch holds of one partition: schema ids, and one more than the last offset."""

    ids: frozenset[int]
    end: int
    records: int
    changes: int
    """Records that are no tombstones."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a table is: one more than the last offset of each partition, and the snapshot that says so."""

    ends: Mapping[int, int]
    snapshot: int | None
    """None of a table that has nothing yet."""


@dataclass(frozen=True, slots=True)
class Appended:
    """One batch, for the terminal."""

    records: int
    tables: int

    def __str__(self) -> str:
        return f"changelog: {self.records} records of {self.tables} tables"


class Changelog:
    """What the stream of the tables' topics is given to, batch by batch."""

    def __init__(
        self,
        where: Kafka,
        registry: Registry,
        prefix: str,
        *,
        catalog: str = CATALOG,
        batch_rows: int = 500_000,
        tables_at_once: int = 3,
        unreadable: quarantine.Choice = "stop",
        report: Callable[[Appended], None] = lambda _: None,
    ) -> None:
        self._where = where
        self._registry = registry
        self._prefix = prefix
        self._catalog = catalog
        self._batch_rows = batch_rows
        self._pool = ThreadPoolExecutor(tables_at_once, thread_name_prefix="append")
        self._unreadable = unreadable
        self._report = report
        self._beginnings: dict[str, dict[int, int]] = {}

    def stream(self, spark: SparkSession) -> DataFrame:
        """All tables' topics, those that come later as well."""
        pattern = topics_pattern(self._prefix)
        return kafka.stream(spark, self._where, max_offsets=self._batch_rows, subscribePattern=pattern)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            self._begin(batch.sparkSession)
        # Each table reads the batch: without this every one of them would read Kafka.
        batch = batch.select("topic", "partition", "offset", "key", "value").persist()
        try:
            found = _found(batch)
            work = [self._pool.submit(self._append, batch, topic, parts) for topic, parts in sorted(found.items())]
            failures = [error for job in work if (error := job.exception()) is not None]
        finally:
            batch.unpersist()
        if failures:
            raise failures[0]
        if found:
            records = sum(stretch.records for parts in found.values() for stretch in parts.values())
            self._report(Appended(records, len(found)))

    def _begin(self, spark: SparkSession) -> None:
        """A new checkpoint begins with what Kafka still has: refuses if it has lost what follows the end of a table.

        From then on Spark fails a query that something was lost of.
        """
        self._beginnings = kafka.beginnings(spark, self._where, topics_pattern(self._prefix))
        for topic, beginnings in sorted(self._beginnings.items()):
            subject = self._registry.subject(f"{topic}-value")
            if subject is None:  # nothing was ever written to it
                continue
            table, label = self._table(topic, subject)
            position = self._position(spark, table)
            for partition, beginning in sorted(beginnings.items()):
                end = position.ends.get(partition, 0)
                if position.snapshot is not None and beginning > end + _MARKER:
                    raise Refused(
                        f"Kafka has {topic}-{partition} from the offset {beginning} on, and the changelog of {label} ends "
                        f"before {end}",
                        at_stake=f"the changes at {end} to {beginning - 1}: the checkpoint is a new one, and retention "
                        "took them before they were appended",
                        repair=f"keep what there is under another name (ALTER TABLE {table} RENAME TO ...) and start "
                        "again: a new table begins where Kafka does",
                    )

    def _append(self, batch: DataFrame, topic: str, parts: Mapping[int, Stretch]) -> None:
        spark = batch.sparkSession
        subject = self._subject(topic, frozenset[int]().union(*(stretch.ids for stretch in parts.values())))
        table, label = self._table(topic, subject)
        position = self._position(spark, table)
        # What Kafka had lost before the table was begun is not missing in it.
        applied = position.ends if position.snapshot is not None else self._beginnings.get(topic, {})
        due = [
            (f.col("partition") == partition) & (f.col("offset") >= applied.get(partition, 0))
            for partition, stretch in parts.items()
            if stretch.changes and applied.get(partition, 0) < stretch.end
        ]
        if not due:
            return
        fresh = due[0]
        for more in due[1:]:
            fresh |= more
        records = batch.where(f.col("topic") == topic).where(fresh)
        if self._unreadable == "skip":
            iceberg_tables.quarantine(quarantine.unreadable(records, subject, topic), self._catalog)
        rows = _changes(records, subject, skip=self._unreadable == "skip")
        iceberg_tables.prepare(spark, table, rows.schema, label=label, properties={"twofold.topic": topic})
        ends = {**applied} | {partition: max(s.end, applied.get(partition, 0)) for partition, s in parts.items()}
        writer = rows.writeTo(table).option(f"snapshot-property.{OFFSETS}", json.dumps(ends))
        writer = writer.option("isolation-level", "serializable")
        if position.snapshot is not None:
            writer = writer.option("validate-from-snapshot-id", str(position.snapshot))
        try:
            # append() adds to whatever is there by then. Overwriting no row adds as well, and is checked against what was looked at.
            writer.overwrite(f.lit(False))
        except Exception as error:
            if _CONFLICT in str(error):
                raise Refused(
                    f"another job appended to {table} while this one was about to",
                    at_stake="the same changes appended twice; this job's were not",
                    repair="let one changelog job run on this warehouse, and start it again",
                ) from error
            if (place := re.search(rf"{_UNREADABLE} (\S+)", str(error))) is None:
                raise
            iceberg_tables.quarantine(quarantine.unreadable(records, subject, topic), self._catalog)
            raise Refused(
                f"the record at {topic}-{place[1]} cannot be decoded; the quarantine table has it",
                at_stake="its change",
                repair="find who else writes to the topic, then go on without it by --unreadable skip",
            ) from error

    def _position(self, spark: SparkSession, table: str) -> Position:
        loaded = iceberg_tables.load(spark, table) if spark.catalog.tableExists(table) else None
        snapshot = iceberg_tables.current_snapshot(loaded)
        if snapshot is None:
            return Position({}, None)
        text = iceberg_tables.summary_value(loaded, OFFSETS)
        return Position({int(partition): end for partition, end in json.loads(text or "{}").items()}, snapshot)

    def _table(self, topic: str, subject: Subject) -> tuple[str, str]:
        """The topic's table, and what the source calls it."""
        schema, name = names_of(topic, self._prefix, subject.latest)
        return f"{self._catalog}.{iceberg_tables.quoted(f'{schema}_changelog', name)}", f"{schema}.{name}"

    def _subject(self, topic: str, ids: frozenset[int]) -> Subject:
        name = f"{topic}-value"
        subject = self._registry.subject(name)
        if subject is None or not ids <= subject.ids:
            subject = self._registry.refreshed(name)
        if subject is None:
            raise MissingGround(f"the registry has no subject {name}: is it the connector's registry?")
        return subject


def _found(batch: DataFrame) -> dict[str, dict[int, Stretch]]:
    """What the batch holds, per topic and partition."""
    head = f.when(f.col("value").isNotNull(), f.conv(f.hex(f.substring("value", 2, 4)), 16, 10).cast("long"))
    rows = (
        batch.groupBy("topic", "partition")
        .agg(
            f.collect_set(head).alias("ids"),
            f.max("offset").alias("last"),
            f.count("*").alias("records"),
            f.count("value").alias("changes"),
        )
        .collect()
    )
    found: dict[str, dict[int, Stretch]] = {}
    for row in rows:
        stretch = Stretch(frozenset(row["ids"]), row["last"] + 1, row["records"], row["changes"])
        found.setdefault(row["topic"], {})[row["partition"]] = stretch
    return found


def _changes(records: DataFrame, subject: Subject, *, skip: bool) -> DataFrame:
    place = f.concat_ws("@", f.col("partition").cast("string"), f.col("offset").cast("string"))
    unreadable = f.raise_error(f.concat(f.lit(f"{_UNREADABLE} "), place)).cast("string")
    op: Column = f.coalesce(f.col("e.op"), unreadable)
    return (
        records.where(f.col("value").isNotNull())
        .withColumn("e", decode.envelope(f.col("value"), subject, _CHANGE))
        .where(f.lit(not skip) | f.col("e.op").isNotNull())
        .select(
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
        )
    )
