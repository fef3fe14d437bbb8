"""Readers of envelopes in Python: Confluent's deserializer, and Spark's `from_avro`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, Final

from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, TimestampType

from clients.rows import Rows, fold_envelopes, value_of
from clients.samples import Sample
from clients.tables import Table
from helpers.connector.topics import Reader
from helpers.reading import ask_registry
from twofold_common import java
from twofold_spark import session

MICROSECONDS: Final = "`time` taken as microseconds"
LISTS: Final = "looks at `special` and `unchanged`"


class _Deserializing(Reader):
    """Reads with Confluent's deserializer."""

    def __init__(self, bootstrap: str, registry: str, deserializer: AvroDeserializer) -> None:
        super().__init__(bootstrap, registry)
        self._deserializer = deserializer

    def decode(self, data: bytes | None) -> Any:
        return None if data is None else self._deserializer(data, SerializationContext("any", MessageField.VALUE))


class ConfluentPython:
    """`confluent_kafka`'s consumer and `AvroDeserializer`."""

    name = "confluent-kafka's deserializer (Python)"
    at_once = 1

    def ways(self, _table: Table) -> tuple[str, ...]:
        return ("", LISTS)

    def __init__(self, bootstrap: str, registry: str, prefix: str) -> None:
        self._bootstrap, self._registry, self._prefix = bootstrap, registry, prefix

    def read(self, way: str, table: Table, samples: Sequence[Sample]) -> Rows:
        with SchemaRegistryClient({"url": self._registry, "timeout": 20}) as client:
            # Its default strategy would ask the registry for an association first, at each call.
            deserializer = AvroDeserializer(client, conf={"subject.name.strategy": topic_subject_name_strategy})
            reader = _Deserializing(self._bootstrap, self._registry, deserializer)
            seen = reader.read([f"{self._prefix}.public.{table.table}"])
        return fold_envelopes((each.value for each in seen if each.value is not None), lists=way == LISTS)


class SparkFromAvro:
    """Spark's source `kafka` and `from_avro`, with the schema that the registry has for the
    topic.
    """

    name = "Spark's `from_avro`"
    at_once = 1

    def ways(self, _table: Table) -> tuple[str, ...]:
        return ("", MICROSECONDS, LISTS)

    def __init__(self, spark: SparkSession, bootstrap: str, registry: str, prefix: str) -> None:
        self._spark, self._bootstrap, self._registry, self._prefix = spark, bootstrap, registry, prefix
        self._envelopes: dict[str, list[dict[str, Any]]] = {}

    def read(self, way: str, table: Table, samples: Sequence[Sample]) -> Rows:
        if table.table not in self._envelopes:
            self._envelopes[table.table] = self._read(f"{self._prefix}.public.{table.table}")
        rows = fold_envelopes(self._envelopes[table.table], lists=way == LISTS)
        if way == MICROSECONDS:
            for row in rows.values():
                row |= {sample.column: value_of(row[sample.column], sample.type) for sample in samples}
        return rows

    def _read(self, topic: str) -> list[dict[str, Any]]:
        schema = ask_registry(self._registry, f"subjects/{topic}-value/versions/latest")["schema"]
        source = self._spark.read.format("kafka").option("subscribe", topic)
        source = source.option("kafka.bootstrap.servers", self._bootstrap).option("startingOffsets", "earliest")
        records = source.option("kafka.isolation.level", "read_committed").load().where("value IS NOT NULL")
        # Behind the frame of five bytes; the sample's schemas have one version.
        decoded = from_avro(f.expr("substring(value, 6)"), schema, {"mode": "FAILFAST"})
        envelopes = records.orderBy("partition", "offset").select(decoded.alias("e")).select("e.*")
        row_type: Any = envelopes.schema["after"].dataType
        instants = {field.name for field in row_type if isinstance(_element(field.dataType), TimestampType)}
        chosen = envelopes.select("op", "before.id", "after", "special", "unchanged").collect()
        return [_envelope(row.asDict(recursive=True), instants) for row in chosen]


def _element(type_: Any) -> Any:
    return _element(type_.elementType) if isinstance(type_, ArrayType) else type_


def _envelope(row: dict[str, Any], instants: set[str]) -> dict[str, Any]:
    """Python gets an instant in the time of this machine, without its zone."""
    after = row["after"]
    for name in instants if after else ():
        after[name] = after[name] and after[name].astimezone(UTC)
    return {**row, "before": {"id": row["id"]}}


def made_spark(folder: Path) -> SparkSession:
    """A session as the jobs make it."""
    return session.open_session(folder, memory="1g", java_home=str(java.spark_java_home()), name="clients")
