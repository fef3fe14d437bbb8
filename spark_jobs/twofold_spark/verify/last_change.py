"""Which change touched a row last, as Kafka has it: for `verify`, of the rows that it names.

One pass over the table's topic, read_committed. A record is known by its message key, or in a table without one by the
row that came or went, both in the text that `verify` compares by. Of each row that is asked for the last record comes to
the driver, and of each partition the last truncate; nothing else is decoded. It reads Kafka and the registry alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from twofold_spark.errors import MissingGround
from twofold_spark.formatting import lsn_text, time_text
from twofold_spark.mirror.keyed_folding import whole_after
from twofold_spark.mirror.toast_values import KEY_TEXT
from twofold_spark.sources import decoding, kafka_reader
from twofold_spark.sources.kafka_reader import Kafka
from twofold_spark.sources.registry import Registry, Subject
from twofold_spark.verify import row_digest
from twofold_spark.verify.row_digest import Pair

_OPS = {"c": "insert", "u": "update", "d": "delete", "r": "loaded by a backfill", "t": "truncate"}
_ROW: decoding.Parts = {**decoding.OP, "before": frozenset(), "after": frozenset(), "unchanged": frozenset()}
_PLACE: decoding.Parts = {
    **decoding.OP,
    "source": frozenset({"lsn", "gid", "ts_us"}),
    "transaction": frozenset({"id"}),
}
_RECORD = "_twofold"
"""The record's own columns in one, beside the row's, which may have any name."""


@dataclass(frozen=True, slots=True)
class Touch:
    """The last change of a row."""

    op: str | None
    """None of a record that cannot be decoded."""
    lsn: int
    transaction: str | None
    gid: str | None
    at_us: int
    """The commit's time; of a prepared transaction, which has a gid, the prepare's; of a backfill, the snapshot's."""
    place: str

    def __str__(self) -> str:
        if self.op is None:
            return f"a record that cannot be decoded, {self.place}"
        words = [f"{_OPS.get(self.op, self.op)} at {lsn_text(self.lsn)}"]
        if self.transaction is not None:
            words.append(f"transaction {self.transaction}")
        if self.gid is not None:
            words.append(f"gid {self.gid!r}")
        when = "as of" if self.op == "r" else "committed" if self.gid is None else "prepared"
        return ", ".join([*words, f"{when} {time_text(self.at_us)}", self.place])


class Touches:
    """Looks for them in the topics of one prefix."""

    def __init__(self, spark: SparkSession, where: Kafka, registry: Registry) -> None:
        self._spark = spark
        self._where = where
        self._registry = registry

    def of(self, topic: str, key: Sequence[Pair], texts: Collection[str]) -> dict[str, Touch]:
        """Of the rows with these texts of these columns; a row that Kafka has no change of any more is left out."""
        subject, keys = self._registry.subject(f"{topic}-value"), self._registry.subject(f"{topic}-key")
        if subject is None:
            raise MissingGround(f"the registry has no subject {topic}-value: is it the connector's registry?")
        records = kafka_reader.whole(self._spark, self._where, topic).where(f.col("value").isNotNull())
        rows = _keyed(records, keys, key) if keys is not None else _keyless(records, subject)
        text = f.when(f.col(f"{_RECORD}.is_row"), row_digest.mirror_text(key))
        last = (
            rows.select(f"{_RECORD}.*", text.alias("text"))
            .where(f.col("text").isin(list(texts)) | ~f.col("is_row"))
            .groupBy("text", "partition")
            .agg(f.max(f.struct("offset", "value")).alias("last"))
            .select(
                "text", "partition", "last.offset", decoding.envelope(f.col("last.value"), subject, _PLACE).alias("e")
            )
            .collect()
        )
        return _later(last, topic, texts)


def _keyed(records: DataFrame, keys: Subject, key: Sequence[Pair]) -> DataFrame:
    """The message key says which row it is: its columns are the row's, or the texts that `_key_<column>` holds."""
    named = records.select(_record(f.col("key").isNotNull()), decoding.record(f.col("key"), keys).alias("k"))
    return named.select(_RECORD, *(f.col("k")[pair.mirror.removeprefix(KEY_TEXT)].alias(pair.mirror) for pair in key))


def _keyless(records: DataFrame, subject: Subject) -> DataFrame:
    """Every row that a change brought or took away."""
    known = records.withColumn("e", decoding.envelope(f.col("value"), subject, _ROW)).select("*", "e.*")
    gone = f.when(f.col("op").isin("u", "d"), f.col("before"))
    came = f.when(f.col("op").isin("c", "r", "u"), whole_after(cast("StructType", known.schema["after"].dataType)))
    rows = known.withColumn("image", f.explode_outer(f.array_compact(f.array(gone, came))))
    return rows.select(_record(f.col("image").isNotNull()), "image.*")


def _record(is_row: Column) -> Column:
    return f.struct("partition", "offset", "value", is_row.alias("is_row")).alias(_RECORD)


def _later(found: Sequence[Row], topic: str, texts: Collection[str]) -> dict[str, Touch]:
    """A truncate touches every row, in each partition at its place among them."""
    truncates = {row["partition"]: row for row in found if row["text"] is None and row["e"]["op"] == "t"}
    own = {row["text"]: row for row in found if row["text"] is not None}
    touched = {}
    for text in texts:
        row = own.get(text)
        if row is None:  # what it was before the truncate, Kafka does not know any more
            row = max(truncates.values(), key=lambda r: r["e"]["source"]["lsn"], default=None)
        elif (truncate := truncates.get(row["partition"])) is not None and truncate["offset"] > row["offset"]:
            row = truncate
        if row is not None:
            touched[text] = _touch(row, topic)
    return touched


def _touch(row: Row, topic: str) -> Touch:
    envelope, place = row["e"], f"{topic}-{row['partition']}@{row['offset']}"
    if envelope is None or envelope["op"] is None:
        return Touch(None, 0, None, None, 0, place)
    source, transaction = envelope["source"], envelope["transaction"]
    return Touch(
        envelope["op"], source["lsn"], transaction and transaction["id"], source["gid"], source["ts_us"], place
    )
