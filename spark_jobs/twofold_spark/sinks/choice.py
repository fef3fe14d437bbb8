"""`--sink`: which of the sinks a job writes to, or `verify` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import SparkSession

from twofold_spark.sinks import Reader, Sink
from twofold_spark.sinks.iceberg import IcebergReader, IcebergSink
from twofold_spark.sinks.jdbc import JdbcReader, JdbcSink
from twofold_spark.source import jdbc_url


@dataclass(frozen=True, slots=True)
class SinkChoice:
    """A sink by name; `jdbc` with where its database is."""

    HELP: ClassVar[str] = "iceberg (the catalog; the default) | jdbc=<a PostgreSQL database>"
    name: str
    address: str = ""

    @classmethod
    def parse(cls, text: str) -> SinkChoice:
        name, _, address = text.partition("=")
        if (name == "iceberg" and not address) or (name == "jdbc" and address):
            return cls(name, address)
        raise ValueError(f"{text!r} is none of: {cls.HELP}")

    def sink(self, spark: SparkSession, prefix: str, *, catalog: str) -> Sink:
        if self.name == "jdbc":
            return JdbcSink(spark, prefix, jdbc_url(self.address))
        return IcebergSink(spark, prefix, catalog)

    def reader(self, spark: SparkSession, *, catalog: str) -> Reader:
        if self.name == "jdbc":
            return JdbcReader(spark, jdbc_url(self.address))
        return IcebergReader(spark, catalog)
