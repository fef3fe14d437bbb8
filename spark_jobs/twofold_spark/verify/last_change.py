"""The last change of a row in Kafka, for the rows that `verify` names.

One read_committed pass over the table's topic finds them. The message key identifies a record. In a
table without a key, the row that was added or removed does, as the text that `verify` compares. The
driver receives the last record of each row that is asked for, and the last truncate of each
partition; nothing else is decoded. This module reads only Kafka and the registry.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_common.positions import format_lsn
from twofold_spark.errors import SetupError
from twofold_spark.row_columns import KEY_TEXT
from twofold_spark.sinks.cuts import format_time
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.decoding import full_new_row
from twofold_spark.sources.kafka_client import Kafka
from twofold_spark.sources.registry import Registry, Subject
from twofold_spark.verify import row_digest
from twofold_spark.verify.row_digest import ColumnPair

_OPS = {"c": "insert", "u": "update", "d": "delete", "r": "loaded by a backfill", "t": "truncate"}
_ROW: decoding.EnvelopeParts = {**decoding.OP, "before": frozenset(), "after": frozenset(), "unchanged": frozenset()}
_PLACE: decoding.EnvelopeParts = {
    **decoding.OP,
    "source": frozenset({"lsn", "gid", "ts_us"}),
    "transaction": frozenset({"id"}),
}
_RECORD = "_twofold"
"""One column with all columns of the record, because the row's own may have any name."""


@dataclass(frozen=True, slots=True)
class LastChange:
    """The last change of a row."""

    op: str | None
    """None of a record that cannot be decoded."""
    lsn: int
    transaction: str | None
    gid: str | None
    at_us: int
    """The time of the commit.

    With a gid it is the time of the prepare; for a backfill, of the snapshot.
    """
    place: str

    def __str__(self) -> str:
        if self.op is None:
            return f"a record that cannot be decoded, {self.place}"
        parts = [f"{_OPS.get(self.op, self.op)} at {format_lsn(self.lsn)}"]
        if self.transaction is not None:
            parts.append(f"transaction {self.transaction}")
        if self.gid is not None:
            parts.append(f"gid {self.gid!r}")
        when = "as of" if self.op == "r" else "committed" if self.gid is None else "prepared"
        return ", ".join([*parts, f"{when} {format_time(self.at_us)}", self.place])


@dataclass(frozen=True, slots=True)
class LastChangeFinder:
    """Finds last changes in the topics of one prefix."""

    spark: SparkSession
    kafka: Kafka
    registry: Registry

    def find(self, topic: str, key: Sequence[ColumnPair], texts: Collection[str]) -> dict[str, LastChange]:
        """Find the last change of each row whose key columns have one of these texts.

        A row without a change in Kafka is left out.
        """
        subject, keys = self.registry.find_subject(f"{topic}-value"), self.registry.find_subject(f"{topic}-key")
        if subject is None:
            raise SetupError(f"the registry has no subject {topic}-value: give --registry the connector's registry")
        records = kafka_reader.read_whole_topic(self.spark, self.kafka, topic).where(f.col("value").isNotNull())
        rows = _rows_by_message_key(records, keys, key) if keys is not None else _rows_of_changes(records, subject)
        text = f.when(f.col(f"{_RECORD}.is_row"), row_digest.mirror_text(key))
        last = (
            rows.select(f"{_RECORD}.*", text.alias("text"))
            .where(f.col("text").isin(list(texts)) | ~f.col("is_row"))
            .groupBy("text", "partition")
            .agg(f.max(f.struct("offset", "value")).alias("last"))
            .select(
                "text",
                "partition",
                "last.offset",
                decoding.decode_envelope(f.col("last.value"), _PLACE, subject).alias("e"),
            )
            .collect()
        )
        return _choose_last(last, topic, texts)

    def read_key_texts(self, topic: str, key: Sequence[ColumnPair], keys: Collection[bytes]) -> frozenset[str]:
        """Return the texts of the rows with these message keys, without their schema's id."""
        subject = self.registry.find_subject(f"{topic}-key")
        if subject is None or not keys:
            return frozenset()
        frame = b"\0" + subject.versions[-1][0].to_bytes(4, "big")
        framed = f.array(*(f.unhex(f.lit((frame + each).hex())) for each in keys))
        records = self.spark.range(1).select(f.explode(framed).alias("key"))
        decoded = records.select(decoding.decode_record(f.col("key"), subject).alias("k"))
        rows = decoded.select(_columns_of_key(key)).select(row_digest.mirror_text(key).alias("text"))
        return frozenset(row["text"] for row in rows.collect())


def _columns_of_key(key: Sequence[ColumnPair]) -> list[Column]:
    """Select the columns of a decoded message key `k`."""
    return [f.col("k")[pair.mirror.removeprefix(KEY_TEXT)].alias(pair.mirror) for pair in key]


def _rows_by_message_key(records: DataFrame, keys: Subject, key: Sequence[ColumnPair]) -> DataFrame:
    """Identify the row of each record by the columns of its message key."""
    named = records.select(_record(f.col("key").isNotNull()), decoding.decode_record(f.col("key"), keys).alias("k"))
    return named.select(_RECORD, *_columns_of_key(key))


def _rows_of_changes(records: DataFrame, subject: Subject) -> DataFrame:
    """List every row that a change added or removed."""
    known = records.withColumn("e", decoding.decode_envelope(f.col("value"), _ROW, subject)).select("*", "e.*")
    removed = f.when(f.col("op").isin("u", "d"), f.col("before"))
    added = f.when(f.col("op").isin("c", "r", "u"), full_new_row(cast("StructType", known.schema["after"].dataType)))
    rows = known.withColumn("image", f.explode_outer(f.array_compact(f.array(removed, added))))
    return rows.select(_record(f.col("image").isNotNull()), "image.*")


def _record(is_row: Column) -> Column:
    return f.struct("partition", "offset", "value", is_row.alias("is_row")).alias(_RECORD)


def _choose_last(found: Sequence[Row], topic: str, texts: Collection[str]) -> dict[str, LastChange]:
    """Choose each row's last change.

    A truncate changes every row, in each partition at its own offset.
    """
    truncates = {row["partition"]: row for row in found if row["text"] is None and row["e"]["op"] == "t"}
    own = {row["text"]: row for row in found if row["text"] is not None}
    changes = {}
    for text in texts:
        row = own.get(text)
        if row is None:  # Kafka does not have the row's changes before the truncate any more
            row = max(truncates.values(), key=lambda r: r["e"]["source"]["lsn"], default=None)
        elif (truncate := truncates.get(row["partition"])) is not None and truncate["offset"] > row["offset"]:
            row = truncate
        if row is not None:
            changes[text] = _to_last_change(row, topic)
    return changes


def _to_last_change(row: Row, topic: str) -> LastChange:
    envelope, place = row["e"], f"{topic}-{row['partition']}@{row['offset']}"
    if envelope is None or envelope["op"] is None:
        return LastChange(None, 0, None, None, 0, place)
    source, transaction = envelope["source"], envelope["transaction"]
    return LastChange(
        envelope["op"], source["lsn"], transaction and transaction["id"], source["gid"], source["ts_us"], place
    )
